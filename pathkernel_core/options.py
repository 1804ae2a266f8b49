"""Options of tasks and results: fields of a frozen dataclass that describe themselves.

Whoever declares a field with :func:`option` gets an option on the command line for it, without a
line of code for the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, field, fields
from numbers import Real
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
    metavar: str | None = None,
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
        ``pathlib.Path``; or, for numbers separated by commas, ``tuple[int, ...]``, ``tuple`` or
        ``tuple[float, ...]``, and ``tuple[float | None, ...]`` where one may be ``none``.
    least : float, optional
        Smallest number allowed.
    flags : sequence of str
        What is typed, if it is not ``--name``; not for ``bool``, which has ``--no-name`` too.
    metavar : str, optional
        Placeholder of the value in help texts, such as ``N,N,…``; by default its type.
    required : bool
        Whether the command line insists on it; in Python it may still be left at its default.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "type": type,
        "least": least,
        "flags": tuple(flags),
        "metavar": metavar,
        "required": required,
    }
    return field(default=default, metadata=metadata)


def option_type(declared: Field) -> Any:
    """Type of an option's value."""
    about = declared.metadata
    return about.get("type") or (str if declared.default is None else type(declared.default))


def takes_several(declared: Field) -> bool:
    """Whether a study may take several values of an option: numbers, or words to choose from."""
    return option_type(declared) in (int, float) or bool(declared.metadata.get("choices"))


def several_values(configured: Any, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Values of one option of a task for a study to take in turn, of the option's type.

    Raises
    ------
    ValueError
        If there is no such option, it takes one value only, or no or equal values are given.
    """
    declared = {entry.name: entry for entry in fields(configured)}
    if name not in declared:
        listed = ", ".join(declared) or "none"
        raise ValueError(f"{configured.name} has no option {name!r}; its options: {listed}")
    if not takes_several(declared[name]):
        raise ValueError(
            f"the option {name!r} takes one value: several may be given of numbers, and of words "
            "to choose from"
        )
    kind = option_type(declared[name])
    found = tuple(kind(value) if isinstance(value, Real) else value for value in values)
    types = {type(value) for value in found}
    words = declared[name].metadata.get("choices")
    if found != tuple(values) or not (types == {kind} or (words and types == {str})):
        raise ValueError(f"{name} must be values of type {kind.__name__}, not {values!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"{name} holds a value twice: {', '.join(map(str, found))}")
    return found


def check_options(configured: Any) -> None:
    """Check options of a task or a result against the least values that they are declared with.

    Raises
    ------
    ValueError
        If one is smaller; the message names it.
    """
    for entry in fields(configured):
        least, value = entry.metadata.get("least"), getattr(configured, entry.name)
        if least is not None and value is not None and not value >= least:  # NaN is neither
            raise ValueError(f"{entry.name} must be at least {least}, but is {value!r}")
