"""The dataset of a study before anything is computed: every variable, with its labels.

A template is a dataset whose variables have the shape of the whole grid and take no memory: NaN, or
0 for whole numbers, everywhere. Pieces of a study fill it.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Analysis, Situation
from pathkernel_core.task import Realisation
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.errors import StoreError, TaskError
from pathkernel_datasets.identity import identity_of, versions
from pathkernel_datasets.labelling import (
    coordinate,
    coordinate_values,
    storable,
    variable_attributes,
)
from pathkernel_datasets.pieces import Piece
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.quantities import STATUS_CODES, AnalysisError, declared
from pathkernel_datasets.schema import KNOWN_DIMENSIONS, coordinates
from pathkernel_datasets.study import Study
from pathkernel_datasets.swept_option import (
    OF_EACH_VALUE,
    SWEPT_OPTION,
    described,
    label_of,
    listed,
)

SCHEMA_VERSION = 5

_REFERENCE = "Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv:2405.15926"
_RECORDED_VERSIONS = ("pathkernel", "numpy", "scipy", "array-api-compat", "jax", "torch", "cupy")


def study_template(
    study: Study, analyses: Sequence[Analysis], realisations: Sequence[Realisation]
) -> xr.Dataset:
    """Template of a study, from a realisation of every single study, of its first seed.

    Raises
    ------
    TaskError
        If the values of an option that has several do not fit into one dataset.
    StoreError
        If two variables have one name.
    AnalysisError
        If an analysis gives no labels for a dimension.
    """
    library = array_library(study.backend, study.dtype)
    templates = []
    for single, realisation in zip(study.singles, realisations):
        data = prepare_data(single, single.seeds[0], library, realisation, training_only=True)
        templates.append(_single(single, study.sweep, data, analyses, library))
    template = _joined(study, templates) if study.sweep else templates[0]
    return template.assign_attrs(
        schema_version=SCHEMA_VERSION,
        references=_REFERENCE,
        study=json.dumps(identity_of(study, realisations), sort_keys=True),
    )


def on_grid(template: xr.Dataset, grid: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """A template on another grid, some dimensions of which may be left out."""
    labels = {
        dim: xr.Variable(dim, coordinate_values(values), template[dim].attrs)
        for dim, values in grid.items()
    }
    coords = {str(name): coord.variable for name, coord in template.coords.items()} | labels
    sizes = {**template.sizes, **{dim: len(values) for dim, values in grid.items()}}
    variables = {
        name: _empty(variable.dims, variable.dtype, variable.attrs, sizes)
        for name, variable in data_variables(template).items()
    }
    return xr.Dataset(variables, coords, template.attrs)


def data_variables(dataset: xr.Dataset) -> dict[str, xr.Variable]:
    """Variables of a dataset without their coordinates, which take time to put together."""
    return {str(name): dataset.variables[name] for name in dataset.data_vars}


def blank(piece: Piece, template: xr.Dataset) -> xr.Dataset:
    """A piece without values."""
    variables = {}
    for name, variable in data_variables(template).items():
        if piece.includes(variable.dims):
            dims = [dim for dim in variable.dims if dim not in piece.labels]
            empty = _empty(dims, variable.dtype, variable.attrs, template.sizes)
            variables[name] = empty.copy()
    return xr.Dataset(variables, {"temperature": template["temperature"].variable})


def fill(dataset: xr.Dataset, piece: Piece, values: xr.Dataset) -> None:
    """Put the values of a piece into a dataset, at the temperatures that both have."""
    # by NumPy's indices, not by xarray's labels: this runs for each of thousands of pieces
    values = values.isel(temperature=values["temperature"].isin(dataset["temperature"]).values)
    labels = {dim: label for dim, label in piece.labels.items() if dim in dataset.dims}
    position: dict[Any, Any] = {
        dim: dataset.get_index(dim).get_loc(label) for dim, label in labels.items()
    }
    position["temperature"] = dataset.get_index("temperature").get_indexer(values["temperature"])
    targets = data_variables(dataset)
    for name, variable in data_variables(values).items():
        if name in targets:
            # at other values of the swept option, dimensions such as examples may be shorter
            inside = {dim: slice(size) for dim, size in variable.sizes.items()} | position
            index = tuple(inside[dim] for dim in targets[name].dims)
            targets[name].values[index] = variable.values


def _empty(
    dims: Sequence[Any], dtype: Any, attributes: Mapping[str, Any], sizes: Mapping[Any, int]
) -> xr.Variable:
    """Variable without values, which takes no memory."""
    # one number, broadcast: a template of a large grid is made, compared and sent all the time
    value = np.array(np.nan if np.dtype(dtype).kind == "f" else 0, dtype=dtype)
    return xr.Variable(dims, np.broadcast_to(value, [sizes[dim] for dim in dims]), attributes)


def _single(
    study: Study,
    swept: Iterable[str],
    data: PreparedData,
    analyses: Sequence[Analysis],
    library: ArrayLibrary,
) -> xr.Dataset:
    """Template of a study of one value of every option."""
    realisation, network = data.realisation, data.network
    coords = coordinates(network, realisation, study.grid)
    situation = Situation(realisation, data.xi, data.labels, network)
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
    quantities = declared(data, analyses)
    names = Counter([*coords, *(quantity.name for quantity in quantities)])
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise StoreError(
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
    label = label_of(study, swept)
    attributes = {
        "title": f"Attention-path theory of {label}: {study.task.summary}",
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
        **({"input_scale": study.input_scale} if study.input_scale is not None else {}),
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


def _joined(study: Study, templates: Sequence[xr.Dataset]) -> xr.Dataset:
    """Template of a study that sweeps an option, from those of its single values."""
    ((name, values),) = study.sweep.items()
    first = templates[0]
    if name in {*KNOWN_DIMENSIONS, *first.variables}:
        raise TaskError(
            f"the option {name!r} cannot have several values: the store calls something else so; "
            "rename the option, or run each value into a store of its own"
        )
    # xr.concat would fill what one value lacks with NaN, which would then look like a failure
    for value, template in zip(values, templates):
        differing = {*template.data_vars, *template.dims} ^ {*first.data_vars, *first.dims}
        differing |= {
            dim for dim in {*first.dims} - differing if not _agree(template[dim], first[dim])
        }
        if differing:
            raise TaskError(
                f"{described(name, value)} and {described(name, values[0])} do not fit into one "
                f"store, since they differ in {', '.join(sorted(map(str, differing)))}; run each "
                f"value of {name!r} into a store of its own"
            )
    longest = {
        dim: max((template[dim].values for template in templates), key=len) for dim in first.dims
    }
    varying = [dim for dim in longest if len({template.sizes[dim] for template in templates}) > 1]
    common = {
        key: entry
        for key, entry in first.attrs.items()
        if all(template.attrs.get(key) == entry for template in templates)
    }
    of_each_value = {
        str(value): {
            "attributes": {key: e for key, e in template.attrs.items() if key not in common},
            "sizes": {dim: template.sizes[dim] for dim in varying},
        }
        for value, template in zip(values, templates)
    }
    label, single = first.attrs["label"], described(name, values[0])
    labels_of_others = [part for part in label.split(", ") if part != single]
    joined_label = ", ".join([*labels_of_others, described(name, listed(values))])
    options = (*dataclasses.fields(study), *dataclasses.fields(study.task))
    (declared,) = (entry for entry in options if entry.name == name)
    labels = coordinate(name, values, declared.metadata.get("help") or described(name))
    joined = on_grid(first, longest).expand_dims({name: len(values)}).assign_coords({name: labels})
    joined.attrs = common | {
        "label": joined_label,
        "title": first.attrs["title"].replace(label, joined_label, 1),
        SWEPT_OPTION: name,
        OF_EACH_VALUE: json.dumps(of_each_value),
    }
    return joined


def _agree(labels: xr.DataArray, reference: xr.DataArray) -> bool:
    """Whether labels agree; of numbered examples the shorter are the beginning of the longer."""
    may_be_shorter = labels.name == "example" or labels.name not in KNOWN_DIMENSIONS
    size = min(labels.size, reference.size)
    same_size = labels.size == reference.size or may_be_shorter
    return same_size and np.array_equal(labels.values[:size], reference.values[:size])
