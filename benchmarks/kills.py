"""Kill commands at random moments: is anything lost, and do they end with the same results?

    python -m benchmarks.kills [--kills 100] [--seed 0] [--only sample prune]

Every command is killed (SIGKILL) up to three times while it works on a copy of what came before it.
After each kill all that was there must be readable and as it was; then the command is run to its
end, and every array must be, bit for bit, what an undisturbed run gives. Needs the extras sampling
and training, and image data for the commands on one-shot images (see ../docs/training.md).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

_OF_THE_CLOCK = re.compile("seconds$|/adaptation/")  # the states after blocks that seconds end


class Command(NamedTuple):
    """A command, and the one whose results it starts from."""

    name: str
    after: str | None
    arguments: str


COMMANDS = (
    Command(
        "run",
        None,
        "run hidden-markov --examples 40 --test-examples 20 --widths 10,30,100 --seed 0-3 "
        "--out study.zarr",
    ),
    Command("sample", "run", "sample study.zarr --width 10 --draws 300 --chains 2 --warm-up 60"),
    Command("correct", "sample", "correct study.zarr --widths 30,100"),
    Command(
        "run, images",
        None,
        "run one-shot-images --heads trained:2-4-512-128 --examples 60 --test-examples 40 "
        "--widths 10,100 --temperature 0.1,1 --out study.zarr",
    ),
    Command("compare", "run, images", "compare study.zarr"),
    Command("prune", "compare", "prune study.zarr --episodes 40 --random 20 --resamples 50"),
    Command(
        "train",
        None,
        "train one-shot-images --layers 1 --heads 2 --width 16 --qk-width 4 --epochs 0.02 "
        "--out trained",
    ),
)


class Whole(NamedTuple):
    """What a command leaves when nothing disturbs it, and the seconds it took."""

    folder: Path
    seconds: float


def begin(command: Command, folder: Path) -> subprocess.Popen:
    """Start a command in a folder."""
    figures = () if command.name == "train" else ("--no-figures",)
    line = (sys.executable, "-m", "pathkernel", *command.arguments.split(), *figures)
    return subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(command: Command, folder: Path) -> None:
    """Run a command to its end."""
    process = begin(command, folder)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{command.arguments}\n{output}")


def content(folder: Path) -> dict[str, np.ndarray]:
    """All arrays below a folder that count, by their places: of Zarr stores and of weights."""
    found = {}
    for store in folder.glob("*.zarr"):
        for name, array in zarr.open_group(store, mode="r").members(max_depth=None):
            if isinstance(array, zarr.Array) and not _OF_THE_CLOCK.search(name):
                found[f"{store.name}/{name}"] = array[...]
    for file in folder.rglob("*.safetensors"):
        for name, values in load_file(file).items():
            if not _OF_THE_CLOCK.search(name):
                found[f"{file.relative_to(folder)}/{name}"] = values
    return found


def differences(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[str]:
    """Arrays of the expected ones that are missing or not bit for bit the same."""
    return [name for name, values in expected.items() if not same(found.get(name), values)]


def same(one: np.ndarray | None, other: np.ndarray) -> bool:
    """Whether two arrays are the same, bit for bit but for the bits of a NaN."""
    if one is None or one.dtype != other.dtype:
        return False
    return np.array_equal(one, other, equal_nan=other.dtype.kind == "f")


def attempts(
    command: Command, before: Path | None, whole: Whole, scratch: Path, draw: np.random.Generator
) -> Iterator[tuple[str, list[str]]]:
    """Kill a command up to three times on one copy, then let it end; what happened, and what is
    wrong then.
    """
    folder = scratch / "disturbed"
    shutil.rmtree(folder, ignore_errors=True)
    if before is None:
        folder.mkdir()
    else:
        shutil.copytree(before, folder)
    untouched = content(folder)
    for _ in range(draw.integers(1, 4)):
        process = begin(command, folder)
        time.sleep(draw.uniform(0.0, 1.1) * whole.seconds)
        ended = process.poll() is not None
        process.kill()
        process.communicate()
        if ended:  # before it could be killed
            break
        try:
            yield "killed", differences(content(folder), untouched)
        except Exception as error:  # anything that a reader meets
            yield "killed", [f"unreadable: {type(error).__name__}: {error}"]
    finish(command, folder)
    yield "ended", differences(content(folder), content(whole.folder))


def measure(kills: int, seed: int, only: list[str], scratch: Path) -> bool:
    """Print a line for every command; whether nothing was lost."""
    draw = np.random.default_rng(seed)
    chosen = [command for command in COMMANDS if not only or command.name in only]
    needed = {command.name for command in chosen}
    for command in reversed(COMMANDS):
        if command.name in needed and command.after:
            needed.add(command.after)
    wholes: dict[str, Whole] = {}
    for command in (command for command in COMMANDS if command.name in needed):
        folder = scratch / command.name
        if command.after is None:
            folder.mkdir()
        else:
            shutil.copytree(wholes[command.after].folder, folder)
        start = time.monotonic()
        finish(command, folder)
        wholes[command.name] = Whole(folder, time.monotonic() - start)
    counts = {command.name: {"killed": 0, "ended": 0, "wrong": 0} for command in chosen}
    while sum(count["killed"] for count in counts.values()) < kills:
        for command in chosen:
            before = command.after and wholes[command.after].folder
            for event, wrong in attempts(command, before, wholes[command.name], scratch, draw):
                counts[command.name][event] += 1
                counts[command.name]["wrong"] += bool(wrong)
                for line in wrong:
                    print(f"{command.name}, {event}: {line}", flush=True)
    table = Table("command", "kills", "ends", "lost or different", "seconds undisturbed")
    for name, count in counts.items():
        table.add_row(name, *map(str, count.values()), f"{wholes[name].seconds:.1f}")
    Console().print(table)
    return not any(count["wrong"] for count in counts.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=[entry.name for entry in COMMANDS])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        whole_ = measure(given.kills, given.seed, given.only, Path(place))
    sys.exit(0 if whole_ else 1)
