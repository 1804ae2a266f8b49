"""Damage a finished store in one place at a time: which command notices, and what ``run`` mends.

    python -m benchmarks.damage [--chunks 250] [--flips 1500] [--seed 0]
    python -m benchmarks.damage --cost

A chunk is deleted, emptied, cut or has one bit flipped; then single bits are flipped, file after
file. After each, ``check``, ``show`` and ``run`` are run as the command line does, and the files
are compared with those of the undamaged store, byte for byte.

``--cost`` prints instead what it takes to notice: bytes, and seconds to write, wait and read.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from pathkernel.main import main
from pathkernel_datasets import store as store_module
from pathkernel_datasets.chunk_files import places_of
from pathkernel_datasets.metadata import COPY
from pathkernel_datasets.schema import POINT
from pathkernel_datasets.store import Store, open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study
from pathkernel_tasks.hidden_markov import HiddenMarkov

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


def cost(folder: Path) -> None:
    """Print what checksums, the copy of metadata, and waiting for the disk cost a study."""
    path = folder / "study.zarr"
    study = Study(HiddenMarkov(), temperatures=(0.01, 0.1), seeds=(0, 1))
    begin = time.perf_counter()
    points = compute_study(study, path)
    took = time.perf_counter() - begin
    sizes = {file: len(data) for file, data in content(path).items()}
    arrays = [array for _, array in zarr.open_group(path, mode="r").arrays()]
    chunks = sum(len(places_of(array)) for array in arrays)
    copy = sum(size for file, size in sizes.items() if COPY in file.parts)
    print(
        f"{points} points in {took:.1f} s; {len(sizes)} files, {sum(sizes.values())} bytes, of "
        f"them {4 * chunks} of {chunks} checksums of chunks and {copy} of the copy of metadata"
    )
    store, vouched = Store(path), open_store(path).isel(seed=0, temperature=0, width=0).load()
    values = {
        name: array.values
        for name, array in vouched.data_vars.items()
        if store.holds(name) and set(POINT) <= set(open_store(path)[name].dims)
    }
    del values["status"]
    store_module._TOGETHER = float("inf")  # flushed here alone
    waits = {"with": store_module.sync, "without": lambda: None}
    for words, wait in waits.items():
        store_module.sync = wait
        times = []
        for _ in range(50):
            for name in (*values, "status"):  # a point that is there is replaced more slowly
                chunk = path / name / "c" / "0" / "0" / "0"
                shutil.rmtree(chunk) if chunk.is_dir() else chunk.unlink()
            store.write((0, 0, 0), values, "status", 1)
            times.append(timed(store.flush))
        print(
            f"a point of {len(values)} variables written {words} waiting for the disk: "
            f"{1e3 * np.median(times):.1f} ms"
        )
    read = timed(lambda: [store.damaged(marker) for marker in store.markers])
    print(f"chunks compared with their checksums, as on going on: {1e3 * read:.0f} ms")


def timed(work: Callable[[], Any]) -> float:
    """Seconds that something takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=250)
    parser.add_argument("--flips", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if given.cost:
            cost(Path(folder))
        else:
            measure(Path(folder), given.chunks, given.flips, given.seed)
    print(f"{time.monotonic() - begin:.0f} s")
