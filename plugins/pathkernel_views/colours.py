"""Arithmetic of colours: contrast, shades, and the colours of a dark page.

Colours are text such as ``"#0072B2"``. Lightness and hue are those of Oklab (Ottosson, 2020), in
which equal steps look equal.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WHITE = "#ffffff"
DARK_CARD = "#191e24"
"""What lies under the charts of a dark page, ``--card`` of its style sheet."""

CONTRAST_OF_MARKS, CONTRAST_OF_TEXT = 3.0, 4.5
"""The least contrasts of accessible pages (WCAG 2.2, 1.4.11 and 1.4.3)."""

_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
_DARKEST = 0.66  # of lightness, by which white is darkened on a dark page
_STEPS = 20  # of chroma, from full to none


def contrast(colour: str, ground: str = WHITE) -> float:
    """Return the contrast of two colours, from 1 to 21, as of accessible web pages."""
    low, high = sorted(float(_LUMINANCE @ linear_light(each)) for each in (colour, ground))
    return (high + 0.05) / (low + 0.05)


def shades(colour: str, count: int) -> list[str]:
    """Return shades of a colour, the first dark and the last as light as white paper allows."""
    if count == 1:
        return [colour]
    tints = (mix_colours(colour, WHITE, white / 20) for white in range(10, 0, -1))
    light = next((tint for tint in tints if contrast(tint) >= CONTRAST_OF_MARKS), colour)
    dark = mix_colours(colour, "#000000", 0.55)
    return [mix_colours(dark, light, n / (count - 1)) for n in range(count)]


def mix_colours(colour: str, other: str, share: float) -> str:
    """Return a colour mixed with a share of another one."""
    parts = zip(_parts(colour), _parts(other), strict=True)
    return _hexadecimal(part + (end - part) * share for part, end in parts)


def for_dark(colour: str) -> str:
    """Return the colour that stands for one of white paper on :data:`DARK_CARD`.

    Dark becomes light and light less light, with the same hue: an order of shades is reversed, and
    those that differ still do. Chroma is lost only where no screen has it.
    """
    lightness, *chroma = oklab(linear_light(colour))
    lightness = 1 - _DARKEST * lightness
    for share in np.linspace(1, 0, _STEPS + 1):
        lab = np.array([lightness, *(share * part for part in chroma)])
        light = np.linalg.solve(_TO_CONES, np.linalg.solve(_TO_OKLAB, lab) ** 3)
        if (light >= -1e-6).all() and (light <= 1 + 1e-6).all():
            break
    light = light.clip(0, 1)
    curved = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return _hexadecimal(255 * curved)


def oklab(light: np.ndarray) -> np.ndarray:
    """Return lightness, from 0 to 1, and both parts of chroma of linear light."""
    return _TO_OKLAB @ np.cbrt(_TO_CONES @ light)


def linear_light(colour: str) -> np.ndarray:
    """Return red, green and blue in proportion to light, from 0 to 1."""
    parts = np.array(_parts(colour)) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _parts(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def _hexadecimal(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
