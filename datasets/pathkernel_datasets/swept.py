"""Several values of an option of a task in one store: a dimension in front of the others.

What is stored of the values has the same dimensions with the same labels, but for those that count
examples: there shorter ones are padded, with NaN.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_core.task import Task
from pathkernel_datasets.errors import NotInStoreError, TaskError
from pathkernel_datasets.labelling import coordinate, storable
from pathkernel_datasets.schema import KNOWN_DIMENSIONS
from pathkernel_datasets.study import Study

_OPTION, _VALUES = "swept_option", "of_each_value"  # attributes


@dataclass(frozen=True)
class Layout:
    """What the store of a study is to hold: its variables, coordinates and attributes."""

    variables: Sequence[Variable]
    coordinates: Mapping[str, xr.Variable]
    attributes: Mapping[str, Any]


def joined_layout(study: Study, layouts: Sequence[Layout]) -> Layout:
    """Layout of a study that sweeps an option, from those of its single values.

    Raises
    ------
    TaskError
        If they differ in more than numbers of examples, or the option has a name that the store
        needs for something else.
    """
    ((name, values),) = study.sweep.items()
    first = layouts[0]
    taken = {*KNOWN_DIMENSIONS, *first.coordinates, *(held.name for held in first.variables)}
    if name in taken:
        raise TaskError(
            f"the option {name!r} cannot have several values: the store calls something else so; "
            "rename the option, or run each value into a store of its own"
        )
    longest = dict(first.coordinates)
    for value, layout in zip(values, layouts):
        differing = {held.name for held in {*layout.variables} ^ {*first.variables}}
        for dim, held in layout.coordinates.items():
            if held.dims != (dim,):
                continue  # it goes with another
            if not _fit(dim, held.values, longest.get(dim)):
                differing.add(dim)
            elif held.size > longest[dim].size:
                longest[dim] = held
        if differing:
            raise TaskError(
                f"{words_of(name, value)} and {words_of(name, values[0])} do not fit into one "
                f"store, since they differ in {', '.join(sorted(differing))}; run each value of "
                f"{name!r} into a store of its own"
            )
    common = {
        key: held
        for key, held in first.attributes.items()
        if all(layout.attributes[key] == held for layout in layouts)
    }
    of_each = {}
    for value, layout in zip(values, layouts):
        own = {key: held for key, held in layout.attributes.items() if key not in common}
        sizes = {
            dim: layout.coordinates[dim].size
            for dim, held in longest.items()
            if any(each.coordinates[dim].size < held.size for each in layouts)
        }
        of_each[str(value)] = {"attributes": storable(xr.Dataset(attrs=own)).attrs, "sizes": sizes}
    held, old = str(first.attributes["label"]), words_of(name, values[0])
    others = [words for words in held.split(", ") if words != old]
    label = ", ".join([*others, words_of(name, _listed(values))])
    common |= {"label": label, "title": str(first.attributes["title"]).replace(held, label, 1)}
    declared = {entry.name: entry for entry in dataclasses.fields(study.task)}[name]
    own_labels = coordinate(name, values, declared.metadata.get("help") or words_of(name))
    return Layout(
        first.variables,
        {name: own_labels, **longest},
        common | {_OPTION: name, _VALUES: of_each},
    )


def _fit(dim: str, labels: np.ndarray, held: xr.Variable | None) -> bool:
    """Whether labels are the same, or of numbered examples the one the beginning of the other."""
    if held is None or (dim in KNOWN_DIMENSIONS - {"example"} and held.size != labels.size):
        return False
    size = min(held.size, labels.size)
    return np.array_equal(labels[:size], held.values[:size])


def words_of(name: str, value: Any = "") -> str:
    """An option and its value as a reader would write them."""
    return f"{name.replace('_', ' ')} {value}".rstrip()


def label_of(task: Task, names: Iterable[str]) -> str:
    """Label of a task, with the values of those options even where they are at their default."""
    words = task.label.split(", ")
    named = (words_of(name, getattr(task, name)) for name in names)
    return ", ".join([*words, *(own for own in named if own not in words)])


def _listed(values: Sequence[Any]) -> str:
    first, *others, last = map(str, values)
    return f"{', '.join([first, *others])} and {last}" if len(others) < 6 else f"{first} to {last}"


def swept_option(dataset: xr.Dataset) -> str | None:
    """Name of the option of which a dataset holds several values, None if there is none."""
    name = dataset.attrs.get(_OPTION)
    return name if name in dataset.dims else None


def each_value(dataset: xr.Dataset) -> dict[Any, xr.Dataset]:
    """Studies of the single values of an option that a dataset holds, by value.

    Each is as if it had been computed alone: padding is taken off. A dataset that holds no several
    values is the only one, by None.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`.
    """
    name = swept_option(dataset)
    if name is None:
        return {None: dataset}
    own = json.loads(dataset.attrs[_VALUES])
    found = {}
    for place, value in enumerate(dataset[name].values.tolist()):
        sizes = {dim: slice(size) for dim, size in own[str(value)]["sizes"].items()}
        part = dataset.isel({name: place, **sizes}, drop=True)
        attributes = part.attrs | own[str(value)]["attributes"]
        found[value] = part.assign_attrs(attributes)
        for key in (_OPTION, _VALUES):
            del found[value].attrs[key]
    return found


def check_single(dataset: xr.Dataset) -> None:
    """Check that a dataset does not hold several values of an option.

    Raises
    ------
    NotInStoreError
        If it does.
    """
    name = swept_option(dataset)
    if name is not None:
        values = dataset[name].values.tolist()
        raise NotInStoreError(
            f"the dataset holds {len(values)} values of the option {name!r} ({_listed(values)}); "
            f"take one: pathkernel.each_value(dataset)[{values[0]!r}]"
        )
