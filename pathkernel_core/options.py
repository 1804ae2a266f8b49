"""Options of tasks and results: fields of a frozen dataclass that describe themselves.

Whoever declares a field with :func:`option` gets an option on the command line for it, without a
line of code for the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any

NAME_PATTERN = "[a-z0-9]+(-[a-z0-9]+)*"
"""What a task, a result or a command is called: lower-case words joined by hyphens."""


def option(
    default: Any,
    help: str,
    choices: Sequence[str] | None = None,
    *,
    type: Any = None,
    least: float | None = None,
    flags: Sequence[str] = (),
    required: bool = False,
) -> Any:
    """Dataclass field that the command line offers as an option.

    Parameters
    ----------
    default : bool, int, float, str or None
        Default value; its type is the option's type (None: a string that may be left out).
    help : str
        One line that says what it is, with its unit.
    choices : sequence of str, optional
        Values allowed; with ``type=float``, words that are allowed beside numbers.
    type : type, optional
        Type of the option where the default does not tell it: ``int``, ``float``, ``bool``,
        ``pathlib.Path``, or ``tuple`` for numbers separated by commas.
    least : float, optional
        Smallest number allowed.
    flags : sequence of str
        What is typed, if it is not ``--name``; not for ``bool``, which has ``--no-name`` too.
    required : bool
        Whether the command line insists on it; in Python it may still be left at its default.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "type": type,
        "least": least,
        "flags": tuple(flags),
        "required": required,
    }
    return field(default=default, metadata=metadata)


def check_options(configured: Any) -> None:
    """Check options of a task or a result against the least values that they are declared with.

    Raises
    ------
    ValueError
        If one is smaller; the message names it.
    """
    for entry in fields(configured):
        least, value = entry.metadata.get("least"), getattr(configured, entry.name)
        if least is not None and value is not None and value < least:
            raise ValueError(f"{entry.name} must be at least {least}, but is {value!r}")
