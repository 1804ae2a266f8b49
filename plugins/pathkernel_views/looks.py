"""Colour, dash and marker of every series, by the meaning of its name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pathkernel_views.chart import AMBER, BLACK, BLUE, GREEN, GREY, PALETTE, PURPLE, RUST
from pathkernel_views.colours import shades

MEANINGS = {
    "theory": BLUE,
    "N =": BLUE,
    "GP limit": RUST,
    "next order": GREEN,
    "sampled": AMBER,
    "trained": GREEN,
    "random": GREY,
    "best set": BLACK,
}
"""Colours of series in every chart, by the beginning of their name."""


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of a series."""

    colour: str
    dash: tuple[int, ...]
    shape: str  # empty for limits, which have no points


# neighbours differ most; a small diamond looks like a square
_SHAPES = ("circle", "square", "triangle-up", "cross", "triangle-down", "diamond")
_DASHES = ((1, 0), (6, 2), (2, 2))
_LIMIT_DASHES = ((5, 3), (2, 2), (8, 2, 2, 2))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return colour, dash and marker of every series, by the meaning of its name.

    Limits are dashed. Series of one meaning have shades of its colour, from dark to light, none of
    them too pale on white; no two series have the same colour and dash.
    """
    names = list(dict.fromkeys(names))
    meanings = {
        name: next((colour for key, colour in MEANINGS.items() if name.startswith(key)), None)
        for name in names
    } | {name: PURPLE for name in names if name.endswith("(GP limit)")}
    free = itertools.cycle([c for c in PALETTE if c not in meanings.values()] or PALETTE)
    colours = {name: meaning or next(free) for name, meaning in meanings.items()}
    series = {}
    for n, (name, colour) in enumerate(colours.items()):
        relatives = [name for name in names if colours[name] == colour]
        place = relatives.index(name)
        shade = shades(colour, len(relatives))[place]
        if "GP limit" in name:
            series[name] = Look(shade, _LIMIT_DASHES[place % 3], "")
        else:
            series[name] = Look(shade, _DASHES[n // len(_SHAPES) % 3], _SHAPES[n % len(_SHAPES)])
    return series
