"""CPU seconds of whole commands in fresh processes, here and in another checkout, in turn.

    python -m benchmarks.commands [--against CHECKOUT] [--rounds 5] [--only NAME …]

A command works on its copy of a study that is computed first, so that none sees what another left.
The seconds are user and system time of the process and its children, with one BLAS thread. Compiled
modules are written in an uncounted first round.
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

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent

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


def cpu_seconds(arguments: str, checkout: Path, folder: Path) -> float:
    """User and system seconds of a command of a checkout, in a fresh process and its children.

    Raises
    ------
    subprocess.CalledProcessError
        If the command fails.
    """
    paths = (checkout, checkout / "datasets", checkout / "plugins")
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = os.environ | pinned | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    line = (sys.executable, "-m", "pathkernel", *arguments.split())
    process = subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, line)
    return usage.ru_utime + usage.ru_stime


def measure(arguments: str, checkouts: list[Path], studies: Path, rounds: int) -> list[float]:
    """Median CPU seconds of a command in each checkout."""
    seconds: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
    for number in range(rounds + 1):
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            with tempfile.TemporaryDirectory() as folder:
                for name in STUDIES:
                    if name in arguments.split():
                        shutil.copytree(studies / name, Path(folder, name))
                seconds[checkout].append(cpu_seconds(arguments, checkout, Path(folder)))
    return [statistics.median(values[1:]) for values in seconds.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    options = parser.parse_args()
    # the other checkout first: it is what there was before
    checkouts = [*([options.against.resolve()] if options.against else []), HERE]
    table = Table("command", *(str(checkout) for checkout in checkouts))
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in STUDIES.items():
            if any(name in COMMANDS[command].split() for command in options.only):
                cpu_seconds(f"{arguments} --no-figures --out {name}", checkouts[0], Path(folder))
        for name in options.only:
            medians = measure(COMMANDS[name], checkouts, Path(folder), options.rounds)
            print(name, *(f"{value:.2f}" for value in medians), flush=True)
            table.add_row(COMMANDS[name], *(f"{value:.2f} s" for value in medians))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
