"""Text from files made safe to show."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""Escape unprintable characters as ``\x1b`` and the like, except those in ``keep``.

    A terminal takes control characters as commands; others reverse the text around them.
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )
