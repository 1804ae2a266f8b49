"""Damage a finished store in one place at a time: which command notices, and what ``run`` mends.

    python -m benchmarks.damage [--chunks 250] [--flips 1500] [--seed 0]

A chunk is deleted, emptied, cut or has one bit flipped; then single bits are flipped, file after
file. After each, ``check``, ``show`` and ``run`` are run as the command line does, and the files
are compared with those of the undamaged store, byte for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

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


def command(name: str, store: Path) -> tuple[int, str]:
    """Run a command on the study's store."""
    if name == "run":
        return cli("run", "hidden-markov", *_STUDY.split(), "--out", str(store))
    return cli(name, str(store))


def content(store: Path) -> dict[Path, bytes]:
    """All files of a store."""
    return {file: file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}


def damages(
    whole: dict[Path, bytes], chunks: int, flips: int, draw: np.random.Generator
) -> Iterator[tuple[str, Path, bytes | None]]:
    """Kind, file, and what the file holds then; None if it is deleted."""
    kinds = ("deleted", "emptied", "truncated", "flipped")
    files = [file for file in whole if file.name != "zarr.json"]
    for number in range(chunks):
        kind, file = kinds[number % len(kinds)], files[draw.integers(len(files))]
        data = whole[file]
        changed = {
            "deleted": None,
            "emptied": b"",
            "truncated": data[: draw.integers(1, len(data))],
            "flipped": flipped(data, draw),
        }
        yield f"chunk {kind}", file, changed[kind]
    order: list[Path] = []
    for _ in range(flips):
        order = order or [list(whole)[i] for i in draw.permutation(len(whole))]
        file = order.pop()
        kind = "bit of metadata" if file.name == "zarr.json" else "bit of a chunk"
        yield kind, file, flipped(whole[file], draw)


def flipped(data: bytes, draw: np.random.Generator) -> bytes:
    """Data with one bit changed."""
    changed = bytearray(data)
    bit = int(draw.integers(8 * len(data)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def measure(folder: Path, chunks: int, flips: int, seed: int) -> None:
    """Print a line for each kind of damage, and every damage that nothing noticed or mended."""
    store = folder / "study.zarr"
    assert command("run", store)[0] == 0
    whole = content(store)
    normal = {name: command(name, store) for name in COMMANDS}
    assert content(store) == whole
    counts: dict[str, Counter] = {}
    for kind, file, data in damages(whole, chunks, flips, np.random.default_rng(seed)):
        file.unlink() if data is None else file.write_bytes(data)
        found = {name: command(name, store) for name in COMMANDS}
        seen = [name for name in COMMANDS if found[name] != normal[name]]
        if found["show"][0] == 0:  # a table of other values tells nobody
            seen = [name for name in seen if name != "show"]
        mended = content(store) == whole
        counts.setdefault(kind, Counter()).update(
            ["all", *seen, *(["noticed"] if seen else []), *(["mended"] if mended else [])]
        )
        if not seen or not mended:
            print(f"{'un' * (not seen)}noticed, {'' if mended else 'not '}mended: {kind}, {file}")
            for path in set(content(store)) - set(whole):
                path.unlink()
            for path, before in whole.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(before)
    columns = ("all", "noticed", *COMMANDS, "mended")
    print(f"{len(whole)} files, {sum(map(len, whole.values()))} bytes")
    print(f"{'':18}" + "".join(f"{column:>9}" for column in columns))
    for kind, count in counts.items():
        print(f"{kind:18}" + "".join(f"{count[column]:9}" for column in columns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=250)
    parser.add_argument("--flips", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.chunks, given.flips, given.seed)
    print(f"{time.monotonic() - begin:.0f} s")
