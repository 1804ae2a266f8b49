"""Text that comes from elsewhere, such as names in files, made safe to show."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""Text in which characters that cannot be printed are written as ``\x1b`` and the like.

    A terminal would take control characters as commands, and some others turn what is read around.

    Parameters
    ----------
    text : str
    keep : str
        Characters to leave as they are.
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )
