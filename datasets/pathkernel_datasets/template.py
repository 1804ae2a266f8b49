"""What the dataset of a study holds before anything is computed: every variable, with its labels.

A template is a dataset whose variables have the shape of the whole grid and no memory: NaN, or 0
for whole numbers, everywhere. Pieces of a study fill it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Analysis, Situation
from pathkernel_datasets.array_libraries import ArrayLibrary, array_library
from pathkernel_datasets.errors import StoreError, TaskError
from pathkernel_datasets.evaluation import AnalysisError, variables
from pathkernel_datasets.labelling import (
    attributes_digest,
    coordinate,
    storable,
    variable_attributes,
)
from pathkernel_datasets.prepared import PreparedData, prepare_data
from pathkernel_datasets.schema import KNOWN_DIMENSIONS, POINT, STATUS_CODES, coordinates
from pathkernel_datasets.study import Study, versions
from pathkernel_datasets.swept import OF_EACH_VALUE, SWEPT_OPTION, label_of, listed, words_of

SCHEMA_VERSION = 3
IDENTITY_COPY = "data_done"
"""Variable whose attribute ``study`` is a copy of the store's, to mend it from."""

_REFERENCE = "Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv:2405.15926"
_RECORDED_VERSIONS = ("pathkernel", "numpy", "scipy", "array-api-compat", "jax", "torch", "cupy")
_WHOLE_NUMBERS = {
    "evaluations": "int32",
    "minima": "int32",
    **dict.fromkeys(("status", "reference_done", "data_done"), "int8"),
}


def study_template(study: Study, analyses: Sequence[Analysis]) -> xr.Dataset:
    """Template of a study, whose data are drawn with the first seed.

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
    templates, realisations = [], []
    for single in study.singles:
        data = prepare_data(single, single.seeds[0], library, training_only=True)
        templates.append(_single(single, study.sweep, data, analyses, library))
        realisations.append(data.realisation)
    template = _joined(study, templates) if study.sweep else templates[0]
    identity = json.dumps(study.identity(realisations), sort_keys=True)
    template[IDENTITY_COPY].attrs["study"] = identity
    attributes = template.attrs | {
        "schema_version": SCHEMA_VERSION,
        "references": _REFERENCE,
        "variable_names": json.dumps(list(template.data_vars)),  # "variables" is NetCDF's own
        "study": identity,
    }
    return template.assign_attrs(attributes, checksum=attributes_digest(attributes))


def empty(
    dims: Sequence[str], dtype: Any, attributes: Mapping[str, Any], sizes: Mapping[Any, int]
) -> xr.Variable:
    """Variable without values, which takes no memory."""
    fill = np.array(np.nan if np.dtype(dtype).kind == "f" else 0, dtype=dtype)
    return xr.Variable(dims, np.broadcast_to(fill, [sizes[dim] for dim in dims]), attributes)


def _single(
    study: Study,
    swept: Iterable[str],
    data: PreparedData,
    analyses: Sequence[Analysis],
    library: ArrayLibrary,
) -> xr.Dataset:
    """Template of a study of one value of every option."""
    network, realisation = data.network, data.realisation
    situation = Situation(realisation, data.xi, data.labels, network)
    labels: dict[str, Any] = {}
    meanings: dict[str, str] = {}
    for analysis in analyses:
        meanings |= analysis.dimensions
        labels |= analysis.coordinates(situation)
        _check_dimensions(analysis, labels)
    coords = coordinates(
        network,
        {name: study.grid[name] for name in POINT},
        {name: len(test.labels) for name, test in realisation.test_sets.items()},
        realisation.sub_networks,
        labels,
        meanings,
        realisation.output_names,
    )
    declared = list(variables(data, analyses))
    names = [*coords, *(variable.name for variable in declared)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StoreError(
            f"the study has two variables named {', '.join(twice)}; an analysis must give its own "
            "another name"
        )
    sizes = {name: values.size for name, values in coords.items() if values.dims == (name,)}
    holding = {
        variable.name: empty(
            variable.dims,
            _WHOLE_NUMBERS.get(variable.name, "float64"),
            variable_attributes(variable),
            sizes,
        )
        for variable in declared
    }
    holding["status"].attrs["flag_values"] = list(STATUS_CODES.values())
    meaning = " ".join(name.replace(" ", "_") for name in STATUS_CODES)
    holding["status"].attrs["flag_meanings"] = meaning
    label = label_of(study.task, swept)
    attributes = {
        "title": f"Attention-path theory of {label}: {study.task.summary}",
        "task": study.task.name,
        "label": label,
        "analyses": [analysis.name for analysis in analyses],
        "sub_networks": {
            name: " and ".join(
                f"heads {', '.join(map(str, heads))} of layer {layer}"
                for layer, heads in enumerate(kept, start=1)
            )
            for name, kept in realisation.sub_networks.items()
        },
        "heads_per_layer": list(network.heads),
        "variances": list(network.variances),
        **({"skips": network.skip_words} if network.has_skips else {}),
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
    return storable(xr.Dataset(holding, coords, attributes))


def _check_dimensions(analysis: Analysis, labels: Mapping[str, Any]) -> None:
    for variable in analysis.variables:
        for dim in variable.dims:
            if dim not in labels and dim not in KNOWN_DIMENSIONS:
                raise AnalysisError(
                    f"analysis {analysis.name!r} declares {variable.name!r} with the dimension "
                    f"{dim!r}, for which its coordinates() gives no labels"
                )


def _joined(study: Study, templates: Sequence[xr.Dataset]) -> xr.Dataset:
    """Template of a study that sweeps an option, from those of its single values.

    Raises
    ------
    TaskError
        If they differ in more than numbers of examples, or the option has a name that the store
        needs for something else.
    """
    ((name, values),) = study.sweep.items()
    first = templates[0]
    if name in {*KNOWN_DIMENSIONS, *first.variables}:
        raise TaskError(
            f"the option {name!r} cannot have several values: the store calls something else so; "
            "rename the option, or run each value into a store of its own"
        )
    longest = dict(first.coords)
    for value, template in zip(values, templates):
        differing = {str(key) for key in {*template.data_vars} ^ {*first.data_vars}}
        for dim in map(str, template.sizes):
            labels = template[dim]
            if not _fit(dim, labels.values, longest.get(dim)):
                differing.add(dim)
            elif labels.size > longest[dim].size:
                longest |= {key: held for key, held in template.coords.items() if dim in held.dims}
        if differing:
            raise TaskError(
                f"{words_of(name, value)} and {words_of(name, values[0])} do not fit into one "
                f"store, since they differ in {', '.join(sorted(differing))}; run each value of "
                f"{name!r} into a store of its own"
            )
    common = {
        key: entry
        for key, entry in first.attrs.items()
        if all(template.attrs.get(key) == entry for template in templates)
    }
    of_each = {}
    for value, template in zip(values, templates):
        attributes = {key: entry for key, entry in template.attrs.items() if key not in common}
        sizes = {
            dim: template.sizes[dim]
            for dim in first.sizes
            if any(other.sizes[dim] < longest[dim].size for other in templates)
        }
        of_each[str(value)] = {"attributes": attributes, "sizes": sizes}
    label, single = str(first.attrs["label"]), words_of(name, values[0])
    others = [words for words in label.split(", ") if words != single]
    joined = ", ".join([*others, words_of(name, listed(values))])
    title = str(first.attrs["title"]).replace(label, joined, 1)
    declared = {entry.name: entry for entry in dataclasses.fields(study.task)}[name]
    meaning = declared.metadata.get("help") or words_of(name)
    sizes = {dim: longest[dim].size for dim in first.sizes} | {name: len(values)}
    holding = {
        key: empty((name, *map(str, held.dims)), held.dtype, held.attrs, sizes)
        for key, held in first.data_vars.items()
    }
    coords = {name: coordinate(name, values, meaning)}
    coords |= {str(key): held.variable for key, held in longest.items()}
    swept = {SWEPT_OPTION: name, OF_EACH_VALUE: json.dumps(of_each)}
    return storable(xr.Dataset(holding, coords, common | {"label": joined, "title": title} | swept))


def _fit(dim: str, labels: np.ndarray, longest: xr.DataArray | None) -> bool:
    """Whether labels agree; of numbered examples the shorter are the beginning of the longer."""
    if longest is None or (dim in KNOWN_DIMENSIONS - {"example"} and longest.size != labels.size):
        return False
    size = min(longest.size, labels.size)
    return np.array_equal(labels[:size], longest.values[:size])
