"""Numbers among arguments: those of Python and NumPy, but no truth values."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

_KINDS = tuple((0, kind) for kind in "biuf")  # neither times nor texts


def real_number(name: str, value: Any) -> float:
    """Return a number of Python or NumPy, also an array of no dimensions, as a float.

    Raises
    ------
    TypeError
        If it is a truth value, an array of another library, or no single number.
    """
    if isinstance(value, np.ndarray | np.generic) and (value.ndim, value.dtype.kind) in _KINDS:
        value = value.item()
    if getattr(value, "ndim", None) == 0:
        raise TypeError(
            f"{name} must be a number, but is {value!r}; pass float({name}), or, for gradients "
            "with respect to it, call pathkernel_core.differentiable_solution"
        )
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be one number, but is {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def positive(name: str, value: Any) -> float:
    """Return a number as a float after checking that it is positive and finite."""
    number = real_number(name, value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name} must be positive and finite, but is {number}")
    return number


def whole_number(name: str, value: Any, minimum: int = 1) -> int:
    """Return a whole number of Python or NumPy after checking that it is at least ``minimum``.

    Raises ValueError for other numbers, truth values and other objects.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    if number < minimum or is_truth:
        raise ValueError(f"{name} must be a whole number from {minimum}, not {value!r}")
    return number
