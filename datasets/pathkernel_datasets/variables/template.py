"""The dataset of a study before anything is computed: every variable, with its labels.

A template is a dataset whose variables have the shape of the whole grid and take no memory: NaN, or
0 for whole numbers, everywhere. Pieces of a study fill a copy of it. As JSON it describes the study
in its folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.task import Realisation
from pathkernel_core.paths.heads import every_head
from pathkernel_core.paths.network import Network
from pathkernel_datasets.errors import AnalysisError, StudyError
from pathkernel_datasets.study.identity import text_of, versions
from pathkernel_datasets.study.prepared import ArrayLibrary, PreparedData
from pathkernel_datasets.study.study import POINT, Study
from pathkernel_datasets.variables.contexts import situation_of
from pathkernel_datasets.variables.head_axis import head_coordinates
from pathkernel_datasets.variables.labelling import (
    CHECKSUM,
    checksum,
    coordinate,
    coordinate_values,
    storable,
    variable_attributes,
)
from pathkernel_datasets.variables.measures import CALIBRATION_BINS
from pathkernel_datasets.variables.quantities import STATUS_CODES, declare_quantities

SCHEMA_VERSION = 7

_COORDINATES = {
    "seed": "seed of the task's data and heads",
    "temperature": "Gibbs temperature T, the variance of the observation noise",
    "width": "network width N",
    "path": "attention path, one head per layer",
    "path_dual": "attention path of the order parameter's second index",
    "output": "network output",
    "output_dual": "network output of the order parameter's second index",
    "test_set": "name of the set of test examples",
    "example": "index of the test example within its test set",
    "class": "class of the labels",
    "sub_network": "part of the network that is kept",
    "skip": "layer whose heads the skip connection bypasses",
}

KNOWN_DIMENSIONS = frozenset((*_COORDINATES, "head"))
"""Dimensions that every study labels itself."""


_REFERENCE = "Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv:2405.15926"
_RECORDED_VERSIONS = ("pathkernel", "numpy", "scipy", "array-api-compat", "jax", "torch", "cupy")


def study_template(
    study: Study,
    identity: str,
    label: str,
    analyses: Sequence[Analysis],
    data: PreparedData,
    library: ArrayLibrary,
) -> xr.Dataset:
    """Template of a study of one value of every option, from the data of its first seed.

    ``identity`` is that of the study, as JSON; ``label`` names it to readers.

    Raises
    ------
    StudyError
        If two variables have one name.
    AnalysisError
        If an analysis gives no labels for a dimension.
    """
    realisation, network = data.realisation, data.network
    coords = coordinates(network, realisation, study.grid)
    if data.has_probabilities:
        coords["class"] = coordinate("class", data.class_names, _COORDINATES["class"])
    situation = situation_of(data)
    for analysis in analyses:
        for dim, labels in analysis.coordinates(situation).items():
            meaning = analysis.dimensions.get(dim, dim.replace("_", " "))
            coords.setdefault(dim, coordinate(dim, labels, meaning))
        for variable in analysis.variables:
            if unlabelled := [
                dim for dim in variable.dims if dim not in {*coords, *KNOWN_DIMENSIONS}
            ]:
                raise AnalysisError(
                    f"analysis {analysis.name!r} declares {variable.name!r} with the dimension "
                    f"{unlabelled[0]!r}, for which its coordinates() gives no labels"
                )
    quantities = declare_quantities(data, analyses)
    names = Counter([*coords, *(quantity.name for quantity in quantities)])
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise StudyError(
            f"the study has two variables named {', '.join(twice)}; an analysis must give its own "
            "another name"
        )
    sizes = {name: values.size for name, values in coords.items() if values.dims == (name,)}
    empty = {
        quantity.name: _empty(quantity.dims, quantity.dtype, variable_attributes(quantity), sizes)
        for quantity in quantities
    }
    empty["status"].attrs |= {
        "flag_values": list(STATUS_CODES.values()),
        "flag_meanings": " ".join(name.replace(" ", "_") for name in STATUS_CODES),
    }
    attributes = {
        "schema_version": SCHEMA_VERSION,
        "references": _REFERENCE,
        "study": identity,
        "title": f"Attention-path theory of {study.task.name}",
        "task": study.task.name,
        "label": label,
        "analyses": [analysis.name for analysis in analyses],
        "sub_networks": {
            name: " and ".join(
                f"heads {', '.join(map(str, heads))} of layer {layer}"
                for layer, heads in enumerate(heads_of_layers, start=1)
            )
            for name, heads_of_layers in realisation.sub_networks.items()
        },
        "heads_per_layer": list(network.heads),
        "variances": list(network.variances),
        **({"skips": network.skip_words} if network.has_skips else {}),
        **{
            name: getattr(study, name)
            for name in ("input_scale", "token_kernel")
            if getattr(study, name) is not None
        },
        **(
            {"likelihood": study.likelihood, "calibration_bins": CALIBRATION_BINS}
            if data.has_probabilities
            else {}
        ),
        "readout": str(realisation.readout),
        "kind": str(realisation.kind),
        "centred": realisation.centred,
        "notes": dict(realisation.notes),
        "training_examples": data.n_examples,
        "dtype": study.dtype,
        "backend": study.backend,
        "device": library.device,
        "package_versions": versions(_RECORDED_VERSIONS),
    }
    return storable(xr.Dataset(empty, coords, attributes))


def coordinates(
    network: Network, realisation: Realisation, grid: Mapping[str, Sequence[Any]]
) -> dict[str, xr.Variable]:
    """Coordinates of a study, by name.

    The grid has the values of seed, temperature and width. The longest test set sets the length of
    ``example``. Outputs are numbered from 0 unless the task names them.
    """
    labels: dict[str, Iterable[Any]] = {
        **{name: grid[name] for name in POINT},
        "path": network.path_labels,
        "path_dual": network.path_labels,
        "test_set": realisation.test_sets,
        "example": range(max(len(test.labels) for test in realisation.test_sets.values())),
        "sub_network": realisation.sub_networks,
    }
    if network.has_skips:
        labels["skip"] = range(1, network.n_layers + 1)
    if network.outputs > 1:
        names = realisation.output_names
        outputs = range(network.outputs) if names is None else names
        labels |= {"output": outputs, "output_dual": outputs}
    units = {"temperature": "1", "width": "1"}
    variables = {
        name: coordinate(name, values, _COORDINATES[name], units.get(name, ""))
        for name, values in labels.items()
    }
    variables |= head_coordinates(every_head(network.heads))
    for layer, heads in enumerate(zip(*network.paths), start=1):
        meaning = f"head of layer {layer} on the path"
        meaning += ", 0 for its skip connection" if 0 in heads else ""
        for dim in ("path", "path_dual"):
            variables[f"{dim}_layer_{layer}"] = coordinate(dim, heads, meaning)
    return variables


def on_grid(template: xr.Dataset, grid: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """A template on another grid, some dimensions of which may be left out."""
    labels = {
        dim: xr.Variable(dim, coordinate_values(values), template.variables[dim].attrs)
        for dim, values in grid.items()
    }
    coords = dict(template.coords.variables) | labels
    sizes = {**template.sizes, **{dim: len(values) for dim, values in grid.items()}}
    variables = {
        name: _empty(variable.dims, variable.dtype, variable.attrs, sizes)
        for name, variable in template.data_vars.variables.items()
    }
    return xr.Dataset(variables, coords, template.attrs)


def to_json(template: xr.Dataset) -> str:
    """A template as text: its attributes and sizes, all variables, and values of coordinates."""
    # sorted by name, as Zarr lists them: the same text whatever the template was read from;
    # variables and not data arrays, which xarray would make with all their coordinates
    coords = {
        str(name): {
            "dims": labels.dims,
            "attributes": labels.attrs,
            "values": labels.values.tolist(),
        }
        for name, labels in sorted(template.coords.variables.items())
    }
    variables = {
        str(name): {
            "dims": values.dims,
            "attributes": values.attrs,
            "dtype": str(values.dtype),
        }
        for name, values in sorted(template.data_vars.variables.items())
    }
    attributes = template.attrs | {"study": json.loads(template.attrs["study"])}
    sizes = {str(dim): template.sizes[dim] for dim in sorted(template.sizes)}
    content = {"attributes": attributes, "sizes": sizes, "coords": coords, "variables": variables}
    attributes[CHECKSUM] = checksum(content)
    return json.dumps(content, indent=2) + "\n"


def from_json(content: Mapping[str, Any]) -> xr.Dataset | None:
    """Template of the content of a text from :func:`to_json`; None if it is another, or damaged."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        attributes = dict(content["attributes"])
        if attributes.pop(CHECKSUM) != checksum(content):
            return None
        coords = {
            name: xr.Variable(
                entry["dims"], coordinate_values(entry["values"]), entry["attributes"]
            )
            for name, entry in content["coords"].items()
        }
        variables = {
            name: _empty(entry["dims"], entry["dtype"], entry["attributes"], content["sizes"])
            for name, entry in content["variables"].items()
        }
        return xr.Dataset(variables, coords, attributes | {"study": text_of(attributes["study"])})
    return None


def _empty(
    dims: Sequence[Any], dtype: Any, attributes: Mapping[str, Any], sizes: Mapping[Any, int]
) -> xr.Variable:
    """Variable without values, which takes no memory."""
    # one number, broadcast: a template of a large grid is made, compared and sent all the time
    value = np.array(np.nan if np.dtype(dtype).kind == "f" else 0, dtype=dtype)
    return xr.Variable(dims, np.broadcast_to(value, [sizes[dim] for dim in dims]), attributes)
