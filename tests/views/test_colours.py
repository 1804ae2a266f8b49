"""Colours of series: told apart with every common deficiency, in the light and in the dark."""

from itertools import combinations

import pytest
from vision import DEFICIENCIES, distance

from pathkernel_views.chart import PALETTE
from pathkernel_views.colours import CONTRAST_OF_MARKS, DARK_CARD, contrast, for_dark, shades
from pathkernel_views.looks import looks

PAGES = {"light": lambda colour: colour, "dark": for_dark}


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("page", PAGES)
def test_series_are_told_apart(page, deficiency):
    colours = [PAGES[page](colour) for colour in PALETTE]
    # shades of a scale from dark to light look 0.02 apart where they can just be told apart
    assert min(distance(*pair, deficiency) for pair in combinations(colours, 2)) > 0.08
    for count in (2, 3, 4, 5):
        row = [PAGES[page](colour) for colour in shades(PALETTE[0], count)]
        assert min(distance(*pair, deficiency) for pair in combinations(row, 2)) > 0.16 / count


def test_colours_stand_out_of_both_pages():
    for colour in (*PALETTE, *shades(PALETTE[0], 6)):
        assert contrast(colour) >= CONTRAST_OF_MARKS
        assert contrast(for_dark(colour), DARK_CARD) >= CONTRAST_OF_MARKS


def test_five_temperatures_have_five_marks():
    drawn = looks([f"T = {t}" for t in (0.01, 0.03, 0.1, 0.3, 1)])
    assert len({look.shape for look in drawn.values()}) == 5
    assert len({look.colour for look in drawn.values()}) == 5
    # a small diamond is hardly told from a square
    assert "diamond" not in {look.shape for look in drawn.values()}
