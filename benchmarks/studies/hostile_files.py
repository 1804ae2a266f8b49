"""Mutated files of every kind that is read: what they do to the readers.

``python -m benchmarks.studies.hostile_files --files 2000`` changes files at random, reads each as
the commands do, in a process of its own with limits, and counts what must never happen: tracebacks,
errors that the command line would call unexpected, memory above 1 GiB, hangs, and numbers that are
not those of the file. What is accepted is therefore read a second time, by a few plain lines that
share no code with the readers. ``--first N --files 1`` repeats file N of a seed.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import zarr
from PIL import Image
from safetensors.numpy import save

from pathkernel_core import QueryKey, SufficientStatistics
from pathkernel_core.system.errors import PathkernelError
from pathkernel_one_shot import omniglot
from pathkernel_one_shot.idx import read_idx
from pathkernel_one_shot.omniglot import read_archive
from pathkernel_tasks.array_files import read_arrays
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.heads_file import read_heads, save_heads
from pathkernel_trained.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from pathkernel_trained.network import NetworkShape, initial_weights
from pathkernel_trained.path_network import along_paths, read_paths, save_paths

SECONDS, BYTES = 20, 2**30  # longer is a hang, more is too much memory
NEVER = ("traceback", "unexpected", "memory", "hang", "other values")

Arrays = Mapping[str, np.ndarray]

# -- the files, and how each is read: by the reader of the package and by a plain second one


def npz_arrays(path: Path) -> Arrays:
    """Arrays of an archive, with a parser of its own for NumPy's headers."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                content = archive.read(member)
                wide = content[6] > 1
                start = 12 if wide else 10
                end = start + int.from_bytes(content[8:start], "little")
                about = ast.literal_eval(content[start:end].decode("latin1"))
                flat = np.frombuffer(content, about["descr"], offset=end)
                order = "F" if about["fortran_order"] else "C"
                found[member.filename[:-4]] = flat.reshape(about["shape"], order=order)
    return found


def safetensors_arrays(path: Path) -> Arrays:
    """Arrays of a safetensors file, by its specification."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, about in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, last = (start + offset for offset in about["data_offsets"])
            kind = about["dtype"]
            kinds = {"F": "f", "I": "i", "U": "u", "C": "c"}
            code = "?" if kind == "BOOL" else f"<{kinds[kind[0]]}{int(kind[1:]) // 8}"
            found[name] = np.frombuffer(content[first:last], code).reshape(about["shape"])
    return found


def zarr_arrays(path: Path) -> Arrays:
    """Arrays of a folder, chunk by chunk, of the codecs that :func:`zarr_folder` writes."""
    found = {}
    for file in path.glob("*/zarr.json"):
        about = json.loads(file.read_text())
        if about["node_type"] != "array":
            continue
        codecs = {codec["name"]: codec.get("configuration", {}) for codec in about["codecs"]}
        end = {"big": ">"}.get(codecs["bytes"].get("endian"), "<")
        kind = np.dtype(about["data_type"]).newbyteorder(end)
        shape, step = about["shape"], about["chunk_grid"]["configuration"]["chunk_shape"]
        fill = about["fill_value"]
        if isinstance(fill, str) and fill.startswith("0x"):
            fill = np.frombuffer(int(fill, 16).to_bytes(kind.itemsize), kind.newbyteorder(">"))[0]
        array = np.full(shape, np.array(fill).astype(kind.newbyteorder("=")))
        encoding = about["chunk_key_encoding"]
        mark = encoding.get("configuration", {}).get("separator", "/")
        for place in itertools.product(*(range(-(-size // by)) for size, by in zip(shape, step))):
            parts = [*(["c"] if encoding["name"] == "default" else []), *map(str, place)]
            chunk = file.parent / (mark.join(parts) or "0")
            if chunk.exists():
                content = chunk.read_bytes()
                content = gzip.decompress(content) if "gzip" in codecs else content
                region = tuple(slice(i * by, (i + 1) * by) for i, by in zip(place, step))
                whole = np.frombuffer(content, kind).reshape(step)
                part = array[region]
                array[region] = whole[tuple(map(slice, part.shape))]
        found[file.parent.name] = array
    return found


class Kind:
    """A kind of file.

    Parameters
    ----------
    make : callable
        Path → None; writes an intact file.
    read : callable
        Path → arrays, as the package reads it.
    second : callable, optional
        Path → arrays, by plain means. By default the file must give what the intact one gives,
        since its digest is known.
    """

    def __init__(self, make: Callable, read: Callable, second: Callable | None = None):
        self.make, self.read, self.second = make, read, second


_RNG = np.random.default_rng(0)
_INPUTS = _RNG.normal(size=(12, 3, 4))
_DATA = {
    "inputs": _INPUTS,
    "labels": np.arange(12) % 2,
    "test_inputs": _INPUTS[:5] + 1,
    "test_labels": np.arange(5) % 2,
}
_LAYERS = [QueryKey(*_RNG.normal(size=(2, 2, 3, 4)), 0.5) for _ in range(2)]
_NETWORK = Checkpoint(initial_weights(NetworkShape(2, 3, 5, 2), 4, 0), None, {"step": 1})
_DRAWINGS = [f"images/Latin/one/{number}.png" for number in (1, 2)]


def zarr_folder(path: Path) -> None:
    group = zarr.create_group(path)
    for name, array in _DATA.items():
        compressors = zarr.codecs.GzipCodec() if name.startswith("test") else None
        chunks = tuple(max(1, size // 2) for size in array.shape)
        group.create_array(name, data=array, chunks=chunks, compressors=compressors)


def zip_of_drawings(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, name in enumerate(_DRAWINGS):
            stream, pixels = io.BytesIO(), np.zeros((105, 105), np.uint8)
            pixels[number : number + 50, 20:70] = 255
            Image.fromarray(pixels).save(stream, "png")
            archive.writestr(name, stream.getvalue())


def idx_content() -> bytes:
    images = (np.arange(6 * 28 * 28) % 251).astype(np.uint8)
    return bytes((0, 0, 8, 3)) + np.array([6, 28, 28], ">u4").tobytes() + images.tobytes()


def read_custom(path: Path) -> Arrays:
    """As ``pathkernel run custom`` does; then what the file holds."""
    heads = path.with_name("intact.safetensors")
    if not heads.exists():
        save_heads(heads, _LAYERS)
    task = Custom(inputs=str(path), heads=str(heads))
    task.provenance()
    task.realise(0)
    return read_arrays(path, "data file")[0]


def read_layers(path: Path) -> Arrays:
    heads = read_heads(path)
    pairs = enumerate(heads.layers, start=1)
    return {
        f"{kind}.{number}": getattr(layer, kind)
        for number, layer in pairs
        for kind in ("queries", "keys")
    }


def read_network(path: Path) -> Arrays:
    found = read_checkpoint(path)
    along_paths(found)
    arrays = {name: found.weights[name] for name in ("projection", "readout")}
    for name in ("values", "queries", "keys"):
        arrays |= {f"{name}.{n}": layer for n, layer in enumerate(found.weights[name], start=1)}
    return arrays


def read_path_network(path: Path) -> Arrays:
    found = read_paths(path)
    return {"path_weights": found.path_weights, "order_parameter": found.order_parameter}


def read_statistics(path: Path) -> Arrays:
    found = SufficientStatistics.load(path)
    return {name: np.asarray(value) for name, value in vars(found).items()}


def read_drawings(path: Path) -> Arrays:
    intact = path.with_name("intact.zip")
    if not intact.exists():
        zip_of_drawings(intact)
    content = hashlib.sha256()
    with zipfile.ZipFile(intact) as archive:
        for name in _DRAWINGS:
            png = archive.read(name)
            content.update(f"{name} {len(png)}\n".encode() + png)
    files = read_archive.__wrapped__(path, "images", content.hexdigest())["images/Latin/one"]
    return {str(n): np.asarray(Image.open(io.BytesIO(png))) for n, png in enumerate(files)}


def read_split(path: Path) -> Arrays:
    return {"characters": np.array(omniglot.read_split(path, "train"))}


def _file(write: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda path: write(path) and None


_IDX_DIGEST = hashlib.sha256(idx_content()).hexdigest()

KINDS = {
    "data.npz": Kind(lambda path: np.savez(path, **_DATA), read_custom, npz_arrays),
    "packed.npz": Kind(lambda path: np.savez_compressed(path, **_DATA), read_custom, npz_arrays),
    "data.safetensors": Kind(
        _file(lambda path: path.write_bytes(save(_DATA))), read_custom, safetensors_arrays
    ),
    "data.zarr": Kind(zarr_folder, read_custom, zarr_arrays),
    "heads.npz": Kind(lambda path: save_heads(path, _LAYERS), read_layers, npz_arrays),
    "heads.safetensors": Kind(
        lambda path: save_heads(path, _LAYERS), read_layers, safetensors_arrays
    ),
    "network.safetensors": Kind(
        lambda path: save_checkpoint(path, _NETWORK), read_network, safetensors_arrays
    ),
    "paths.safetensors": Kind(
        lambda path: save_paths(path, along_paths(_NETWORK)), read_path_network, safetensors_arrays
    ),
    "statistics.npz": Kind(
        lambda path: SufficientStatistics.of(_INPUTS, _DATA["labels"] - 0.5).save(path),
        read_statistics,
        npz_arrays,
    ),
    "images.gz": Kind(
        _file(lambda path: path.write_bytes(gzip.compress(idx_content()))),
        lambda path: {"images": read_idx.__wrapped__(path, _IDX_DIGEST)},
    ),
    "drawings.zip": Kind(zip_of_drawings, read_drawings),
    "splits.json": Kind(
        _file(lambda path: path.write_text('{"background": {"Latin": ["one"]}}')), read_split
    ),
}

# -- what is done to them

_SIZES = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
_NUMBERS = (b"0", b"-1", b"1e9", b"2", b"1000000", b"99999999999999999999", b"NaN", b"[3]", b"0.5")
_TOKENS = (b"[" * 3000, b"{" * 3000, b"\x1b[31m", b"\0", b"null", b"/../", b"\xff\xfe", b"\n", b'"')


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Content with some bytes changed, lost or put in; of text also numbers and words."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 3)):
        size = max(1, len(data))
        near = min(size, int(rng.choice([64, 512, size])))  # headers are where the meaning is
        place = int(rng.integers(near))
        place = place if rng.random() < 0.7 else size - 1 - place
        match rng.integers(9):
            case 0 if data:
                data[place] ^= 1 << int(rng.integers(8))
            case 1:
                data[place : place + int(rng.integers(1, 9))] = rng.bytes(int(rng.integers(1, 9)))
            case 2:
                del data[place : place + int(rng.integers(1, max(2, near)))]
            case 3:
                data[place:place] = data[place : place + int(rng.integers(1, 200))]
            case 4:
                width = int(rng.choice([2, 4, 8]))
                value = _SIZES[rng.integers(len(_SIZES))] % 256**width
                data[place : place + width] = value.to_bytes(width, "little")
            case 5 | 6:
                numbers = list(re.finditer(rb"\d+", bytes(data)))
                if numbers:
                    found = numbers[rng.integers(len(numbers))]
                    data[slice(*found.span())] = _NUMBERS[rng.integers(len(_NUMBERS))]
            case 7 if digits := [i for i, byte in enumerate(data) if chr(byte).isdigit()]:
                data[digits[rng.integers(len(digits))]] = ord("0") + int(rng.integers(10))
            case 8:
                data[place:place] = _TOKENS[rng.integers(len(_TOKENS))]
    return bytes(data)


def mutate(path: Path, rng: np.random.Generator) -> None:
    """Change a file in its place, or one of a folder; sometimes inside of what packs it."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        headers = [file for file in files if file.name == "zarr.json"]
        path = (headers if rng.random() < 0.6 else files)[rng.integers(len(headers))]
        if rng.random() < 0.05:
            path.unlink()
            return
    content = path.read_bytes()
    inside = rng.random() < 0.5
    if inside and path.suffix == ".gz":
        path.write_bytes(gzip.compress(mutated(gzip.decompress(content), rng)))
    elif inside and path.suffix in (".zip", ".npz"):  # with checksums that are right again
        with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(path, "w") as other:
            members = archive.namelist()
            changed = members[rng.integers(len(members))]
            for name in members:
                held = archive.read(name)
                other.writestr(name, mutated(held, rng) if name == changed else held)
    elif inside and path.suffix == ".safetensors":  # with the length of the header right again
        length = int.from_bytes(content[:8], "little")
        header = mutated(content[8 : 8 + length], rng)
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    else:
        path.write_bytes(mutated(content, rng))


# -- reading them


def same(found: Arrays, wanted: Arrays) -> bool:
    """Whether all arrays that were read are those of the second reading, in double precision."""

    def equal(one: np.ndarray, two: np.ndarray) -> bool:
        if one.dtype.kind == "f" != two.dtype.kind:
            return False
        kind = one.dtype if one.dtype.kind in "fc" else two.dtype
        return one.shape == two.shape and np.array_equal(
            one, two.astype(kind), equal_nan=kind.kind in "fc"
        )

    return all(name in wanted and equal(array, wanted[name]) for name, array in found.items())


def verdict(name: str, number: int, seed: int, folder: Path) -> tuple[str, str]:
    """What one mutated file does: an outcome, and what to say about it."""
    kind, path = KINDS[name], folder / name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        kind.make(path)
        intact = None if kind.second or name == "splits.json" else kind.read(path)
        if number >= 0:  # else it is left intact
            mutate(path, np.random.default_rng([seed, number]))
        try:
            found = kind.read(path)
        except Exception as error:
            if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
                return "memory", repr(error)
            expected = isinstance(error, (PathkernelError, OSError, ValueError))
            return "refused" if expected else "unexpected", repr(error)
        except BaseException as error:  # a panic of a compiled reader is no Exception
            return "traceback", repr(error)
        try:
            wanted = intact if kind.second is None else kind.second(path)
        except Exception as error:
            return "other values", f"the second reader fails: {error!r}"
        return ("accepted", "") if same(found, wanted) else ("other values", "they differ")


def work(pipe, seed: int) -> None:
    """Read files that the pipe names, in a folder and with memory of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * BYTES, 4 * BYTES))
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.redirect_stdout(nowhere),
    ):
        pipe.send("ready")  # the time that imports take is not the files'
        while True:
            result = verdict(*pipe.recv(), seed, Path(folder))
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            pipe.send(result if peak < BYTES else ("memory", f"{peak / BYTES:.2f} GiB"))


class Worker:
    """A process that reads files until one of them is too much for it."""

    def __init__(self, seed: int):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=work, args=(other, seed), daemon=True)
        self._process.start()
        other.close()
        self._pipe.recv()

    def read(self, name: str, number: int) -> tuple[str, str]:
        self._pipe.send((name, number))
        try:
            if self._pipe.poll(SECONDS):
                return self._pipe.recv()
            return "hang", f"longer than {SECONDS} s"
        except (EOFError, ConnectionError):
            return "traceback", "the process ended"

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which, separated by commas")
    parser.add_argument("--show", action="store_true", help="print what is said about each file")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    counts = {name: collections.Counter() for name in kinds}
    worker, begun = Worker(options.seed), time.monotonic()
    for name in kinds:
        if name != "splits.json" and (found := worker.read(name, -1))[0] != "accepted":
            raise AssertionError(f"the intact {name} is not read: {found}")
    for number in range(options.first, options.first + options.files):
        name = kinds[number % len(kinds)]
        outcome, words = worker.read(name, number)
        counts[name][outcome] += 1
        if outcome in NEVER or options.show:
            print(f"{name} {number}: {outcome}: {words[:300]}", flush=True)
        if outcome in ("hang", "memory", "traceback"):
            worker.stop()
            worker = Worker(options.seed)
    worker.stop()
    columns = ("refused", "accepted", *NEVER)
    width = max(map(len, kinds))
    print(f"{'':{width}}  {'files':>6}" + "".join(f"  {column:>12}" for column in columns))
    counts["all"] = sum(counts.values(), collections.Counter())
    for name, found in counts.items():
        cells = "".join(f"  {found[column]:>12}" for column in columns)
        print(f"{name:{width}}  {found.total():>6}{cells}")
    print(f"{time.monotonic() - begun:.0f} s")
    return int(any(counts["all"][column] for column in NEVER))


if __name__ == "__main__":
    sys.exit(main())
