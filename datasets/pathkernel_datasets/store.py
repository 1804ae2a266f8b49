"""The Zarr store of a study: made whole, filled point by point, checked when opened."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.atomic import replacing_folder
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.labelling import drawable, json_attribute, storable, variable_attributes
from pathkernel_datasets.schema import MARKER_NAMES, MARKERS, POINT, STATUS_CODES
from pathkernel_datasets.study import SCHEMA_VERSION

_REFERENCE = "Tiberi, Mignacco, Irie, Sompolinsky, NeurIPS 2024, arXiv:2405.15926"
_INTEGERS = {"evaluations": "int32", **dict.fromkeys(MARKER_NAMES, "int8")}


class Store:
    """Result store of one study, open for filling.

    Every grid point is written with its marker last. Whatever is killed, a point is either marked
    and whole or it is computed again.
    """

    def __init__(self, path: Path):
        self.path = path
        self._group = zarr.open_group(path, mode="r+", use_consolidated=False)
        self._arrays = {name: self._group[name] for name in self._group.array_keys()}

    @classmethod
    def create(
        cls,
        path: Path,
        variables: Iterable[Variable],
        coordinates: Mapping[str, xr.Variable],
        attributes: Mapping[str, str],
        study: Mapping[str, Any],
    ) -> Store:
        """Make an empty store beside ``path`` and move it into place, whole or not at all.

        Raises
        ------
        StoreError
            If there is not enough disk space, or the folder cannot be written.
        """
        variables = (*variables, *MARKERS)
        sizes = {
            name: len(values) for name, values in coordinates.items() if values.dims == (name,)
        }
        _check_space(path, variables, sizes)
        dataset = xr.Dataset(
            coords=coordinates,
            attrs={
                **attributes,
                "schema_version": SCHEMA_VERSION,
                "references": _REFERENCE,
                # "variables" is a name of NetCDF's own
                "variable_names": [variable.name for variable in variables],
                "study": json.dumps(study, sort_keys=True),
            },
        )
        try:
            with replacing_folder(path, overwrite=False) as partial:
                storable(dataset).to_zarr(partial, mode="w", zarr_format=3, consolidated=False)
                group = zarr.open_group(partial, mode="r+")
                for variable in variables:
                    _create_array(group, variable, sizes)
                consolidate(partial)
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
        except FileExistsError:
            raise StoreError(f"another run has just made {path}; start again") from None
        return cls(path)

    @classmethod
    def resume(cls, path: Path, study: Mapping[str, Any]) -> Store:
        """Open an existing store to go on with the same study.

        Raises
        ------
        StoreError
            If it is no store, is damaged, or holds another study.
        """
        held = check_store(path)
        different = _differences(held, study)
        if different:
            raise StoreError(
                f"{path} holds another study and is left as it is ({'; '.join(different)}). Choose "
                "another file (--out on the command line), or run with the store's own settings to "
                "go on with it"
            )
        return cls(path)

    @property
    def analyses(self) -> list[str]:
        """Names of the analyses whose variables the store holds."""
        return list(json_attribute(self._group.attrs, "analyses"))

    @property
    def markers(self) -> list[str]:
        """Names of the markers that the store has."""
        return sorted(MARKER_NAMES & set(self._arrays))

    def marker(self, name: str) -> np.ndarray:
        """Values of a marker over its grid, as :meth:`read` gives them."""
        return self.read(name, ())

    def holds(self, name: str) -> bool:
        """Whether the store has a variable."""
        return name in self._arrays

    def read(self, name: str, index: tuple[int, ...]) -> np.ndarray:
        """Values of a variable at an index of its first dimensions; at (), all of them.

        Raises
        ------
        StoreError
            If the file that holds them is damaged.
        """
        try:
            return self._arrays[name][(*index, ...)]
        except Exception as error:  # whatever the decoder of a damaged file raises
            raise StoreError(
                f"{self.path} is damaged: its variable {name!r} cannot be read ({error}); "
                "choose another file"
            ) from None

    def write(
        self, index: tuple[int, ...], values: Mapping[str, Any], marker: str, code: int
    ) -> None:
        """Write variables at a grid index, then the marker that vouches for them.

        A value may be shorter than its variable in a dimension (a test set with fewer examples);
        the rest stays NaN.
        """
        for name, value in values.items():
            value = np.asarray(value)
            region = (*index, *(slice(length) for length in value.shape))
            self._arrays[name][region] = value
        self._arrays[marker][index] = code


def check_store(path: Path) -> dict[str, Any]:
    """Identity of the study that a store holds, after checking that the store is whole.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    remedy = "choose another file"
    if not path.exists():
        raise StoreError(f"there is no store at {path}; make one with: pathkernel run TASK")
    try:
        group = zarr.open_group(path, mode="r", use_consolidated=False)
        attributes = dict(group.attrs)
        present = set(group.array_keys())
    except Exception as error:  # zarr raises whatever its parsers and the file system raise
        raise StoreError(f"{path} is no readable Zarr store ({error}); {remedy}") from None
    if "schema_version" not in attributes or "study" not in attributes:
        raise StoreError(f"{path} is a Zarr store, but not one of pathkernel; {remedy}")
    if attributes["schema_version"] != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {attributes['schema_version']}, this pathkernel reads "
            f"version {SCHEMA_VERSION}; install the version of pathkernel that wrote it"
        )
    listed = "variables" if "variables" in attributes else "variable_names"  # older, newer
    try:
        study = json.loads(attributes["study"])
        missing = set(json_attribute(attributes, listed)) - present
    except (TypeError, json.JSONDecodeError) as error:
        raise StoreError(
            f"{path} is damaged: its study is unreadable ({error}); {remedy}"
        ) from None
    if missing:
        raise StoreError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}; {remedy}")
    for name in POINT:
        try:
            intact = np.array_equal(group[name][...], study[f"{name}s"])
        except Exception:  # whatever the decoder of a damaged file raises
            intact = False
        if not intact:
            raise StoreError(f"{path} is damaged: its coordinate {name!r} is lost; {remedy}")
    return study


def open_store(path: str | os.PathLike) -> xr.Dataset:
    """Open a result store as a lazy dataset, its text of fixed length so that xarray draws it.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    path = Path(path)
    check_store(path)
    try:
        return drawable(xr.open_zarr(path, chunks=None))
    except Exception as error:
        raise StoreError(f"{path} is damaged ({error}); run the study again elsewhere") from None


def _create_array(group: zarr.Group, variable: Variable, sizes: Mapping[str, int]) -> None:
    """Array filled with NaN, one chunk per grid point so that points are written alone."""
    dtype = _INTEGERS.get(variable.name, "float64")
    shape = tuple(sizes[dim] for dim in variable.dims)
    attributes: dict[str, Any] = variable_attributes(variable)
    if variable.name == "status":
        attributes["flag_values"] = list(STATUS_CODES.values())
        attributes["flag_meanings"] = " ".join(name.replace(" ", "_") for name in STATUS_CODES)
    group.create_array(
        name=variable.name,
        shape=shape,
        chunks=tuple(1 if dim in POINT else max(1, sizes[dim]) for dim in variable.dims),
        dtype=dtype,
        fill_value=0 if dtype != "float64" else np.nan,
        dimension_names=variable.dims,
        attributes=attributes,
    )


def consolidate(path: Path) -> None:
    """Write a store's index of metadata, without which plain ``xr.open_zarr`` warns."""
    with warnings.catch_warnings():
        # every reader of Zarr v3 understands it
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(path)


def _check_space(path: Path, variables: Iterable[Variable], sizes: Mapping[str, int]) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise StoreError(f"the folder {folder} does not exist; make it, or choose another file")
    if not os.access(folder, os.W_OK):
        raise StoreError(f"the folder {folder} cannot be written; choose another file")
    need = sum(8 * np.prod([sizes[dim] for dim in variable.dims]) for variable in variables)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise StoreError(
            f"the study needs up to {need / 1e9:.2f} GB, but {folder} has {free / 1e9:.2f} GB "
            "free; choose another disk, fewer seeds or a smaller grid"
        )


def _differences(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What differs between two studies, entry by entry, in words."""
    lines = []
    for key in sorted({**held, **wanted}):
        one, other = held.get(key), wanted.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            lines += [f"{key}, {line}" for line in _differences(one, other)]
        elif one != other:
            lines.append(f"{key}: the store has {json.dumps(one)}, this run {json.dumps(other)}")
    return lines
