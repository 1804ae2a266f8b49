"""A study of 10,000 points: its files, and CPU seconds to write, open, read and extend it.

    python -m benchmarks.studies.large_store [--seeds 50]

50 seeds at 20 temperatures and 10 widths of hidden Markov chains. One piece of each kind is
computed, and its values are written everywhere, by the same functions as a run's.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import xarray as xr

from benchmarks.measuring import content, one_thread, timed
from pathkernel_core.system.progress import Report
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.folder.pieces import Piece
from pathkernel_datasets.folder.published import Values
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.study_folder import STUDY
from pathkernel_datasets.run.computing import Computation, SeedData
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov

WIDTHS = tuple(range(10, 110, 10))
TEMPERATURES = tuple(np.geomspace(0.001, 1, 20).tolist())


def study(seeds: int) -> Study:
    """The study on a number of seeds."""
    task = HiddenMarkov(examples=20, test_examples=100)
    return Study(task, WIDTHS, TEMPERATURES, range(seeds))


def repeating() -> Callable[..., None]:
    """Stand-in for `Computation.compute` that computes only the first piece of each kind."""
    computed: dict[bool, Values] = {}
    compute = Computation.compute

    def repeat(study: Computation, pieces: Sequence[Piece], data: SeedData, report: Report) -> None:
        folder = study.folder
        for piece in pieces:
            kind = piece.width is None
            if kind not in computed:
                compute(study, [piece], data, report)
                computed[kind] = folder.read(piece)
            elif folder.lacking_temperatures(folder.read(piece)):
                write_arrays(folder.file(piece), computed[kind], folder.core)

    return repeat


cpu_timed = functools.partial(timed, clock=time.process_time)


def measure(seeds: int, folder: Path) -> None:
    """Print files and times of a study."""
    path = folder / "large"
    with mock.patch.object(Computation, "compute", repeating()):
        wrote, points = cpu_timed(lambda: compute_study(study(seeds), path))
        files = content(path)
        opened, dataset = cpu_timed(lambda: open_study(path))
        plain, _ = cpu_timed(lambda: xr.open_zarr(path / STUDY, chunks=None))
        accuracy, _ = cpu_timed(lambda: dataset["accuracy"].load())
        every, _ = cpu_timed(dataset.load)
        compared, _ = cpu_timed(lambda: compute_study(study(seeds), path))
        added, new_points = cpu_timed(lambda: compute_study(study(seeds + 1), path))
    size = sum(map(len, files.values()))
    print(
        f"{points} points in {len(files)} files of {size / 1e6:.0f} MB, written in {wrote:.1f} s; "
        f"opened in {opened:.2f} s (xr.open_zarr {plain:.2f} s); accuracy read in {accuracy:.2f} "
        f"s, all in {every:.2f} s; compared in {compared:.1f} s; a seed of {new_points} points "
        f"added in {added:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        measure(parser.parse_args().seeds, Path(folder))
