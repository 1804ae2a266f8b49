"""One process against two: seconds of ``pathkernel run``, in turn, and whether the files agree.

    python -m benchmarks.studies.workers [--studies markov images] [--rounds 3] [--jobs 2]

The hidden Markov study on five seeds, and the one-shot study of the paper's trained network, 100
points on five seeds, which needs image data (see ../docs/training.md). The time is that of the
whole command, without figures.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import pathkernel as pk
from benchmarks.measuring import content, timed

_AGREEMENT = 1e-9  # of the actions; widths that go side by side round by their number

STUDIES = {
    "markov": "run hidden-markov --seed 0-4",
    "images": "run one-shot-images --heads trained:2-4-512-128 --seed 0-4",
}


def run(arguments: str, study: Path, jobs: int) -> float:
    """Wall seconds of a command that computes a study into a folder."""
    shutil.rmtree(study, ignore_errors=True)
    line = (sys.executable, "-m", "pathkernel", *arguments.split(), "--no-figures")
    line += ("--out", str(study), "--jobs", str(jobs))
    return timed(lambda: subprocess.run(line, check=True, stdout=subprocess.DEVNULL))[0]


def measure(name: str, jobs: int, rounds: int, folder: Path) -> bool:
    """Print the times of a study, and return whether the files agree."""
    seconds: dict[int, list[float]] = {1: [], jobs: []}
    for number in range(rounds):
        for count in list(seconds) if number % 2 == 0 else reversed(seconds):
            seconds[count].append(run(STUDIES[name], folder / f"{name}-{count}", count))
    single, pool = (statistics.median(values) for values in seconds.values())
    studies = [folder / f"{name}-{count}" for count in (1, jobs)]
    equal, difference = content(studies[0]) == content(studies[1]), largest_difference(*studies)
    print(
        f"{name}: {single:.1f} s in one process, {pool:.1f} s in {jobs}, ratio {single / pool:.2f};"
        f" the files are {'the same' if equal else f'different, S/N by {difference:.0e}'}",
        flush=True,
    )
    return difference <= _AGREEMENT


def largest_difference(first: Path, second: Path) -> float:
    """Largest relative difference of the actions of two studies."""
    one, other = (pk.open_study(path)["action"].values for path in (first, second))
    return float(np.abs(one - other).max() / np.abs(one).max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        agree = [
            measure(name, options.jobs, options.rounds, Path(folder)) for name in options.studies
        ]
    sys.exit(0 if all(agree) else 1)
