"""The folder of a study: all that is computed of it, complete, in progress or damaged.

    NAME/study.json     all that determines the study, and its grid
    NAME/pieces/        while something is computed: a file for every seed, and seed and width
    NAME/study.zarr     the published study, once all pieces are there; then the pieces go
    NAME/sums/          sums over training examples that do not fit into memory
    NAME/OPTION-VALUE/  a folder of the same kind for each of several values of an option

Nothing else is state: a piece is there and whole, or it is not there.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.atomic import replacing
from pathkernel_core.local_files import open_regular
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.identity import core_of, grid_of, text_of
from pathkernel_datasets.labelling import json_attribute
from pathkernel_datasets.piece_files import SUFFIX, read_arrays
from pathkernel_datasets.published import PublishedStudy, Values, publish, published_identity
from pathkernel_datasets.template import SCHEMA_VERSION, from_json, on_grid, to_json
from pathkernel_datasets.zarr_files import attributes_of, open_dataset

DESCRIPTION, STUDY, PIECES, SUMS = "study.json", "study.zarr", "pieces", "sums"
REMEDY = "run the command again that computed it, which computes what is damaged again"


@dataclass(frozen=True)
class Piece:
    """Key of a piece of a study, which is computed in one go; it has values at all temperatures.

    Attributes
    ----------
    seed : int
    width : float or None
        None for the data and the Gaussian process limits.
    """

    seed: int
    width: float | None

    @property
    def name(self) -> str:
        """Name of the piece's file."""
        width = "" if self.width is None else f"_N-{decimal(self.width)}"
        return f"seed-{self.seed}{width}"

    def __str__(self) -> str:
        """The piece as a reader would write it."""
        return f"seed {self.seed}, " + ("GP limit" if self.width is None else f"N = {self.width:g}")


def decimal(value: float) -> str:
    """A number in decimals, as names of files have it: 1000 and 0.0001."""
    return np.format_float_positional(value, trim="-")


@dataclass(frozen=True)
class Description:
    """Content of ``study.json``.

    Attributes
    ----------
    identity : str
        That of the study, as JSON.
    analyses : tuple of str
        Names of the analyses whose variables the study has.
    meaning : str
        Description of the option that has several values, if any has.
    """

    identity: str
    analyses: tuple[str, ...]
    meaning: str = ""

    def write(self, folder: Path) -> None:
        """Write the file into a folder."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "study": json.loads(self.identity),
            "analyses": list(self.analyses),
            "meaning": self.meaning,
        }
        checked = content | {"crc32": _checksum(content)}
        with replacing(folder / DESCRIPTION) as file:
            file.write_text(json.dumps(checked, indent=2) + "\n")


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def described_study(path: Path) -> Description | None:
    """Description of the study in a folder, by its file; None if that is missing or damaged.

    Raises
    ------
    StudyError
        If another version of pathkernel wrote it.
    """
    if (stream := open_regular(path / DESCRIPTION)) is None:
        return None
    with stream, suppress(AttributeError, KeyError, RecursionError, TypeError, ValueError):
        content = json.loads(stream.read())
        if content.pop("crc32") == _checksum(content):
            _check_version(path, content["schema_version"])
            identity = text_of(content["study"])
            _check_plain(content["study"])
            return Description(identity, tuple(content["analyses"]), content["meaning"])
    return None


def stored_description(path: Path) -> Description | None:
    """Description of the study in a folder, by its file or else by the published study."""
    if (description := described_study(path)) is not None:
        return description
    attributes = attributes_of(path / STUDY) if (path / STUDY).exists() else {}
    if "study" not in attributes:
        return None
    _check_version(path, attributes["schema_version"])
    identity, dataset = attributes["study"], open_dataset(path / STUDY)
    meanings = [dataset[name].attrs["long_name"] for name in json.loads(identity).get("sweep", ())]
    analyses = tuple(json_attribute(attributes, "analyses"))
    return Description(identity, analyses, "".join(meanings))


def _check_version(path: Path, version: Any) -> None:
    if version != SCHEMA_VERSION:
        raise StudyError(
            f"{path} has schema version {version}, this pathkernel reads version "
            f"{SCHEMA_VERSION}; install the version of pathkernel that wrote it"
        )


def _check_plain(identity: Mapping[str, Any]) -> None:
    """Check that names and values that a study sweeps can be names of folders."""
    for name in identity.get("sweep", {}):
        values = map(str, identity["options"][name])
        if not name.isidentifier() or not all(re.fullmatch(r"[\w.+ -]+", v) for v in values):
            raise ValueError(f"the option {name!r} or one of its values is no plain word")


@dataclass(frozen=True)
class StudyFolder:
    """A study of one value of every option, in the folder that it is computed into.

    Attributes
    ----------
    path : Path
    text : str
        Identity of the study as JSON, see :func:`pathkernel_datasets.identity.identity_of`.
    """

    path: Path
    text: str

    def __reduce__(self) -> tuple:
        """Workers read the files themselves."""
        return StudyFolder, (self.path, self.text)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that determines the study."""
        return json.loads(self.text)

    @cached_property
    def core(self) -> str:
        """All that determines a piece of the study besides its key."""
        return core_of(self.identity)

    @cached_property
    def grid(self) -> dict[str, list]:
        """Seeds, temperatures and widths of the study."""
        return grid_of(self.identity)

    @property
    def pieces(self) -> list[Piece]:
        """All pieces: of every seed one for each width, and one of the data and the limits."""
        # seeds before widths, so that pieces of the same data follow one another
        keys = itertools.product(self.grid["seed"], (*self.grid["width"], None))
        return [Piece(*key) for key in keys]

    def file(self, piece: Piece) -> Path:
        """File of a piece."""
        return self.path / PIECES / f"{piece.name}{SUFFIX}"

    def read(self, piece: Piece) -> Values:
        """Values of a piece, with the temperatures that they have; empty if there are none."""
        file = self.file(piece)
        values = read_arrays(file, self.core) if os.path.lexists(file) else None
        if values is None and (self.path / STUDY).exists():
            values = self._published.read(piece.seed, piece.width, self.core)
            # where the metadata of the root are damaged, arrays may be lost without a trace
            is_identified = not values or self._published.identity
            if not is_identified and not self.declared(piece).keys() <= values.keys():
                values = {}
        return values or {}

    def declared(self, piece: Piece) -> dict[str, tuple[str, ...]]:
        """Names of all variables that a piece has, with their dimensions."""
        return {
            name: dims
            for name, dims in self._dims.items()
            if ("width" in dims) == (piece.width is not None)
        }

    @cached_property
    def _dims(self) -> dict[str, tuple[str, ...]]:
        """Dimensions of all variables along the seeds."""
        variables = {str(name): self.template.variables[name] for name in self.template.data_vars}
        return {name: one.dims for name, one in variables.items() if "seed" in one.dims}

    @cached_property
    def _published(self) -> PublishedStudy:
        return PublishedStudy(self.path / STUDY)

    def lacking(self, values: Values) -> list[float]:
        """Temperatures of the study that values of a piece lack."""
        computed = values.get("temperature", np.zeros(0)).tolist()
        return [value for value in self.grid["temperature"] if value not in computed]

    @property
    def in_progress(self) -> bool:
        """Whether pieces are computed that are not published."""
        return os.path.lexists(self._template_file)

    @property
    def is_published(self) -> bool:
        """Whether the published study is on the whole grid, and nothing is computed any more."""
        return not self.in_progress and self.published_text == self.text

    @property
    def published_text(self) -> str:
        """Identity of the published study as JSON; empty if there is none, or it is damaged."""
        return published_identity(self.path / STUDY)

    @cached_property
    def template(self) -> xr.Dataset:
        """The dataset of the study without values.

        Raises
        ------
        StudyError
            If it is lost, until the study is run again.
        """
        template, published = self._stored_template, self.published_text
        # not that of another study, put in its place
        if template is None and published and core_of(json.loads(published)) == self.core:
            template = open_dataset(self.path / STUDY)
        if template is None:
            lost = "is damaged" if (self.path / STUDY).exists() else "is not complete"
            raise StudyError(f"{self.path} {lost}, and its labels are lost; {REMEDY}")
        return on_grid(template, self.grid).assign_attrs(study=self.text)

    @property
    def has_template(self) -> bool:
        """Whether the template is stored for those who read while the study is computed."""
        return self._stored_template is not None

    @property
    def _stored_template(self) -> xr.Dataset | None:
        if (stream := open_regular(self._template_file)) is not None:
            with stream, suppress(AttributeError, KeyError, RecursionError, TypeError, ValueError):
                return from_json(stream.read().decode())
        return None

    @property
    def _template_file(self) -> Path:
        return self.path / PIECES / "template.json"

    def write_template(self, template: xr.Dataset) -> None:
        """Store the dataset without values, for those who read while the study is computed."""
        self._template_file.parent.mkdir(exist_ok=True)
        with replacing(self._template_file) as file:
            file.write_text(to_json(template))

    def dataset(self) -> xr.Dataset:
        """All that is computed, in memory; NaN, or 0 for whole numbers, where nothing is."""
        dataset = self.template.copy(deep=True)
        self._fill(dataset)
        return dataset

    def _fill(self, dataset: xr.Dataset, complete: bool = False) -> None:
        """Put all values that are computed into a dataset on some of the seeds.

        Raises MissingPieceError if they are to be ``complete`` and one is missing.
        """
        seeds = dataset["seed"].values.tolist()
        for piece in self.pieces:
            if piece.seed in seeds:
                values = self.read(piece)
                if complete and self.lacking(values):
                    raise MissingPieceError
                _put(dataset, piece, seeds.index(piece.seed), values)

    def publish(self) -> None:
        """Make the pieces one Zarr and remove them, if all are computed."""
        with suppress(MissingPieceError):  # raised within the writing, which it undoes
            publish(self.path / STUDY, self.template, partial(self._fill, complete=True))
            self.remove_pieces()

    def remove_pieces(self) -> None:
        """Remove the pieces of the study; those of its results stay."""
        pieces = self.path / PIECES
        partial_files = (*pieces.glob(".seed-*"), *pieces.glob(f".{self._template_file.name}.*"))
        for file in (*pieces.glob(f"seed-*{SUFFIX}"), *partial_files):
            file.unlink(missing_ok=True)
        self._template_file.unlink(missing_ok=True)  # last: without it the study is not in progress
        for file in (self.path / SUMS).glob(".*"):
            file.unlink(missing_ok=True)
        remove_empty(pieces)


class MissingPieceError(Exception):
    """A piece is missing that another process is to compute."""


def _put(dataset: xr.Dataset, piece: Piece, seed: int, values: Values) -> None:
    """Put the values of a piece into a dataset at an index of its seed.

    A temperature that the dataset lacks is left out.
    """
    # by NumPy's indices, not by xarray's labels: this runs for each of thousands of pieces
    rows = values.get("temperature", np.zeros(0)).tolist()
    temperatures = dataset["temperature"].values.tolist()
    known = [row for row, value in enumerate(rows) if value in temperatures]
    position: dict[str, Any] = {"seed": seed}
    position["temperature"] = [temperatures.index(rows[row]) for row in known]
    if piece.width is not None:
        position["width"] = dataset["width"].values.tolist().index(piece.width)
    for name, array in values.items():
        if name not in dataset.data_vars:
            continue
        target = dataset.variables[name]
        taken = array[known] if "temperature" in target.dims else array
        # test sets of other seeds and values of the swept option may be larger
        inside = [dim for dim in target.dims if dim not in position]
        shape = np.shape(taken)[np.ndim(taken) - len(inside) :]
        index = position | dict(zip(inside, map(slice, shape)))
        target.values[tuple(index[dim] for dim in target.dims)] = taken


def remove_empty(folder: Path) -> None:
    """Remove those folders inside a folder, and itself, in which nothing is left."""
    inside = (entry for entry in folder.rglob("*") if entry.is_dir())
    for entry in (*sorted(inside, reverse=True), folder):
        with suppress(OSError):  # something is there
            os.rmdir(entry)
