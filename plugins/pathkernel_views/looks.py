"""Colour, dash and marker of every series, by the meaning of its name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pathkernel_views.chart import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PALETTE, PURPLE

MEANINGS = {
    "theory": BLUE,
    "N =": BLUE,
    "GP limit": ORANGE,
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


_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_DASHES = ((1, 0), (6, 2), (2, 2))
_LIMIT_DASHES = ((5, 3), (2, 2), (8, 2, 2, 2))
_CONTRAST = 3.0  # with white, the least that accessible graphics have


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
        shade = _shades(colour, len(relatives))[place]
        if "GP limit" in name:
            series[name] = Look(shade, _LIMIT_DASHES[place % 3], "")
        else:
            series[name] = Look(shade, _DASHES[n // len(_SHAPES) % 3], _SHAPES[n % len(_SHAPES)])
    return series


def contrast(colour: str) -> float:
    """Return the contrast of a colour with white, from 1 to 21, as of accessible web pages."""
    parts = (part / 255 for part in _parts(colour))
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    luminance = sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 1.05 / (luminance + 0.05)


def _shades(colour: str, count: int) -> list[str]:
    """Return shades of a colour, the first dark and the last as light as its contrast allows."""
    if count == 1:
        return [colour]
    tints = (_mix_colours(colour, 255, white / 20) for white in range(10, 0, -1))
    light = next((tint for tint in tints if contrast(tint) >= _CONTRAST), colour)
    dark, parts = _parts(_mix_colours(colour, 0, 0.55)), _parts(light)
    steps = (n / (count - 1) for n in range(count))
    return [_hexadecimal(d + (p - d) * s for d, p in zip(dark, parts, strict=True)) for s in steps]


def _mix_colours(colour: str, other: int, share: float) -> str:
    """Mix a colour with black, 0, or white, 255."""
    return _hexadecimal(part + (other - part) * share for part in _parts(colour))


def _parts(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def _hexadecimal(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
