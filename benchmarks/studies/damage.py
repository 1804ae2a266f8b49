"""Damage a finished study in one place at a time: which command notices, and what ``run`` mends.

    python -m benchmarks.studies.damage [--chunks 250] [--flips 1500] [--seed 0]

A chunk is deleted, emptied, cut or has one bit flipped; then single bits are flipped, file after
file. After each, ``check``, ``show`` and ``run`` are run as the command line does, and the files
are compared with those of the undamaged folder, byte for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measuring import content
from pathkernel.main import main

COMMANDS = ("check", "show", "run")
_STUDY = "--widths 5,20 --temperature 0.1 --examples 10 --test-examples 20 --no-figures"


def cli(*arguments: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(arguments)
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    raise AssertionError("main() exits")


def command(name: str, study: Path) -> tuple[int, str]:
    """Run a command on the folder of the study."""
    if name == "run":
        return cli("run", "hidden-markov", *_STUDY.split(), "--out", str(study))
    return cli(name, str(study))


def damages(
    intact: dict[Path, bytes], chunks: int, flips: int, draw: np.random.Generator
) -> Iterator[tuple[str, Path, bytes | None]]:
    """Kind of damage, file, and the damaged bytes; None if the file is deleted."""
    kinds = ("deleted", "emptied", "truncated", "flipped")
    files = [file for file in intact if file.suffix != ".json"]
    for number in range(chunks):
        kind, file = kinds[number % len(kinds)], files[draw.integers(len(files))]
        data = intact[file]
        changed = {
            "deleted": None,
            "emptied": b"",
            "truncated": data[: draw.integers(1, len(data))],
            "flipped": flipped(data, draw),
        }
        yield f"chunk {kind}", file, changed[kind]
    order: list[Path] = []
    for _ in range(flips):
        order = order or [list(intact)[i] for i in draw.permutation(len(intact))]
        file = order.pop()
        kind = "bit of metadata" if file.suffix == ".json" else "bit of a chunk"
        yield kind, file, flipped(intact[file], draw)


def flipped(data: bytes, draw: np.random.Generator) -> bytes:
    """Data with one bit changed."""
    changed = bytearray(data)
    bit = int(draw.integers(8 * len(data)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _files(study: Path) -> dict[Path, bytes]:
    """Files of the study by their paths; the lock is empty."""
    return {file: data for file, data in content(study).items() if file.name != ".lock"}


def measure(folder: Path, chunks: int, flips: int, seed: int) -> None:
    """Print a line for each kind of damage, and every damage that nothing noticed or mended."""
    study = folder / "damaged"
    assert command("run", study)[0] == 0
    intact = _files(study)
    normal = {name: command(name, study) for name in COMMANDS}
    assert _files(study) == intact
    counts: dict[str, Counter] = {}
    for kind, file, data in damages(intact, chunks, flips, np.random.default_rng(seed)):
        path = study / file
        path.unlink() if data is None else path.write_bytes(data)
        results = {name: command(name, study) for name in COMMANDS}
        noticed = [name for name in COMMANDS if results[name] != normal[name]]
        if results["show"][0] == 0:  # a table of wrong values is no warning
            noticed = [name for name in noticed if name != "show"]
        mended = _files(study) == intact
        counts.setdefault(kind, Counter()).update(
            ["all", *noticed, *(["noticed"] if noticed else []), *(["mended"] if mended else [])]
        )
        if not noticed or not mended:
            print(
                f"{'un' * (not noticed)}noticed, {'' if mended else 'not '}mended: {kind}, {file}"
            )
            shutil.rmtree(study)
            for file, data in intact.items():
                (study / file).parent.mkdir(parents=True, exist_ok=True)
                (study / file).write_bytes(data)
    columns = ("all", "noticed", *COMMANDS, "mended")
    print(f"{len(intact)} files, {sum(map(len, intact.values()))} bytes")
    print(f"{'':18}" + "".join(f"{column:>9}" for column in columns))
    for kind, count in counts.items():
        print(f"{kind:18}" + "".join(f"{count[column]:9}" for column in columns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=250)
    parser.add_argument("--flips", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.chunks, options.flips, options.seed)
    print(f"{time.monotonic() - begin:.0f} s")
