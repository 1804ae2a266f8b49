"""Sums over training examples that are too many to hold: a map over blocks, and a sum of sums.

The sums of some blocks are a piece, and so is the total. It is added up as a tree of pairs, so that
it is the same bit for bit whoever computes the parts, and however often that was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import xarray as xr

from pathkernel_core.backend import to_host
from pathkernel_core.progress import Progress, Report
from pathkernel_core.statistics import SufficientStatistics
from pathkernel_datasets.array_libraries import ArrayLibrary
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.lock import locked
from pathkernel_datasets.piece_files import PieceFiles
from pathkernel_datasets.prepared import PreparedData

_BLOCKS_OF_PART = 16

_DIMS = {
    "gram": ("path", "input", "path_dual", "input_dual"),
    "projections": ("path", "input", "output"),
    "label_square": (),
    "n_examples": (),
}


def sum_examples(
    name: str,
    core: str,
    files: PieceFiles,
    data: PreparedData,
    library: ArrayLibrary,
    report: Report,
) -> SufficientStatistics:
    """Sums over all training examples of a seed.

    Parameters
    ----------
    name : str
        Of the seed's data.
    core : str
        All that determines the examples, see :func:`pathkernel_datasets.study.core_of`.
    files : PieceFiles
        Where sums are kept, and found again.
    data : PreparedData
        With blocks.
    library : ArrayLibrary
    report : callable

    Raises
    ------
    TaskError
        If the blocks hold another number of examples than they say.
    """
    words = name.replace("_", ", ")

    def waiting() -> None:
        report(Progress(0, None, f"{words}: another process sums {data.n_examples} examples"))

    files.folder.mkdir(parents=True, exist_ok=True)
    lock = files.folder / f".{name}.lock"
    with locked(files.folder, lock, waiting=waiting, temporary=True):
        total = _read(files, name, core)
        if total is None:
            total = _tree_sum(_parts(name, core, files, data, library, report))
            if total.n_examples != data.n_examples:
                raise TaskError(
                    f"the task's blocks hold {total.n_examples} examples instead of "
                    f"{data.n_examples}"
                )
            _write(files, name, core, total)
    return total.convert(library.asarray)


def _parts(
    name: str,
    core: str,
    files: PieceFiles,
    data: PreparedData,
    library: ArrayLibrary,
    report: Report,
) -> Iterator[SufficientStatistics]:
    parts = number_of_parts(data.n_blocks)
    for number in range(parts):
        done = f"{number / parts:.0%} of {data.n_examples} examples summed"
        report(Progress(0, None, f"{name.replace('_', ', ')}: {done}"))
        yield sum_part(name, core, files, data, library, number)


def number_of_parts(blocks: int) -> int:
    """Number of parts of so many blocks whose sums are a piece each."""
    return -(-blocks // _BLOCKS_OF_PART)


def sum_part(
    name: str,
    core: str,
    files: PieceFiles,
    data: PreparedData,
    library: ArrayLibrary,
    number: int,
) -> SufficientStatistics:
    """Sums over some blocks, drawn one after another, which are kept as a piece."""
    found = _read(files, _part(name, number), core)
    if found is None:
        first = number * _BLOCKS_OF_PART
        blocks = range(first, min(first + _BLOCKS_OF_PART, data.n_blocks))
        found = SufficientStatistics.of_batches(data.block(block, library) for block in blocks)
        _write(files, _part(name, number), core, found)
    return found


def _part(name: str, number: int) -> str:
    return f"{name}/{number}"


def _tree_sum(parts: Iterable[SufficientStatistics]) -> SufficientStatistics:
    """Sum by pairs of equal numbers of parts, of which as few as possible are held at a time."""
    held: list[tuple[int, SufficientStatistics]] = []
    for part in parts:
        count = 1
        while held and held[-1][0] == count:
            count, part = 2 * count, held.pop()[1] + part
        held.append((count, part))
    _, total = held.pop()
    while held:
        total = held.pop()[1] + total
    return total


def _write(files: PieceFiles, name: str, core: str, sums: SufficientStatistics) -> None:
    sums = sums.convert(to_host)
    values = {key: (dims, getattr(sums, key)) for key, dims in _DIMS.items()}
    files.write(name, xr.Dataset(values), core)


def _read(files: PieceFiles, name: str, core: str) -> SufficientStatistics | None:
    found = files.read(name, core)
    if found is None:
        return None
    arrays = (found["gram"].values, found["projections"].values)
    return SufficientStatistics(*arrays, float(found["label_square"]), int(found["n_examples"]))
