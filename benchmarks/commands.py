"""CPU seconds and peak memory of whole commands, here and in another checkout, in turn.

    python -m benchmarks.commands [--against CHECKOUT] [--rounds 5] [--only NAME …]

A command works on its copy of a study that is computed first, so that none sees what another left.
The seconds are user and system time of a fresh process and its children, with one BLAS thread, and
the memory is that of the largest of these processes. Compiled modules are written in an uncounted
first round. Commands on images are left out where PATHKERNEL_DATA names no folder.
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

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of the kernel's peak memory

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


def missing_images(arguments: str) -> bool:
    """Whether a command needs images that are not there, on its own or by one of its studies."""
    studies = [study for name, study in STUDIES.items() if name in arguments.split()]
    needs = any("one-shot-images" in line for line in (arguments, *studies))
    return needs and not Path(os.environ.get("PATHKERNEL_DATA", ""), "omniglot").is_dir()


def usage_of(arguments: str, checkout: Path, folder: Path) -> tuple[float, float]:
    """CPU seconds of a command in a fresh process, and megabytes of the largest of its processes.

    The seconds are user and system time, of its children too.

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
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * _RSS_UNIT / 1e6


def measure(
    arguments: str, checkouts: list[Path], studies: Path, rounds: int
) -> list[tuple[float, float]]:
    """Median CPU seconds and peak megabytes of a command in each checkout."""
    usages: dict[Path, list[tuple[float, float]]] = {checkout: [] for checkout in checkouts}
    for number in range(rounds + 1):
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            with tempfile.TemporaryDirectory() as folder:
                for name in STUDIES:
                    if name in arguments.split():
                        shutil.copytree(studies / name, Path(folder, name))
                usages[checkout].append(usage_of(arguments, checkout, Path(folder)))
    medians = []
    for rows in usages.values():
        seconds, megabytes = map(statistics.median, zip(*rows[1:]))
        medians.append((seconds, megabytes))
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    options = parser.parse_args()
    # the other checkout first: it is what there was before
    checkouts = [*([options.against.resolve()] if options.against else []), HERE]
    columns = (f"{checkout}, {unit}" for checkout in checkouts for unit in ("s", "MB"))
    table = Table("command", *columns)
    left_out = [name for name in options.only if missing_images(COMMANDS[name])]
    names = [name for name in options.only if name not in left_out]
    if left_out:
        folder = os.environ.get("PATHKERNEL_DATA") or "not set"
        print(f"left out, since PATHKERNEL_DATA ({folder}) has no images: {', '.join(left_out)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in STUDIES.items():
            if any(name in COMMANDS[command].split() for command in names):
                usage_of(f"{arguments} --no-figures --out {name}", checkouts[0], Path(folder))
        for name in names:
            medians = measure(COMMANDS[name], checkouts, Path(folder), options.rounds)
            numbers = [text for s, mb in medians for text in (f"{s:.2f}", f"{mb:.0f}")]
            print(name, *numbers, flush=True)
            table.add_row(COMMANDS[name], *numbers)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
