"""Text from files made safe to show, and numbers as a reader would write them."""

from __future__ import annotations

import re
from typing import Any

_LONGEST_WORD, _LONGEST_TEXT = 200, 2000


def printable(text: str, keep: str = "") -> str:
    r"""Escape unprintable characters as ``\x1b`` and the like, except those in ``keep``.

    A terminal takes control characters as commands; others reverse the text around them.
    """
    plain = text
    for character in keep:
        plain = plain.replace(character, "")
    if plain.isprintable():  # almost all text; character by character takes 30 times as long
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


def shorten_message(text: str) -> str:
    """Cut long words of a message, such as values of options, and a message that is too long."""

    def cut_word(match: re.Match) -> str:
        return f"{match[0][:60]}…{match[0][-20:]} ({len(match[0])} characters)"

    text = re.sub(rf"\S{{{_LONGEST_WORD},}}", cut_word, text)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 500]} … {text[-500:]}"
    return text


def format_value(value: Any) -> str:
    """A value of an option as a reader would write it, such as 2 for 2.0."""
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """A number as a reader would write it: whole ones without a point, 1000 and not 1e+03."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e7 else f"{value:g}"
