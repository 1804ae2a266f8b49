"""A store of 10,000 points: its files, and CPU seconds to open, to read a variable, to add a seed.

    python -m benchmarks.large_store [--seeds 50]

50 seeds at 20 temperatures and 10 widths of hidden Markov chains, once with a file for each chunk
and once as studies are stored, with the chunks of all temperatures in one file. The values of one
seed and width are computed and written everywhere, through the same calls as a run's, but for the
waiting for the disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import xarray as xr

from benchmarks.measuring import one_thread
from pathkernel_datasets import store as store_module
from pathkernel_datasets import sweep
from pathkernel_datasets.pieces import Drawn, Piece
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.store import Store, open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study
from pathkernel_tasks.hidden_markov import HiddenMarkov

WIDTHS = tuple(range(10, 110, 10))
TEMPERATURES = tuple(np.geomspace(0.001, 1, 20).tolist())


def study(seeds: int) -> Study:
    """The study on so many seeds."""
    task = HiddenMarkov(examples=20, test_examples=100)
    return Study(task, WIDTHS, TEMPERATURES, range(seeds))


def recorded(folder: Path) -> Callable[..., int]:
    """What fills a piece with the values of the first one that is computed."""
    held: dict[str, dict[str, Any]] = {}
    write = Store.write

    def record(self: Store, index: Any, values: Any, marker: str, code: int) -> None:
        held[marker] = values
        write(self, index, values, marker, code)

    with mock.patch.object(Store, "write", record):
        compute_study(study(1).on_grid({"width": WIDTHS[:1]}), folder / "one.zarr")

    def refill(piece: Piece, store: Store, drawn: Drawn, *_: Any) -> int:
        place = piece.draw.place
        if piece.width is None:
            store.write(place, held["data_done"], "data_done", 1)
        for t in range(len(TEMPERATURES)):
            if piece.width is None:
                store.write((*place, t), held["reference_done"], "reference_done", 1)
            else:
                index = (*place, t, piece.width)
                store.write(index, held["status"], "status", STATUS_CODES["converged"])
        return 0 if piece.width is None else len(TEMPERATURES)

    return refill


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and what it returned: a machine with other work says nothing else."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def measure(seeds: int, folder: Path) -> None:
    """Print a line for each way to store."""
    refill = recorded(folder)
    for words, largest in (
        ("a file for each chunk", 0),
        ("all temperatures in a file", store_module._LARGEST_FILE),
    ):
        path = folder / f"{largest}.zarr"
        with (
            mock.patch.object(sweep, "fill", refill),
            mock.patch.object(store_module, "sync"),
            mock.patch.object(store_module, "_LARGEST_FILE", largest),
        ):
            wrote, points = timed(lambda path=path: compute_study(study(seeds), path))
            files = sum(file.is_file() for file in path.rglob("*"))
            opened, dataset = timed(lambda path=path: open_store(path))
            plain, _ = timed(lambda path=path: xr.open_zarr(path, chunks=None))
            accuracy, _ = timed(lambda dataset=dataset: dataset["accuracy"].load())
            matrix, _ = timed(lambda dataset=dataset: dataset["order_parameter"].load())
            compared, _ = timed(lambda path=path: compute_study(study(seeds), path))
            added, more = timed(lambda path=path: compute_study(study(seeds + 1), path))
        print(
            f"{words}: {points} points in {files} files, written in {wrote:.1f} s; opened in "
            f"{opened:.2f} s (xr.open_zarr {plain:.2f} s); accuracy read in {accuracy:.2f} s, "
            f"order_parameter in {matrix:.2f} s; compared in {compared:.1f} s; a seed of {more} "
            f"points added in {added:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    with one_thread(), tempfile.TemporaryDirectory() as place:
        measure(parser.parse_args().seeds, Path(place))
