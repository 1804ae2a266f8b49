"""Sums over training examples that do not fit into memory: a map over blocks, and a sum of sums.

The sums of some blocks are a piece, and so is the total. Parts are added in order, so that the
total does not depend, to the last bit, on workers or interruptions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
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
    """Sum over all training examples of a seed, and store the sums as a piece.

    Raises
    ------
    TaskError
        If the blocks hold another number of examples than they say.
    """

    def total() -> SufficientStatistics:
        # parts that workers have summed are read from their files; the others are summed here
        count, sums = number_of_parts(data.n_blocks), []
        for number in range(count):
            share = f"{number / count:.0%} of {data.n_examples} examples summed"
            report(Progress(0, None, f"{piece.name.replace('_', ', ')}: {share}"))
            sums.append(sum_part(piece, store, core, data, library, number))
        total = functools.reduce(operator.add, sums)
        if total.n_examples != data.n_examples:
            raise TaskError(
                f"the task's blocks hold {total.n_examples} examples instead of {data.n_examples}"
            )
        return total

    return _computed_once(store, piece.name, core, total).convert(library.asarray)


def number_of_parts(blocks: int) -> int:
    """Number of parts into which a number of blocks is divided."""
    return -(-blocks // _BLOCKS_OF_PART)


def sum_part(
    piece: Piece, store: Path, core: str, data: PreparedData, library: ArrayLibrary, number: int
) -> SufficientStatistics:
    """Sum over one part of the training examples, and store the sums as a piece."""

    def part() -> SufficientStatistics:
        first = number * _BLOCKS_OF_PART
        blocks = range(first, min(first + _BLOCKS_OF_PART, data.n_blocks))
        return SufficientStatistics.of_batches(data.block(block, library) for block in blocks)

    return _computed_once(store, f"{piece.name}/{number}", core, part)


def _computed_once(
    store: Path, name: str, core: str, compute: Callable[[], SufficientStatistics]
) -> SufficientStatistics:
    """Sums from their file, or computed and written into it."""
    files = PieceFiles(store, "sums")
    if (stored := files.read(name, core)) is not None:
        return SufficientStatistics(**{key: stored[key].values[()] for key in _DIMS})
    sums = compute().convert(to_host)
    values = {key: (dims, getattr(sums, key)) for key, dims in _DIMS.items()}
    files.write(name, xr.Dataset(values), core)
    return sums
