"""CPU seconds and memory of whole commands in fresh processes, here and in another checkout.

    python -m benchmarks.studies.commands [--against CHECKOUT] [--rounds 5] [--only NAME …]

A command works on its copy of a study that is computed first, so that none sees what another left.
Checkouts take turns. The seconds are user and system time of the process and its children, with
one BLAS thread; the memory is the peak of the largest process. Compiled modules are written in an
uncounted first round. Rows of a study that cannot be computed, such as one of images that are not
at hand, are left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[2]

STUDIES = {
    "markov": "run hidden-markov --seed 0-4",
    "temperatures": "run hidden-markov --examples 30 --test-examples 30 --widths 10,100 "
    "--temperatures .01,.1",
    "heads": "run one-shot-images --heads trained:2-4-512-128 --examples 60 --test-examples 60 "
    "--widths 10,100 --temperatures .5",
}
"""Studies of the commands, by the folder; ``heads`` needs PATHKERNEL_DATA."""

COMMANDS = {
    "help": "--help",
    "run": "run hidden-markov --seed 0-4 --out new",
    "run-no-figures": "run hidden-markov --seed 0-4 --no-figures --out new",
    "show": "show markov",
    "show-all": "show markov --all",
    "plot": "plot markov",
    "report": "report markov",
    "phases": "phases temperatures",
    "sample": "sample temperatures --widths 10 --draws 20 --warm-up 20 --chains 1",
    "prune": "prune heads --episodes 60 --sets 5 --random 5 --resamples 20",
}


class Usage(NamedTuple):
    """User and system seconds of a command, and the peak of its largest process in MB."""

    seconds: float
    memory: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.memory:.0f} MB"


def usage_of(arguments: str, checkout: Path, folder: Path) -> Usage:
    """Usage of a command of a checkout, in a fresh process and its children.

    Raises
    ------
    subprocess.CalledProcessError
        If the command fails, with what it wrote to stderr.
    """
    paths = (checkout, checkout / "datasets", checkout / "plugins")
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = os.environ | pinned | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    line = (sys.executable, "-m", "pathkernel", *arguments.split())
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, line, stderr=errors.read())
    # in kilobytes on Linux, in bytes on macOS
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


def measure(arguments: str, studies: dict[Path, Path], rounds: int) -> list[Usage]:
    """Median seconds and memory of a command in each checkout, on studies that it computed."""
    checkouts = list(studies)
    usages: dict[Path, list[Usage]] = {checkout: [] for checkout in checkouts}
    for number in range(rounds + 1):
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            with tempfile.TemporaryDirectory() as folder:
                for name in STUDIES:
                    if name in arguments.split():
                        shutil.copytree(studies[checkout] / name, Path(folder, name))
                usages[checkout].append(usage_of(arguments, checkout, Path(folder)))
    return [Usage(*map(statistics.median, zip(*values[1:]))) for values in usages.values()]


def compute_studies(names: list[str], checkout: Path, folder: Path) -> set[str]:
    """Compute the studies of some commands; the commands whose study cannot be computed."""
    left_out = set()
    for study, arguments in STUDIES.items():
        of_study = {name for name in names if study in COMMANDS[name].split()}
        if not of_study:
            continue
        try:
            usage_of(f"{arguments} --no-figures --out {study}", checkout, folder)
        except subprocess.CalledProcessError as error:
            *_, reason = error.stderr.strip().splitlines() or ["no reason given"]
            print(f"left out: {', '.join(sorted(of_study))}; {reason}", flush=True)
            left_out |= of_study
    return left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    options = parser.parse_args()
    # the other checkout first: it is what there was before
    checkouts = [*([options.against.resolve()] if options.against else []), HERE]
    ratios = ("seconds, ratio", "memory, ratio") if options.against else ()
    table = Table("command", *map(str, checkouts), *ratios)
    with tempfile.TemporaryDirectory() as folder:
        # each its own: the form of files may differ
        studies = {checkout: Path(folder, str(n)) for n, checkout in enumerate(checkouts)}
        left_out = set[str]()
        for checkout, path in studies.items():
            path.mkdir()
            names = [name for name in options.only if name not in left_out]
            left_out |= compute_studies(names, checkout, path)
        for name in options.only:
            if name in left_out:
                continue
            medians = measure(COMMANDS[name], studies, options.rounds)
            cells = [str(usage) for usage in medians]
            if options.against:
                cells += [f"{after / before:.2f}" for before, after in zip(*medians)]
            print(name, *cells, sep=", ", flush=True)
            table.add_row(COMMANDS[name], *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
