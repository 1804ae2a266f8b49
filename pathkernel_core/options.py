"""Options of tasks and results: fields of a frozen dataclass that the command line offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, field, fields, replace
from numbers import Real
from typing import Any

import numpy as np

NAME_PATTERN = "[a-z0-9]+(-[a-z0-9]+)*"
"""Names of tasks, results and commands: lower-case words joined by hyphens."""

_LARGEST = 2**53


def option(
    default: Any,
    help: str,
    choices: Sequence[str] | None = None,
    *,
    type: Any = None,
    minimum: float | None = None,
    flags: Sequence[str] = (),
    metavar: str | None = None,
    required: bool = False,
) -> Any:
    """Declare a dataclass field that the command line offers as an option.

    Parameters
    ----------
    default : bool, int, float, str or None
        Default value; its type is the option's type (None: an optional string).
    help : str
        Description in one line, with the unit.
    choices : sequence of str, optional
        Values allowed; with ``type=float``, words allowed besides numbers.
    type : type, optional
        Type of the option, if not that of the default: ``int``, ``float``, ``bool``,
        ``pathlib.Path``; or, for numbers separated by commas, ``tuple[int, ...]``, ``tuple`` or
        ``tuple[float, ...]``, and ``tuple[float | None, ...]`` with the word ``none`` allowed.
    minimum : float, optional
        Smallest number allowed.
    flags : sequence of str
        Flags instead of ``--name``; not for ``bool``, which has ``--no-name`` too.
    metavar : str, optional
        Placeholder of the value in help texts, such as ``N,N,…``; by default its type.
    required : bool
        Whether the command line requires it; in Python the default remains.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "type": type,
        "minimum": minimum,
        "flags": tuple(flags),
        "metavar": metavar,
        "required": required,
    }
    return field(default=default, metadata=metadata)


def option_type(declared: Field) -> Any:
    """Type of an option's value."""
    by_default = str if declared.default is None else type(declared.default)
    return declared.metadata.get("type") or by_default


def takes_several(declared: Field) -> bool:
    """Whether a study may run over several values of an option: numbers or choices."""
    return option_type(declared) in (int, float) or bool(declared.metadata.get("choices"))


def several_values(configured: Any, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Check and convert the values of one option over which a study runs.

    Raises
    ------
    ValueError
        If there is no such option, it takes a single value, or a value has the wrong type or is
        repeated.
    """
    declared = {entry.name: entry for entry in fields(configured)}
    if name not in declared:
        listed = ", ".join(declared) or "none"
        raise ValueError(f"{configured.name} has no option {name!r}; its options: {listed}")
    if not takes_several(declared[name]):
        raise ValueError(
            f"the option {name!r} takes one value; only numbers and choices may have several"
        )
    kind = option_type(declared[name])
    converted = tuple(kind(value) if isinstance(value, Real) else value for value in values)
    types = {type(value) for value in converted}
    choices = declared[name].metadata.get("choices")
    if converted != tuple(values) or not (types == {kind} or (choices and types == {str})):
        raise ValueError(f"{name} must be values of type {kind.__name__}, not {values!r}")
    if len(set(converted)) < len(converted):
        raise ValueError(f"{name} holds a value twice: {', '.join(map(str, converted))}")
    return converted


def checked_options(configured: Any) -> Any:
    """Return a task or a result with NumPy's numbers as Python's, after checking its numbers.

    Raises ValueError if an option is below its declared ``minimum``, or is a whole number beyond
    2⁵³, up to which double precision counts.
    """
    converted = {}
    for entry in fields(configured):
        value = getattr(configured, entry.name)
        if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            converted[entry.name] = value = value.item()
        minimum = entry.metadata.get("minimum")
        if minimum is not None and value is not None and not value >= minimum:  # NaN is neither
            raise ValueError(f"{entry.name} must be at least {minimum}, but is {value!r}")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"{entry.name} must be at most 2^53 in size, but is larger")
    return replace(configured, **converted) if converted else configured
