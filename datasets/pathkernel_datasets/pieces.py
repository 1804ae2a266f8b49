"""Pieces of a study: their keys, and their files, each there and whole or not there.

A piece is computed in one go, and is a function of the study and its key alone. The pieces of
``study.zarr`` are files in the folder ``study.zarr.pieces`` beside it until they are published. A
file holds a labelled dataset in NumPy's format npz, without pickled objects, and at its end the
SHA-256 of all that. Two processes that write the same piece do no harm.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.atomic import remove_leftovers, replacing
from pathkernel_core.local_files import open_regular
from pathkernel_datasets.errors import StoreWarning
from pathkernel_datasets.point import decimal
from pathkernel_datasets.study import POINT
from pathkernel_datasets.swept_option import described

_SUFFIX = ".npz"
_STRUCTURE = "structure"  # member of the file that names dimensions and attributes, as JSON
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Piece:
    """Key of a piece of a study; its values are those at all temperatures.

    Attributes
    ----------
    swept : str or None
        Option of which the study has several values.
    value : object
        Value of that option.
    seed : int
    width : float or None
        None for the data and the Gaussian process limits.
    """

    swept: str | None
    value: Any
    seed: int
    width: float | None

    @property
    def labels(self) -> dict[str, Any]:
        """Coordinates of the piece in the grid."""
        value = {} if self.swept is None else {self.swept: self.value}
        return value | {"seed": self.seed} | ({} if self.width is None else {"width": self.width})

    @property
    def data(self) -> Piece:
        """Piece of the same data that no width enters."""
        return dataclasses.replace(self, width=None)

    @property
    def name(self) -> str:
        """Name of the file."""
        labels = [f"{key}-{value}" for key, value in self.data.labels.items()]
        return "_".join(labels if self.width is None else [*labels, f"N-{decimal(self.width)}"])

    def includes(self, dims: Iterable[Any]) -> bool:
        """Whether variables with such dimensions are part of the piece."""
        return ("width" in dims) == (self.width is not None)

    def __str__(self) -> str:
        """The piece as a reader would write it."""
        labels = [described(key, value) for key, value in self.data.labels.items()]
        return ", ".join([*labels, "GP limit" if self.width is None else f"N = {self.width:g}"])


def pieces_of(grid: Mapping[str, Sequence[Any]], part: tuple[int, int] = (1, 1)) -> list[Piece]:
    """Pieces of a study with such a grid, or of a part of it, such as (1, 3), the first of three.

    Parts are of equal size, and of few seeds.
    """
    # seeds before widths, so that pieces of the same data follow one another, and a part, which is
    # a run of them, prepares the data of few seeds
    swept = next((name for name in grid if name not in POINT), None)
    values = [None] if swept is None else grid[swept]
    keys = itertools.product(values, grid["seed"], (None, *grid["width"]))
    pieces = [Piece(swept, *key) for key in keys]
    first, last = (len(pieces) * number // part[1] for number in (part[0] - 1, part[0]))
    return pieces[first:last]


def pieces_folder(store: Path) -> Path:
    """Folder of all pieces of a store."""
    store = Path(os.path.realpath(store))  # which takes links that lead nowhere
    return store.with_name(f"{store.name}.pieces")


class PieceFiles:
    """Pieces of a study or of one of its results.

    Parameters
    ----------
    store : Path
        Store that the pieces will be published in.
    kind : str
        ``"study"``, ``"sums"`` over training examples, ``"results"`` or ``"draws"``.
    """

    def __init__(self, store: Path, kind: str):
        self.root = pieces_folder(store)
        self.folder = self.root / kind

    def __contains__(self, name: str) -> bool:
        return self._file(name).exists()

    def names(self) -> list[str]:
        """Names of all pieces, also of those in folders inside."""
        files = (file.relative_to(self.folder) for file in self.folder.rglob(f"*{_SUFFIX}"))
        return sorted(file.as_posix().removesuffix(_SUFFIX) for file in files)

    def write(self, name: str, data: xr.Dataset | xr.DataTree, core: str) -> None:
        """Write a piece of a study with that core; an older one is replaced."""
        tree = data if isinstance(data, xr.DataTree) else xr.DataTree(data)
        nodes = {node.path: node.to_dataset(inherit=False) for node in tree.subtree}
        structure = {path: node.to_dict(data=False) for path, node in nodes.items()}
        members: dict[str, Any] = {
            f"{path}:{key}": _without_objects(node[key].values)
            for path, node in nodes.items()
            for key in node.variables
        }
        file = self._file(name)
        header = {"name": self._full_name(file), "core": core, "nodes": structure}
        members[_STRUCTURE] = np.array(json.dumps(header))
        try:
            _replace(file, members)
        except FileNotFoundError:  # a run that has published its study removed the folder just now
            _replace(file, members)

    def read(self, name: str, core: str) -> xr.DataTree | None:
        """A piece; None if it is missing, of another study or damaged, which a warning says."""
        file = self._file(name)
        if not os.path.lexists(file):
            return None
        header, members = _parsed(file)
        if header.get("name") != self._full_name(file):
            warnings.warn(
                f"the piece {file.relative_to(self.root.parent)} is damaged; a run computes it "
                "again",
                StoreWarning,
                stacklevel=3,
            )
            return None
        if header["core"] != core:  # left by another study of this name: no damage, and no warning
            return None
        for path, node in header["nodes"].items():
            for key, variable in (node["coords"] | node["data_vars"]).items():
                variable["data"] = members[f"{path}:{key}"]
        nodes = {path: xr.Dataset.from_dict(node) for path, node in header["nodes"].items()}
        return xr.DataTree.from_dict(nodes)

    def damaged(self) -> list[str]:
        """Files of pieces that are damaged."""
        return [
            str(file.relative_to(self.root.parent))
            for file in sorted(self.folder.rglob(f"*{_SUFFIX}"))
            if _parsed(file)[0].get("name") != self._full_name(file)
        ]

    def remove(self, names: Iterable[str] | None = None) -> None:
        """Remove pieces, all by default, and folders in which no other is left."""
        if names is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        for name in names or ():
            self._file(name).unlink(missing_ok=True)
            remove_leftovers(self._file(name))
        inside = (folder for folder in self.folder.rglob("*") if folder.is_dir())
        for folder in (*sorted(inside, reverse=True), self.folder, self.root):
            with suppress(OSError):  # other pieces are there
                os.rmdir(folder)

    def _full_name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"


def _replace(file: Path, members: Mapping[str, np.ndarray]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, several_writers=True) as partial, open(partial, "wb+") as stream:
        np.savez(stream, **members)  # type: ignore[arg-type]
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").digest()
        stream.write(digest)


def _parsed(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file; empty if it is damaged, or no plain file."""
    if (stream := open_regular(file)) is None:
        return {}, {}
    with stream:
        content = stream.read()
    # before NumPy parses anything: a damaged header may ask for any amount of memory
    if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        return {}, {}
    with np.load(io.BytesIO(content[:-_DIGEST]), allow_pickle=False) as arrays:
        members = dict(arrays)
    return json.loads(str(members.pop(_STRUCTURE))), members


def _without_objects(values: np.ndarray) -> np.ndarray:
    """Array that NumPy saves without pickling: text of fixed length."""
    return np.array(values.tolist(), dtype="U") if values.dtype.kind in "TO" else values
