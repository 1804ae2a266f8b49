"""Options of tasks, results, studies and trainings: declared once, checked whenever they are set.

Options are fields of a frozen dataclass below :class:`Options`. The command line and study files
are made from the same declarations, so that all refuse the same values with the same message.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.arrays.scalars import real_number

NAME_PATTERN = "[a-z0-9]+(-[a-z0-9]+)*"
"""Names of tasks, results and commands: lower-case words joined by hyphens."""

_LARGEST = 2**53  # whole numbers up to which double precision counts
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_COMPARISONS = {  # what the bound is to the number
    "above": ("above", operator.lt),
    "minimum": ("at least", operator.le),
    "maximum": ("at most", operator.ge),
    "below": ("below", operator.gt),
}


def option(
    default: Any,
    help: str,
    choices: Sequence[str] | None = None,
    *,
    type: Any = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    even: bool = False,
    flags: Sequence[str] | None = (),
    metavar: str | None = None,
    required: bool = False,
) -> Any:
    """Declare an option: a field of :class:`Options` that the command line offers.

    Parameters
    ----------
    default : bool, int, float, str or None
        Default value; its type is the option's type (None: an optional string). Only an option
        whose default is None may be None.
    help : str
        Description in one line, with the unit.
    choices : sequence of str, optional
        Values allowed; with ``type=int`` or ``type=float``, words allowed besides numbers.
    type : type, optional
        Type of the option, if not that of the default: ``int``, ``float``, ``bool``, ``str``,
        ``pathlib.Path``; or, for several numbers, ``tuple[int, ...]``, ``tuple[float, ...]``,
        ``tuple`` as short for it, and ``tuple[float | None, ...]``; or a union of such a tuple and
        its element, for one number instead of several.
    minimum, maximum : float, optional
        Smallest and largest number allowed. Floats are finite.
    above, below : float, optional
        Numbers that all allowed ones lie above, or below. Without ``maximum`` and ``below``, whole
        numbers are at most 2⁵³ in size, up to which double precision counts.
    even : bool
        Whether the number must be even.
    flags : sequence of str
        Flags instead of ``--name``; not for ``bool``, which has ``--no-name`` too. None: an option
        of Python alone.
    metavar : str, optional
        Placeholder of the value in help texts, such as ``N,N,…``; by default its type.
    required : bool
        Whether the command line requires it; in Python the default remains.
    """
    metadata = {
        "help": help,
        "choices": None if choices is None else tuple(choices),
        "type": type,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "below": below,
        "even": even,
        "flags": None if flags is None else tuple(flags),
        "metavar": metavar,
        "required": required,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """Base class of frozen dataclasses whose fields are options, checked when one is made.

    Every field that :func:`option` declares is converted to its type and compared with its bounds
    and choices, before ``__post_init__`` of a subclass, which only checks options against each
    other. Numbers of NumPy become Python's, and whole numbers floats where floats are declared;
    truth values are no numbers.

    Raises
    ------
    TypeError
        If a value has another type than its option.
    ValueError
        If it is out of bounds, or none of the choices.
    """

    def __init_subclass__(cls, **arguments: Any):
        # a subclass need not call super().__post_init__(), and its own checks see checked options;
        # so do those of a class that is mixed in, and knows nothing of options
        super().__init_subclass__(**arguments)
        if not hasattr(further := cls.__post_init__, "checks_options"):

            @functools.wraps(further)
            def checked_first(self: Options, *init_only: Any) -> None:
                Options.__post_init__(self)
                further(self, *init_only)

            checked_first.checks_options = True  # type: ignore[attr-defined]
            cls.__post_init__ = checked_first  # type: ignore[method-assign]

    def __post_init__(self, *_: Any) -> None:
        for name, declared in declared_options(self).items():
            object.__setattr__(self, name, check_value(declared, getattr(self, name)))

    __post_init__.checks_options = True  # type: ignore[attr-defined]


def declared_options(configured: Any) -> dict[str, Field]:
    """Fields by name, of a class of options or of an object, that :func:`option` declares."""
    return {entry.name: entry for entry in fields(configured) if "help" in entry.metadata}


def option_type(declared: Field) -> Any:
    """Type of an option's value."""
    by_default = str if declared.default is None else type(declared.default)
    return declared.metadata.get("type") or by_default


def element_type(declared: Field) -> Any:
    """Type of the entries of an option that takes a sequence; None if it takes none."""
    for kind in _alternatives(declared):
        if kind is tuple:
            return float
        if typing.get_origin(kind) is tuple:
            return typing.get_args(kind)[0]
    return None


def takes_several(declared: Field) -> bool:
    """Whether a study may run over several values of an option: numbers or choices."""
    return option_type(declared) in (int, float) or bool(declared.metadata.get("choices"))


def bounds(declared: Field) -> str:
    """Bounds of an option in words, such as "even and at least 2"; empty if it has none."""
    return _join_phrases([phrase for phrase, _ in _bounds(declared)])


def check_value(declared: Field, value: Any) -> Any:
    """Value of an option as an object of its type, after checking it.

    Raises
    ------
    TypeError, ValueError
        As :class:`Options` does; the message names option, requirement and value.
    """
    if value is None and declared.default is None:
        return None
    value = _to_plain(value)
    name, element = declared.name, element_type(declared)
    if element is None:
        return _check_single(declared, name, option_type(declared), value)
    kind, *optional = typing.get_args(element) or (element,)
    if isinstance(value, str) or not isinstance(value, Iterable):
        if kind in _alternatives(declared):
            return _check_single(declared, name, kind, value)
        example = "(0, 1)" if isinstance(value, str) else f"({value},)"
        raise TypeError(f"{name} must be a sequence, such as {example}, but is {value!r}")
    converted = tuple(
        None
        if entry is None and optional
        else _check_single(declared, f"each of {name}", kind, entry)
        for entry in map(_to_plain, value)
    )
    if not converted:
        raise ValueError(f"{name} must hold at least one value")
    return converted


def several_values(configured: Any, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Check and convert the values of one option over which a study runs.

    Raises
    ------
    ValueError, TypeError
        If there is no such option, it takes a single value, there are no values, or one of them is
        not allowed or repeated.
    """
    declared = declared_options(configured)
    if name not in declared:
        listed = ", ".join(declared) or "none"
        raise ValueError(f"{configured.name} has no option {name!r}; its options: {listed}")
    if not takes_several(declared[name]):
        raise ValueError(
            f"the option {name!r} takes one value; only numbers and choices may have several"
        )
    converted = tuple(
        check_value(declared[name], _convert_integer(declared[name], value)) for value in values
    )
    if not converted:
        raise ValueError(f"{name} must hold at least one value")
    if len({type(value) for value in converted}) > 1:
        raise ValueError(f"{name} holds both numbers and words: {', '.join(map(str, converted))}")
    if len(set(converted)) < len(converted):
        raise ValueError(f"{name} holds a value twice: {', '.join(map(str, converted))}")
    return converted


def _to_plain(value: Any) -> Any:
    """Value as Python's own, if it is a single number or text of an array library."""
    single = isinstance(value, np.generic) or getattr(value, "shape", None) == ()
    return value.item() if single and hasattr(value, "item") else value


def _convert_integer(declared: Field, value: Any) -> Any:
    """Whole numbers among floats, as grids of NumPy hold them, as integers where it takes them."""
    is_whole = isinstance(value, float) and value.is_integer() and option_type(declared) is int
    return int(value) if is_whole else value


def _alternatives(declared: Field) -> tuple[Any, ...]:
    """Types that an option may have: one, or those of a union."""
    kind = option_type(declared)
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _check_single(declared: Field, name: str, kind: Any, value: Any) -> Any:
    """A single value, or an entry of a sequence, checked under a name."""
    choices = declared.metadata["choices"]
    if choices and (kind is str or isinstance(value, str)):
        if not isinstance(value, str) or value not in choices:
            number = "" if kind is str else f"{_KINDS[kind]} or "
            raise ValueError(
                f"{name} must be {number}one of {', '.join(choices)}, but is {_show_value(value)}"
            )
        return value
    value = _convert_value(name, kind, value)
    is_bounded = declared.metadata["maximum"] is not None or declared.metadata["below"] is not None
    if kind is int and not is_bounded and abs(value) > _LARGEST:
        raise ValueError(f"{name} must be at most 2^53 in size, but is larger")
    conditions = _bounds(declared)
    if kind is float and len(conditions) < 2:  # not bounded on both sides
        conditions.append(("finite", math.isfinite))
    if not all(holds(value) for _, holds in conditions):
        requirement = _join_phrases([phrase for phrase, _ in conditions])
        raise ValueError(f"{name} must be {requirement}, but is {value!r}")
    return value


def _convert_value(name: str, kind: Any, value: Any) -> Any:
    """A value as an object of a type, if it may stand for one."""
    if kind is float:
        return real_number(name, value)
    if kind in (str, Path) and isinstance(value, str | os.PathLike):
        if kind is Path and not os.fspath(value):  # Python takes it for the working directory
            raise ValueError(f"{name} must be a path, but is empty")
        return kind(os.fspath(value))
    is_truth = isinstance(value, bool)
    if kind is int and isinstance(value, numbers.Integral) and not is_truth:
        return int(value)
    if kind in _KINDS and not (kind is bool and is_truth):
        is_array = kind in (str, Path) and _shape(value)
        remedy = "; name a file that holds it" if is_array else ""
        raise TypeError(f"{name} must be {_KINDS[kind]}, but is {_show_value(value)}{remedy}")
    return value


def _show_value(value: Any) -> str:
    """A value in a message; of arrays, whose text has many lines, the shape."""
    return f"an array of shape {_shape(value)}" if _shape(value) else repr(value)


def _shape(value: Any) -> tuple[int, ...]:
    """Shape of an array; () of anything else, of classes of arrays too."""
    shape = getattr(value, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()


def _bounds(declared: Field) -> list[tuple[str, Callable[[Any], bool]]]:
    """Bounds of an option, each in words and as a condition on a number."""
    declared_bounds = (
        [("even", lambda number: number % 2 == 0)] if declared.metadata["even"] else []
    )
    for name, (phrase, holds) in _COMPARISONS.items():
        if (bound := declared.metadata[name]) is not None:
            is_power = isinstance(bound, int) and bound >= _LARGEST and bound.bit_count() == 1
            written = f"2^{bound.bit_length() - 1}" if is_power else bound
            words = "positive" if (name, bound) == ("above", 0) else f"{phrase} {written}"
            declared_bounds.append((words, functools.partial(holds, bound)))
    return declared_bounds


def _join_phrases(phrases: Sequence[str]) -> str:
    *first, last = phrases or ("",)
    return f"{', '.join(first)} and {last}" if first else last
