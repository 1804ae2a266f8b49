"""Checks of a study's dataset from a file: all that its readers take for granted.

Files have checksums, but whoever changes a file can change those, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_datasets.study.study import POINT
from pathkernel_datasets.variables.labelling import json_attribute
from pathkernel_datasets.variables.quantities import core_variables
from pathkernel_datasets.variables.swept_option import OF_EACH_VALUE, SWEPT_OPTION

_TEXT_LABELS = ("path", "path_dual", "test_set", "sub_network", "head")
_TEXTS = ("study", "title", "task", "label", "references", "readout", "kind", "dtype", "backend")
_REQUIRED = ("study", "label", "task", "heads_per_layer")
_DIMENSIONS = (*POINT, "path", "path_dual", "test_set", "example")


def template_fault(dataset: xr.Dataset) -> str:
    """First fault of a study's dataset, with or without values; empty if there is none.

    A dataset of attributes alone is one whose labels are lost.
    """
    try:
        identity = json.loads(dataset.attrs["study"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return "it does not say which study it is of"
    fault = identity_fault(identity) or _attribute_fault(dataset.attrs)
    if dataset.coords:
        fault = fault or _label_fault(dataset, identity) or _variable_fault(dataset)
    return fault


def identity_fault(identity: Any) -> str:
    """First fault of the identity of a study, as JSON has it; empty if there is none."""
    try:
        for name, is_right in _IDENTITY.items():
            if not is_right(identity[name]):
                value = repr(identity[name])
                return f"the study's {name} are of another type than a run writes: {value}"
        sweep, options = identity.get("sweep", {}), identity["options"]
        if len(sweep) > 1 or not all(
            {str(value) for value in options[name]} == drawn.keys()
            and all(_texts(one["provenance"]) and _texts(one["drawn"]) for one in drawn.values())
            for name, drawn in sweep.items()
        ):
            return f"the values of {' and '.join(sweep)} are not those of its options"
        for name, value in options.items():
            if not (_is_value(value) or _is_list(value, _is_value)):
                return f"the option {name} is of another type than a run writes: {value!r}"
    except (AttributeError, KeyError, TypeError) as error:
        return f"the study is of another form than a run writes ({type(error).__name__}: {error})"
    return ""


def _is_value(value: Any) -> bool:
    """Whether JSON holds a single value of an option."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value is None or is_number or isinstance(value, str)


def _is_list(values: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(is_right, values))


def _is_axis(values: Any, kinds: Any, lowest: float) -> bool:
    """Whether values are distinct numbers, at least one, along a dimension of the grid."""
    numbers = _is_list(
        values, lambda v: type(v) in kinds and math.isfinite(v) and lowest <= v < 2**63
    )
    return numbers and 0 < len(values) == len({*values})


def _texts(entries: Any) -> bool:
    return isinstance(entries, dict) and all(isinstance(text, str) for text in entries.values())


def _are_variances(value: Any) -> bool:
    return (_is_value(value) and not isinstance(value, str)) or _is_list(value, _is_positive)


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


_SMALLEST = float(np.finfo(float).smallest_subnormal)
_IDENTITY: dict[str, Callable[[Any], bool]] = {
    "seeds": lambda values: _is_axis(values, (int,), 0),
    "temperatures": lambda values: _is_axis(values, (int, float), _SMALLEST),
    "widths": lambda values: _is_axis(values, (int, float), _SMALLEST),
    "variances": _are_variances,
    "task": lambda name: isinstance(name, str),
    "backend": lambda name: isinstance(name, str),
    "dtype": lambda name: isinstance(name, str),
    "options": lambda options: isinstance(options, dict),
    "provenance": _texts,
    "versions": _texts,
    "drawn": _texts,
}


def _attribute_fault(attributes: Mapping[str, Any]) -> str:
    """First fault of a dataset's attributes; those of single values of an option are among them."""
    plain = {name: np.asarray(value).tolist() for name, value in attributes.items()}
    if missing := [name for name in _REQUIRED if name not in plain]:
        return f"it has no attribute {missing[0]}"
    try:
        each = json_attribute(plain, OF_EACH_VALUE)
        parts = [plain, *(one["attributes"] for one in each.values())]
        sizes = [size for one in each.values() for size in one["sizes"].values()]
        if (SWEPT_OPTION in plain and not each) or not all(type(size) is int for size in sizes):
            return f"its attribute {OF_EACH_VALUE} is of another form than a run writes"
        for part in parts:
            for name, is_right in _ATTRIBUTES.items():
                if name in part and not is_right(part, name):
                    return f"its attribute {name} is of another type than a run writes"
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return "its attributes are of another form than a run writes"
    return ""


def _is_text(part: Mapping[str, Any], name: str) -> bool:
    return isinstance(part[name], str)


_ATTRIBUTES: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    **dict.fromkeys(
        (*_TEXTS, "token_kernel", "device", "skips", "likelihood", SWEPT_OPTION), _is_text
    ),
    **dict.fromkeys(
        ("sub_networks", "notes", "package_versions"),
        lambda part, name: isinstance(json_attribute(part, name), dict),
    ),
    "analyses": lambda part, name: _is_list(json_attribute(part, name), lambda v: type(v) is str),
    "heads_per_layer": lambda part, name: _is_list(part[name], lambda v: type(v) is int and v > 0),
    "variances": lambda part, name: _is_list(part[name], _is_positive),
    "training_examples": lambda part, name: type(part[name]) is int and part[name] > 0,
}


def _label_fault(dataset: xr.Dataset, identity: Mapping[str, Any]) -> str:
    """First fault of the labels of a dataset, of which those of the grid are in the identity."""
    grid = {name: identity[f"{name}s"] for name in POINT}
    grid |= {name: identity["options"][name] for name in identity.get("sweep", ())}
    for name in (*_DIMENSIONS, *grid):
        if name not in dataset.dims or name not in dataset.coords:
            return f"it has no labels along {name}"
    for name, labels in dataset.coords.variables.items():
        texts = labels.dtype.kind in "TUO"
        if texts and not all(isinstance(label, str) for label in labels.values.tolist()):
            return f"its {name} holds other labels than texts"
        if labels.dtype.kind not in "TUObiuf" or (
            labels.size and name not in grid and name in _TEXT_LABELS and not texts
        ):
            return f"its labels {name} are of type {labels.dtype}"
        if name in dataset.dims and labels.dims != (name,):
            return f"its labels {name} have the dimensions {labels.dims}"
        if any(not isinstance(v, str | int | float | list) for v in labels.attrs.values()):
            return f"its labels {name} have other attributes than a run writes"
    for name, values in grid.items():
        if dataset[name].values.tolist() != values:
            return f"its {name} is not that of the study"
    heads = np.atleast_1d(dataset.attrs["heads_per_layer"])
    if "head" in dataset.dims and heads.sum() != dataset.sizes["head"]:
        return "its heads_per_layer are not those of its labels"
    return ""


def _variable_fault(dataset: xr.Dataset) -> str:
    """First fault of the dimensions and types of a dataset's variables."""
    swept = [dataset.attrs[SWEPT_OPTION]] if SWEPT_OPTION in dataset.attrs else []
    core = core_variables(dataset.sizes.get("output", 1))
    for name, variable in dataset.variables.items():
        if name in core:
            dims, dtype = core[name]
            if (*swept, *dims) != variable.dims or variable.dtype != dtype:
                return (
                    f"its variable {name} has the dimensions {', '.join(map(str, variable.dims))} "
                    f"and the type {variable.dtype}, not {', '.join((*swept, *dims))} and {dtype}"
                )
        elif name in dataset.data_vars and variable.dtype.kind not in "biuf":
            return f"its variable {name} is of type {variable.dtype}"
        for key in ("long_name", "units", "equation", "flag_meanings"):
            if not isinstance(variable.attrs.get(key, ""), str):
                return f"its variable {name} has another attribute {key} than a text"
    for name in ("status", "reference_done", "test_label", "order_parameter", "predictor_mean"):
        if name not in dataset.data_vars:
            return f"it has no variable {name}"
    return ""
