"""Check the arguments of public functions of live models: models, batches, functions and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np
from torch import Tensor, nn

from pathkernel_core.arrays.scalars import whole_number

_MOST_SEEDS = 2**62  # of 64-bit generators, of which some take two for a seed


def check_model(model: Any) -> None:
    """Raise a TypeError unless a model is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, but is {described(model)}; give the built model, "
            "not its name, class, weights or a list"
        )


def check_batches(
    batches: Any, name: str = "batches", several: str = "such as a list or a DataLoader"
) -> None:
    """Raise a TypeError unless batches are several."""
    single = isinstance(batches, Tensor | Mapping | np.ndarray | str | bytes | nn.Module | type)
    # not by iter, which starts the workers of a DataLoader and draws a seed for them
    if single or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise TypeError(
            f"{name} must be several, {several}, but is {described(batches)}; put a single one "
            "into a list"
        )


def check_batch(inputs: Any) -> None:
    """Raise a TypeError if the inputs of a batch are no arguments of a model."""
    remedy = ""
    if isinstance(inputs, np.ndarray):
        remedy = "; take torch.as_tensor(batch)"
    elif isinstance(inputs, Mapping):
        if all(isinstance(name, str) for name in inputs):
            return
        remedy = ", whose keys are not all names of arguments"
    elif not (inputs is None or isinstance(inputs, str | bytes | Number | set)):
        return
    raise TypeError(
        "a batch must be a tensor, a mapping of the model's arguments, or a pair of one of these "
        f"and labels, but is {described(inputs)}{remedy}"
    )


def check_function(name: str, function: Any, gives: str) -> None:
    """Raise a TypeError unless an argument is a function, described by what it ``gives``."""
    if not callable(function):
        raise TypeError(f"{name} must be a function, {gives}, but is {described(function)}")


def check_report(report: Any) -> None:
    """Raise a TypeError unless a report of progress is a function or None."""
    if report is not None:
        check_function("report", report, "which takes a Progress")


def check_flag(name: str, flag: Any) -> None:
    """Raise a TypeError unless an option is True or False."""
    if not isinstance(flag, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, but is {flag!r}")


def check_seed(seed: Any) -> int:
    """Return a seed after checking that it is a whole number from 0 to 2⁶² − 1."""
    number = whole_number("seed", seed, 0)
    if number >= _MOST_SEEDS:
        raise ValueError(f"seed must be below 2**62, but is {number}")
    return number


def described(value: Any) -> str:
    """Return what an argument is, for messages: a value, or the name of its class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str | Number) or value is None:
        return repr(value)
    article = "an" if type(value).__name__[0].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"
