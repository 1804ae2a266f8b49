"""The folder of a study: all that is computed of it, complete, in progress or damaged.

    NAME/study.json     the dataset without values: labels, and all that determines the study
    NAME/pieces/        while something is computed: a file for every seed, and seed and width
    NAME/study.zarr     the published study, once all pieces are there; then the pieces go
    NAME/sums/          sums over training examples that do not fit into memory
    NAME/OPTION-VALUE/  a folder of the same kind for each of several values of an option

Nothing else is state: a piece is there and whole, or it is not there; an empty file among the
pieces tells that they are of the study, and not of its results.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import (
    IRREGULAR,
    file_sizes,
    irregular_entries,
    is_damage,
    read_json,
)
from pathkernel_core.system.memory import CLAIM_RATIO, bytes_in_words, claim_bound, memory_bound
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.piece_files import SUFFIX, read_arrays, warn_of_piece
from pathkernel_datasets.folder.pieces import Piece, decimal, put_values, values_fault
from pathkernel_datasets.folder.published import PublishedStudy, Values, publish
from pathkernel_datasets.folder.zarr_files import attributes_of, open_dataset
from pathkernel_datasets.study.identity import core_of, grid_of
from pathkernel_datasets.variables.template import SCHEMA_VERSION, from_json, on_grid, to_json
from pathkernel_datasets.variables.template_faults import template_fault

DESCRIPTION, STUDY, PIECES, SUMS = "study.json", "study.zarr", "pieces", "sums"
MARKER = "in-progress"
OWN = (DESCRIPTION, STUDY, PIECES, SUMS)
RESUME = "run the command again that computes it"
REMEDY = "run the command again that computed it, which computes what is damaged again"


def described_study(path: Path) -> xr.Dataset | None:
    """Dataset of the study in a folder without values, by its file; None if it is lost.

    Raises
    ------
    StudyError
        If another version of pathkernel wrote it.
    """
    template = from_json(read_json(path / DESCRIPTION))
    if template is not None:
        _check_version(path, template.attrs.get("schema_version"))
    return None if template is None or _fault(template) else template


def description_fault(path: Path) -> str:
    """Fault of a description of a study, whose checksum is right, in words; empty if unknown."""
    template = from_json(read_json(path / DESCRIPTION))
    return "" if template is None else _fault(template)


def stored_template(path: Path) -> xr.Dataset | None:
    """Dataset of the study in a folder without values, by its file or else by the published one.

    None if neither says which study it is; without coordinates if those of the published one are
    damaged.
    """
    if (template := described_study(path)) is not None:
        return template
    attributes = attributes_of(path / STUDY) if (path / STUDY).exists() else {}
    if "study" not in attributes:
        return None
    _check_version(path, attributes.get("schema_version"))
    template = xr.Dataset(attrs=attributes)
    if _fault(template):
        return None
    try:
        dataset = on_grid(open_dataset(path / STUDY), {}).load()
    except Exception as error:  # whatever the reader of a damaged file raises
        if not is_damage(error):
            raise
        return template
    return template if _fault(dataset) else dataset


def write_template(path: Path, template: xr.Dataset) -> None:
    """Write the dataset without values into a folder, unless it is there."""
    content = to_json(template).encode()
    # as bytes: a damaged file need not be text
    if not (path / DESCRIPTION).exists() or (path / DESCRIPTION).read_bytes() != content:
        with replace_file(path / DESCRIPTION) as file:
            file.write_bytes(content)


def _check_version(path: Path, version: Any) -> None:
    if version != SCHEMA_VERSION:
        raise StudyError(
            f"{path} has schema version {version}, this pathkernel reads version "
            f"{SCHEMA_VERSION}; install the version of pathkernel that wrote it"
        )


def _fault(template: xr.Dataset) -> str:
    """Fault of a study's dataset; values that a study sweeps must be names of folders, too."""
    if fault := template_fault(template):
        return fault
    study = json.loads(template.attrs["study"])
    for name in study.get("sweep", ()):
        values = study["options"][name]
        if not name.isidentifier() or not all(re.fullmatch(r"[\w.+ -]+", str(v)) for v in values):
            return f"the values of {name} can be no names of folders"
    return ""


def unreadable(template: xr.Dataset) -> str:
    """Fault for which a template that a file describes would be refused; empty if there is none."""
    try:
        described = from_json(json.loads(to_json(template)))
    except (TypeError, ValueError) as error:
        return f"it cannot be described as JSON ({error})"
    return "it is not described as it is" if described is None else _fault(described)


def irregular_files(path: Path) -> Iterator[str]:
    """Lines about pipes, devices, broken links and links to folders among a study's files."""
    for name in OWN:
        for entry in irregular_entries(path / name):
            yield f"{entry} is {IRREGULAR}; remove it"


def check_regular(path: Path) -> None:
    """Raise a StudyError if there is a pipe, a device or such a link among a study's files."""
    for line in irregular_files(path):
        raise StudyError(line)


@dataclass(frozen=True)
class Folder:
    """The folder of a study, of one value of every option or of several.

    Attributes
    ----------
    path : Path
    text : str
        Identity of the study as JSON, see :func:`pathkernel_datasets.study.identity.identity_of`.
    """

    path: Path
    text: str

    def __reduce__(self) -> tuple:
        """Workers read the files themselves."""
        return type(self), (self.path, self.text)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that determines the study."""
        return json.loads(self.text)

    @property
    def in_progress(self) -> bool:
        """Whether something is computed or joined that is not published."""
        return os.path.lexists(self.path / PIECES / MARKER)

    @property
    def is_published(self) -> bool:
        """Whether the published study is on the whole grid, and nothing is computed any more."""
        return not self.in_progress and self.published_text == self.text

    @property
    def published_text(self) -> str:
        """Identity of the published study as JSON; empty if there is none, or it is damaged."""
        published = self.path / STUDY
        return str(attributes_of(published).get("study", "")) if published.exists() else ""

    @cached_property
    def grid(self) -> dict[str, list]:
        """Values along every dimension of the study's grid."""
        return grid_of(self.identity)

    @cached_property
    def core(self) -> str:
        """All that determines the study besides its grid."""
        return self._core_of(self.text)

    def _core_of(self, text: str) -> str:
        return core_of(json.loads(text))

    @property
    def fault(self) -> str:
        """Fault of a published study that is missing, or is another than that of the folder.

        While the study is in progress an older one, or that of a single value, may be there.
        """
        published = self.published_text
        if self.in_progress or published == self.text:
            return ""
        if not published:
            return "" if (self.path / STUDY).exists() else f"{self.path / STUDY} is missing"
        is_other = self._core_of(published) != self.core
        difference = "holds another study" if is_other else "is on another grid"
        return f"{self.path / STUDY} {difference} than {DESCRIPTION}"

    @cached_property
    def template(self) -> xr.Dataset:
        """The dataset of the study without values.

        Raises
        ------
        StudyError
            If it is lost, until the study is run again.
        """
        template = stored_template(self.path)
        # not that of another study, put in its place
        if (
            template is None
            or not template.coords
            or self._core_of(template.attrs["study"]) != self.core
        ):
            lost = "is damaged" if (self.path / STUDY).exists() else "is not complete"
            raise StudyError(f"{self.path} {lost}, and its labels are lost; {REMEDY}")
        return on_grid(template, self.grid).assign_attrs(study=self.text)

    def check_claim(self, size: float) -> None:
        """Raise a StudyError if a dataset takes far more memory than the files of the folder."""
        stored = sum(size for _, size in file_sizes(self.path))
        if size > min(memory_bound(), claim_bound(stored)):
            raise StudyError(
                f"{self.path / DESCRIPTION} describes a dataset of {bytes_in_words(size)}, but the "
                f"folder holds {bytes_in_words(stored)}, and no more is read than half of the "
                f"memory, or {CLAIM_RATIO} times the files; {RESUME}, or take a smaller grid"
            )

    def begin(self) -> None:
        """Mark the study as in progress, before anything else of it changes."""
        (self.path / PIECES).mkdir(exist_ok=True)
        (self.path / PIECES / MARKER).touch()

    def end(self) -> None:
        """Remove the pieces of the published study; those of its results stay."""
        pieces = self.path / PIECES
        for file in (
            *pieces.glob(f"seed-*{SUFFIX}"),
            *pieces.glob(".seed-*"),
            *(self.path / SUMS).glob(".*"),
            pieces / MARKER,  # last: without it the study is not in progress
        ):
            file.unlink(missing_ok=True)
        remove_empty(pieces)


@dataclass(frozen=True)
class StudyFolder(Folder):
    """A study of one value of every option, in the folder that it is computed into."""

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
        if values is not None and (fault := self.piece_fault(piece, values)):
            warn_of_piece(file, fault)
            values = None
        if values is None and (self.path / STUDY).exists():
            values = self._published_study.read(piece.seed, piece.width, self.core)
            # where the metadata of the root are damaged, arrays may be lost without a trace
            is_identified = not values or self._published_study.identity
            if not is_identified and not self.declared_variables(piece).keys() <= values.keys():
                values = {}
        return values or {}

    def piece_of(self, file: Path) -> Piece | None:
        """The piece whose file has such a name; None if it is that of no piece of the study."""
        seed, _, width = file.stem.removeprefix("seed-").partition("_N-")
        seeds = {str(value): value for value in self.grid["seed"]}
        widths = {decimal(value): value for value in self.grid["width"]} | {"": None}
        piece = Piece(seeds[seed], widths[width]) if seed in seeds and width in widths else None
        return piece if piece is not None and self.file(piece).name == file.name else None

    def piece_fault(self, piece: Piece, values: Values) -> str:
        """Fault of values of a piece, which its file may hold; empty if there is none."""
        return values_fault(self.template, self.declared_variables(piece), values)

    def missing_temperatures(self, piece: Piece, is_sound: bool) -> list[float]:
        """Temperatures that a piece lacks; a published study that ``is_sound`` is not read."""
        if is_sound and not os.path.lexists(self.file(piece)) and (self.path / STUDY).exists():
            published = self._published_study.temperatures(piece.seed, piece.width, self.core)
            return self.lacking_temperatures({"temperature": np.array(published)})
        return self.lacking_temperatures(self.read(piece))

    def declared_variables(self, piece: Piece) -> dict[str, tuple[str, ...]]:
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
    def _published_study(self) -> PublishedStudy:
        return PublishedStudy(self.path / STUDY)

    def lacking_temperatures(self, values: Values) -> list[float]:
        """Temperatures of the study that values of a piece lack."""
        computed = values.get("temperature", np.zeros(0)).tolist()
        return [value for value in self.grid["temperature"] if value not in computed]

    def dataset(self) -> xr.Dataset:
        """All that is computed, in memory; NaN, or 0 for whole numbers, where nothing is."""
        self.check_claim(self.template.nbytes)
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
                if complete and self.lacking_temperatures(values):
                    raise MissingPieceError
                put_values(dataset, piece, seeds.index(piece.seed), values)

    def publish(self) -> None:
        """Make the pieces one Zarr and remove them, if all are computed."""
        self.check_claim(self.template.nbytes / len(self.grid["seed"]))
        with suppress(MissingPieceError):  # raised within the writing, which it undoes
            publish(self.path / STUDY, self.template, partial(self._fill, complete=True))
            self.end()


class MissingPieceError(Exception):
    """A piece is missing that another process is to compute."""


def remove_empty(folder: Path) -> None:
    """Remove those folders inside a folder, and itself, in which nothing is left."""
    for inside, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # something is there
            os.rmdir(inside)
