"""Sums over training examples that are too many to hold: a map over blocks, and a sum of sums.

The sums of some blocks are a piece, and so is the total. Parts are added in order, so that the
total is the same bit for bit whoever computes them, and however often that was interrupted.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from pathlib import Path

import xarray as xr

from pathkernel_core.backend import to_host
from pathkernel_core.progress import Progress, Report
from pathkernel_core.statistics import SufficientStatistics
from pathkernel_datasets.array_libraries import ArrayLibrary
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.pieces import Piece, PieceFiles
from pathkernel_datasets.prepared import PreparedData

_BLOCKS_OF_PART = 16

_DIMS = {
    "gram": ("path", "input", "path_dual", "input_dual"),
    "projections": ("path", "input", "output"),
    "label_square": (),
    "n_examples": (),
}


def sum_examples(
    piece: Piece, store: Path, core: str, data: PreparedData, library: ArrayLibrary, report: Report
) -> SufficientStatistics:
    """Sums over all training examples of a seed, which are a piece beside the store.

    Raises
    ------
    TaskError
        If the blocks hold another number of examples than they say.
    """
    files = PieceFiles(store, "sums")
    total = _read(files, piece.name, core)
    if total is None:
        parts = _parts(piece, store, core, data, library, report)
        total = functools.reduce(operator.add, parts)
        if total.n_examples != data.n_examples:
            raise TaskError(
                f"the task's blocks hold {total.n_examples} examples instead of {data.n_examples}"
            )
        _write(files, piece.name, core, total)
    return total.convert(library.asarray)


def _parts(
    piece: Piece, store: Path, core: str, data: PreparedData, library: ArrayLibrary, report: Report
) -> Iterator[SufficientStatistics]:
    count = number_of_parts(data.n_blocks)
    for number in range(count):
        share = f"{number / count:.0%} of {data.n_examples} examples summed"
        report(Progress(0, None, f"{piece.name.replace('_', ', ')}: {share}"))
        yield sum_part(piece, store, core, data, library, number)


def number_of_parts(blocks: int) -> int:
    """Number of parts of so many blocks whose sums are a piece each."""
    return -(-blocks // _BLOCKS_OF_PART)


def sum_part(
    piece: Piece,
    store: Path,
    core: str,
    data: PreparedData,
    library: ArrayLibrary,
    number: int,
) -> SufficientStatistics:
    """Sums over some blocks of training examples, which are a piece."""
    files, name = PieceFiles(store, "sums"), f"{piece.name}/{number}"
    sums = _read(files, name, core)
    if sums is None:
        first = number * _BLOCKS_OF_PART
        blocks = range(first, min(first + _BLOCKS_OF_PART, data.n_blocks))
        sums = SufficientStatistics.of_batches(data.block(block, library) for block in blocks)
        sums = _write(files, name, core, sums)
    return sums


def _write(
    files: PieceFiles, name: str, core: str, sums: SufficientStatistics
) -> SufficientStatistics:
    sums = sums.convert(to_host)
    values = {key: (dims, getattr(sums, key)) for key, dims in _DIMS.items()}
    files.write(name, xr.Dataset(values), core)
    return sums


def _read(files: PieceFiles, name: str, core: str) -> SufficientStatistics | None:
    sums = files.read(name, core)
    if sums is None:
        return None
    arrays = (sums["gram"].values, sums["projections"].values)
    return SufficientStatistics(*arrays, float(sums["label_square"]), int(sums["n_examples"]))
