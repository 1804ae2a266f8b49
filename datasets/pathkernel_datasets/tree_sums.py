"""Sums over many parts by workers, which meet in a folder of files: a tree of pairs.

Every part, and every sum of two neighbours, is written into a file of its own and read by the
worker that adds it to another. So no process ever holds more than two of them, a run that was
stopped goes on with the files that it finds, and the sum is the same bit for bit whoever computes
it, and however often that was stopped.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path

from pathkernel_core.statistics import SufficientStatistics
from pathkernel_datasets.atomic import replacing

Part = Callable[[int], SufficientStatistics]
_Range = tuple[int, int]  # of parts, the last not included


def tree_sum(
    part: Part,
    parts: int,
    path: Path,
    executor: Executor | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> SufficientStatistics:
    """Sum of part(0) … part(parts − 1), which is left in a file.

    Parameters
    ----------
    part : callable
        Number → statistics of that part; workers must be able to take it along.
    parts : int
    path : Path
        File of the sum, where all workers see it; if it is there it is read. While there are sums
        of some parts only, they lie beside it.
    executor : concurrent.futures.Executor, optional
        Workers; by default this process.
    report : callable
        Called with the number of parts that are known to be summed, whenever there are more.

    Raises
    ------
    ValueError
        If a file is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    missing = list(_missing(path, (0, parts), parts))
    done = parts - sum(last - first == 1 for first, last in missing)
    computed = _computed(part, parts, path, missing, executor)
    for first, last in computed if missing else ():
        if last - first == 1:
            done += 1
            report(done)
        else:
            for half in _halves(first, last):
                _file(path, half, parts).unlink(missing_ok=True)
    for file in path.parent.glob(f"{glob.escape(path.stem)}-*-*{path.suffix}"):
        file.unlink(missing_ok=True)  # of a process that was killed before it did so
    return SufficientStatistics.load(path)


def _computed(
    part: Part, parts: int, path: Path, missing: list[_Range], executor: Executor | None
) -> Iterator[_Range]:
    """Ranges as they are computed, each after its halves."""
    if executor is None:
        for each in missing:
            _compute(part, parts, path, each)
            yield each
        return
    waiting = set(missing)
    running: dict[Future, _Range] = {}
    try:
        while waiting or running:
            unknown = waiting | set(running.values())
            ready = [each for each in missing if each in waiting]
            for each in ready:
                if not unknown & set(_halves(*each)):
                    waiting.remove(each)
                    running[executor.submit(_compute, part, parts, path, each)] = each
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                yield running.pop(future)
    finally:
        for future in running:
            future.cancel()
        wait(running)  # while the store is ours


def _compute(part: Part, parts: int, path: Path, each: _Range) -> None:
    """Write the sum of a range; a worker that is asked twice finds it."""
    target = _file(path, each, parts)
    if target.exists():
        return
    halves = [SufficientStatistics.load(_file(path, half, parts)) for half in _halves(*each)]
    total = halves[0] + halves[1] if halves else part(each[0])
    with replacing(target) as partial:
        total.save(partial)


def _missing(path: Path, each: _Range, parts: int) -> Iterator[_Range]:
    """Ranges that no file sums, halves before the whole."""
    if not _file(path, each, parts).exists():
        for half in _halves(*each):
            yield from _missing(path, half, parts)
        yield each


def _halves(first: int, last: int) -> list[_Range]:
    """Both sides of a range, a power of two on the left; none of a single part."""
    if last - first == 1:
        return []
    middle = first + (1 << (last - first - 1).bit_length() - 1)
    return [(first, middle), (middle, last)]


def _file(path: Path, each: _Range, parts: int) -> Path:
    whole = each == (0, parts)
    return path if whole else path.with_name(f"{path.stem}-{each[0]}-{each[1]}{path.suffix}")
