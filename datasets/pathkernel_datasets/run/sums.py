"""Sums over training examples that do not fit into memory: a map over blocks, and a sum of sums.

The sums of some blocks are a file, and so is the total, which stays: a study that grows needs it.
Parts are added in order, so that the total does not depend, to the last bit, on workers or
interruptions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pathkernel_core.arrays.backend import to_host
from pathkernel_core.energy.statistics import SufficientStatistics
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.folder.piece_files import SUFFIX, read_arrays, warn_of_piece, write_arrays
from pathkernel_datasets.folder.study_folder import PIECES, SUMS, StudyFolder
from pathkernel_datasets.study.prepared import ArrayLibrary, PreparedData

_BLOCKS_OF_PART = 16
_ARRAYS = ("gram", "projections", "label_square", "n_examples")


def sum_examples(
    folder: StudyFolder, seed: int, data: PreparedData, library: ArrayLibrary, report: Report
) -> SufficientStatistics:
    """Sum over all training examples of a seed, and store the sums.

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
            report(Progress(0, None, f"seed {seed}: {share}"))
            sums.append(sum_part(folder, seed, data, library, number))
        total = functools.reduce(operator.add, sums)
        if total.n_examples != data.n_examples:
            raise TaskError(
                f"the task's blocks hold {total.n_examples} examples instead of {data.n_examples}"
            )
        return total

    return _computed_once(_total(folder, seed), folder, data, total).convert(library.asarray)


def is_summed(folder: StudyFolder, seed: int) -> bool:
    """Whether the sums over all training examples of a seed are stored."""
    return read_arrays(_total(folder, seed), folder.core) is not None


def _total(folder: StudyFolder, seed: int) -> Path:
    return folder.path / SUMS / f"seed-{seed}{SUFFIX}"


def number_of_parts(blocks: int) -> int:
    """Number of parts into which a number of blocks is divided."""
    return -(-blocks // _BLOCKS_OF_PART)


def sum_part(
    folder: StudyFolder, seed: int, data: PreparedData, library: ArrayLibrary, number: int
) -> SufficientStatistics:
    """Sum over one part of the training examples, and store the sums."""

    def part() -> SufficientStatistics:
        first = number * _BLOCKS_OF_PART
        blocks = range(first, min(first + _BLOCKS_OF_PART, data.n_blocks))
        return SufficientStatistics.of_batches(data.block(block, library) for block in blocks)

    file = folder.path / PIECES / f"seed-{seed}_sums-{number}{SUFFIX}"
    return _computed_once(file, folder, data, part)


def _computed_once(
    file: Path,
    folder: StudyFolder,
    data: PreparedData,
    compute: Callable[[], SufficientStatistics],
) -> SufficientStatistics:
    """Sums from their file, or computed and written into it."""
    if (stored := read_arrays(file, folder.core)) is not None:
        values: dict[str, Any] = {name: array[()] for name, array in stored.items()}
        with suppress(TypeError, ValueError):  # of other names, shapes or types
            sums = SufficientStatistics(**values)
            if tuple(sums.projections.shape[:2]) == tuple(data.xi.shape[1:]):
                return sums
        warn_of_piece(file, "holds other sums than those of the study")
    sums = compute().convert(to_host)
    write_arrays(file, {name: getattr(sums, name) for name in _ARRAYS}, folder.core)
    return sums
