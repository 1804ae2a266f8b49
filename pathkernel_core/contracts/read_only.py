"""Views of data for the code of plugins, which must not change them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from pathkernel_core.action.solution import Minimum, Solution
from pathkernel_core.contracts.task import Examples, Realisation

_Value = TypeVar("_Value")
_RECORDS = (Realisation, Examples, Solution, Minimum)


def read_only(value: _Value) -> _Value:
    """Value with read-only views in place of NumPy's arrays; those of other libraries stay.

    Sequences, mappings, layers, realisations and solutions are copied for it, not the numbers. The
    problem of a solution stays as it is: a copy would compute again what it has not cached yet.
    Writing raises NumPy's ValueError, "assignment destination is read-only".
    """
    shown: Any = value
    if isinstance(value, np.ndarray):
        shown = value.view()
        shown.flags.writeable = False
    elif isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        shown = type(value)(map(read_only, value))  # type: ignore[call-arg]
    elif isinstance(value, Mapping):
        shown = {name: read_only(entry) for name, entry in value.items()}
    elif isinstance(value, _RECORDS):
        # a copy, not a new object: it has passed its checks, and keeps what it has cached
        shown = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(shown, field.name, read_only(getattr(value, field.name)))
    elif callable(convert := getattr(value, "convert", None)):  # a layer
        shown = convert(read_only)
    return shown
