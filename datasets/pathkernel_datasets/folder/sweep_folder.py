"""The folder of several values of an option: a study of each value, and the joined dataset.

The values share dimensions and labels, but for numbers of examples: smaller ones are padded with
NaN.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.folder.published import publish
from pathkernel_datasets.folder.study_folder import (
    STUDY,
    SUMS,
    Folder,
    MissingPieceError,
    StudyFolder,
)
from pathkernel_datasets.folder.zarr_files import open_dataset
from pathkernel_datasets.study.identity import core_of, single_identity, text_of
from pathkernel_datasets.study.study import POINT, describe_option
from pathkernel_datasets.variables.labelling import coordinate
from pathkernel_datasets.variables.swept_option import OF_EACH_VALUE, SWEPT_OPTION, list_values
from pathkernel_datasets.variables.template import KNOWN_DIMENSIONS, on_grid


def folder_name(option: str, value: Any) -> str:
    """Name of the folder of a value of an option."""
    return f"{option}-{value}"


def folder_of(path: Path, text: str) -> StudyFolder | SweepFolder:
    """The folder of a study, whose identity is given as JSON."""
    return (SweepFolder if json.loads(text).get("sweep") else StudyFolder)(path, text)


@dataclass(frozen=True)
class SweepFolder(Folder):
    """A study of several values of an option, in its folder."""

    @property
    def option(self) -> str:
        """Name of the option."""
        (name,) = self.identity["sweep"]
        return name

    @cached_property
    def folders(self) -> dict[Any, StudyFolder]:
        """Folder of the study of every value, on the grid of the whole study."""
        folders = {}
        for value in self.identity["options"][self.option]:
            identity = single_identity(self.identity, self.option, value)
            path = self.path / folder_name(self.option, value)
            folders[value] = StudyFolder(path, text_of(identity))
        return folders

    def _core_of(self, text: str) -> str:
        identity = json.loads(text)
        # the values of the option, and the files of each, are along the grid
        swept = identity.get("sweep", ())
        options = {name: v for name, v in identity["options"].items() if name not in swept}
        return core_of(identity | {"options": options, "provenance": {}})

    def dataset(self) -> xr.Dataset:
        """All that is computed, in memory; NaN, or 0 for whole numbers, where nothing is."""
        self.check_claim(self.template.nbytes)
        dataset = self.template.copy(deep=True)
        for number, folder in enumerate(self.folders.values()):
            _put(dataset, number, folder.dataset())
        return dataset

    def publish(self) -> None:
        """Join the studies of all values, if all of them are published on the whole grid."""
        if any(folder.in_progress for folder in self.folders.values()):
            return
        studies = [open_dataset(folder.path / STUDY) for folder in self.folders.values()]

        def fill(dataset: xr.Dataset) -> None:
            grid = {name: dataset[name].values for name in POINT}
            for number, study in enumerate(studies):
                # a study of one value may have been extended by itself
                indices = {name: study.get_index(name).get_indexer(grid[name]) for name in POINT}
                if any((index < 0).any() for index in indices.values()):  # not yet described there
                    raise MissingPieceError
                _put(dataset, number, study.isel(indices).load())

        with suppress(MissingPieceError):  # raised within the writing, which it undoes
            publish(self.path / STUDY, self.template, fill, {self.option: 1})
            self.end()

    def end(self) -> None:
        """Remove the pieces and sums of a study of a single value before."""
        shutil.rmtree(self.path / SUMS, ignore_errors=True)
        super().end()


def _put(dataset: xr.Dataset, number: int, study: xr.Dataset) -> None:
    """Put the study of a value into a joined dataset, whose first dimension is the option's."""
    for name, variable in study.data_vars.items():
        inside = map(slice, variable.shape)  # the study may have fewer examples
        dataset.variables[name].values[number, *inside] = variable.values


def joined_template(
    name: str, meaning: str, templates: Mapping[Any, xr.Dataset], text: str
) -> xr.Dataset:
    """Template of a study of several values of an option, from those of the single values.

    The identity of the study is given as JSON, the option by its name and meaning.

    Raises
    ------
    TaskError
        If they do not fit into one dataset.
    """
    values, every = list(templates), list(templates.values())
    first = every[0]
    if name in {*KNOWN_DIMENSIONS, *first.variables}:
        raise TaskError(
            f"the option {name!r} cannot have several values: the dataset calls something else so; "
            "rename the option, or run each value into a folder of its own"
        )
    # xr.concat would fill what one value lacks with NaN, which would then look like a failure
    for value, template in templates.items():
        differing = {*template.data_vars, *template.dims} ^ {*first.data_vars, *first.dims}
        differing |= {
            dim for dim in {*first.dims} - differing if not _agree(template[dim], first[dim])
        }
        if differing:
            raise TaskError(
                f"{describe_option(name, value)} and {describe_option(name, values[0])} do not fit "
                f"into one dataset, since they differ in {', '.join(sorted(map(str, differing)))}; "
                f"run each value of {name!r} into a folder of its own"
            )
    longest = {dim: max((one[dim].values for one in every), key=len) for dim in first.dims}
    varying = sorted(dim for dim in longest if len({one.sizes[dim] for one in every}) > 1)
    common = {
        key: entry
        for key, entry in first.attrs.items()
        if key != "study" and all(one.attrs.get(key) == entry for one in every)
    }
    of_each_value = {
        str(value): {
            "attributes": {
                key: entry for key, entry in one.attrs.items() if key not in {*common, "study"}
            },
            "sizes": {dim: one.sizes[dim] for dim in varying},
        }
        for value, one in templates.items()
    }
    label, single = first.attrs["label"], describe_option(name, values[0])
    labels_of_others = [part for part in label.split(", ") if part != single]
    joined_label = ", ".join([*labels_of_others, describe_option(name, list_values(values))])
    labels = coordinate(name, values, meaning)
    joined = on_grid(first, longest).expand_dims({name: len(values)}).assign_coords({name: labels})
    joined.attrs = common | {
        "label": joined_label,
        SWEPT_OPTION: name,
        OF_EACH_VALUE: json.dumps(of_each_value),
        "study": text,
    }
    return joined


def _agree(labels: xr.DataArray, reference: xr.DataArray) -> bool:
    """Whether labels agree; of numbered examples the shorter are the beginning of the longer."""
    may_be_shorter = labels.name == "example" or labels.name not in KNOWN_DIMENSIONS
    size = min(labels.size, reference.size)
    same_size = labels.size == reference.size or may_be_shorter
    return same_size and np.array_equal(labels.values[:size], reference.values[:size])
