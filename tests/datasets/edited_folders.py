"""Random edits of a study's folder, each read by every reader within bounds.

``python tests/datasets/edited_folders.py --edits 100`` makes small folders, edits copies of them at
random, and reads each copy by the commands and in Python. Every edit must be refused by name or
read right: no other file is opened, no network, no pickle, no unexpected error, no more time and
memory than the bounds. Checksums are made again after half of the edits, as whoever changes a file
on purpose would. ``--first N --edits 1`` repeats an edit of a seed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import vl_convert
import xarray as xr
import zarr

from pathkernel.main import main
from pathkernel_core.system.errors import PathkernelError
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder import zarr_files
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.labelling import checksum
from pathkernel_tasks.hidden_markov import HiddenMarkov

SECONDS, BYTES = 20, 1.5e9
READERS = ("show", "check", "report")
TASK = HiddenMarkov(examples=8, test_examples=6)

# -- what is edited

VALUES = (
    None,
    True,
    -1,
    0,
    7,
    2**31,
    2**62,
    1e300,
    "",
    "text",
    "x" * 5000,
    [],
    [1, "a"],
    {"a": {}},
)


def make_folders(folder: Path) -> dict[str, Path]:
    """A published study, one of several values with a result, and one in progress."""
    single = Study(TASK, (5, 20), (0.1, 1.0), seeds=(0, 1))
    swept = Study(TASK, (5,), (0.1, 1.0), sweep={"variance": (0.5, 1.0)})
    for name, study in {"single": single, "swept": swept}.items():
        compute_study(study, folder / name, analyses=())
    compute_study(single, folder / "in progress", analyses=(), part=(1, 2))
    command("phases", folder / "swept", "--no-figures")
    return {name: folder / name for name in ("single", "swept", "in progress")}


def pick(values, rng):
    return list(values)[rng.integers(len(list(values)))]


def zarrs(path):
    return sorted(file for file in path.rglob("*.zarr") if file.is_dir())


def arrays(folder):
    files = sorted(folder.rglob("zarr.json"))
    return [f.parent for f in files if json.loads(f.read_text())["node_type"] == "array"]


def seal(folder):
    """Make the checksums of a Zarr again."""
    root = json.loads((folder / "zarr.json").read_text())
    index = root["consolidated_metadata"]["metadata"]
    for name in index:
        own = json.loads((folder / name / "zarr.json").read_text())
        own.pop("consolidated_metadata", None)
        index[name] = own | {k: v for k, v in index[name].items() if k == "consolidated_metadata"}
    chunks = {name: zarr_files._checksum_of_chunks(folder / name) for name in index}
    root["attributes"]["chunks_crc32"] = json.dumps(chunks)
    root["attributes"]["metadata_crc32"] = checksum(root)
    (folder / "zarr.json").write_text(json.dumps(root))


def of_metadata(path, rng, sealed):
    """One entry of an array's metadata."""
    folder = pick(zarrs(path), rng)
    array = pick(arrays(folder), rng)
    content = json.loads((array / "zarr.json").read_text())
    sizes = content["shape"], content["chunk_grid"]["configuration"]["chunk_shape"]
    key = pick(("shape", "chunks", "data_type", "fill_value", "codecs", "dimension_names"), rng)
    if key in ("shape", "chunks"):
        size = sizes[key == "chunks"]
        if size:
            size[rng.integers(len(size))] = pick((-1, 0, 1, 3, 5000, 10**6, 2**40, 2**63, 1.5), rng)
    elif key == "data_type":
        wide = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4 * 10**8}}
        kinds = ("float32", "float64", "int8", "int64", "string", "complex128", "nonsense", wide)
        content[key] = pick(kinds, rng)
    elif key == "codecs":
        content[key] = pick((content[key][:1], content[key][::-1], [], [{"name": "gzip"}]), rng)
    elif key == "dimension_names":
        content[key] = pick((content[key][::-1], ["path"] * len(sizes[0]), None), rng)
    else:
        content[key] = pick(VALUES, rng)
    (array / "zarr.json").write_text(json.dumps(content))
    if sealed:
        seal(folder)
    return f"{key} of {array.relative_to(path)}"


def of_attributes(path, rng, sealed):
    """One attribute of an array, or of a root."""
    folder = pick(zarrs(path), rng)
    file = pick((folder, *arrays(folder)), rng) / "zarr.json"
    content = json.loads(file.read_text())
    names = [name for name in content["attributes"] if "crc32" not in name]
    name = pick((*names, "units", "scale_factor"), rng)
    content["attributes"][name] = pick(VALUES, rng)
    file.write_text(json.dumps(content))
    if sealed:
        seal(folder)
    return f"attribute {name} of {file.parent.relative_to(path)}"


def of_exchange(path, rng, sealed):
    """Metadata, or chunks, of two arrays, or of the roots of two Zarrs."""
    folder = pick(zarrs(path), rng)
    one, two = (pick(arrays(folder), rng) / "zarr.json" for _ in range(2))
    kind = rng.integers(3)
    if kind == 1 and len(zarrs(path)) > 1:
        one, two = (pick(zarrs(path), rng) / "zarr.json" for _ in range(2))
        sealed = False
    elif kind == 2:
        one, two = (pick(sorted(f.parent.rglob("c/**/[0-9]*")) or [f], rng) for f in (one, two))
    if one.is_file() and two.is_file():
        content = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(content)
    if sealed:
        seal(folder)
    return f"{one.relative_to(path)} and {two.relative_to(path)} exchanged"


def of_chunk(path, rng, sealed):
    """A chunk: lost, cut, another number of values, or more than one frame."""
    folder = pick(zarrs(path), rng)
    array = pick(arrays(folder), rng)
    chunks = sorted(file for file in array.rglob("c/**/*") if file.is_file())
    if not chunks:
        return "nothing"
    file, kind = pick(chunks, rng), pick(("lost", "cut", "longer", "twice"), rng)
    content = file.read_bytes()
    if kind == "lost":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(content[: rng.integers(len(content))])
    else:
        ones = np.ones(int(rng.integers(1, 70_000)))
        other = zarr.create_array(path.parent / "other", data=ones, chunks=ones.shape)
        frame = (path.parent / "other" / "c" / "0").read_bytes()
        assert other.nchunks == 1
        shutil.rmtree(path.parent / "other")
        file.write_bytes(content[:-4] + frame if kind == "twice" else frame)
    if sealed:
        seal(folder)
    return f"{file.relative_to(path)} {kind}"


def of_description(path, rng, sealed):
    """One entry, at any depth, of a file that describes the study."""
    file = pick(sorted(path.rglob("study.json")), rng)
    content = json.loads(file.read_text())
    part, keys = content, []
    while isinstance(part, dict | list) and part:
        whole = part
        keys.append(pick(part if isinstance(part, dict) else range(len(part)), rng))
        part = whole[keys[-1]]
        if rng.random() < 0.15:
            break
    whole[keys[-1]] = pick((*VALUES, [part, part], list(range(2000))), rng)
    if sealed and isinstance(content["attributes"], dict):
        content["attributes"]["metadata_crc32"] = checksum(content)
    file.write_text(json.dumps(content))
    return f"{'/'.join(map(str, keys))} of {file.relative_to(path)}"


def of_piece(path, rng, sealed):
    """A piece: of another study, of other shapes or types, packed, or cut; a leftover beside it."""
    file = pick(sorted(path.rglob("pieces/*.npz")), rng)
    with np.load(file) as stored:
        values = dict(stored)
    names = sorted(values.keys() - {"file_name", "study", "members"})
    kind, name = (
        pick(("study", "shape", "type", "packed", "cut", "leftover", "claim"), rng),
        pick(names, rng),
    )
    save = np.savez
    if kind == "study":
        values["study"] = np.array(str(values["study"]).replace("8", "9"))
    elif kind == "shape":
        values[name] = np.zeros(rng.integers(0, 4, rng.integers(4)))
    elif kind == "type":
        values[name] = values[name].astype(pick(("U3", "complex128", "int8", "float32", "S2"), rng))
    elif kind == "packed":
        save, values[name] = np.savez_compressed, np.zeros(10**6)
    elif kind == "leftover":
        (file.parent / f".{file.name}.0123456789ab.partial").write_bytes(b"begun")
    save(file, **values)
    content = file.read_bytes()
    if kind == "cut":
        file.write_bytes(content[: rng.integers(len(content))])
    if kind == "claim":
        file.write_bytes(content.replace(b"'shape': (2,", b"'shape': (9,", 1))
    return f"{file.relative_to(path)}: {kind} ({name})"


EDITS: tuple[Callable, ...] = (
    of_metadata, of_attributes, of_exchange, of_chunk, of_description, of_piece
)  # fmt: skip

# -- how it is read


class Watch:
    """What a reader must not do, from an audit hook: open another file, connect, or unpickle."""

    def __init__(self, *folders: Path):
        self.seen: list[str] = []
        self._own = tuple(
            map(str, (*folders, *filter(None, sys.path), sys.prefix, sys.base_prefix))
        )
        self._allowed, self.begun = {"/dev/null"}, False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple) -> None:
        if event == "open" and isinstance(given[0], str | bytes):
            name = given[0] if isinstance(given[0], str) else given[0].decode(errors="replace")
            is_own = name.startswith((*self._own, "/proc/")) or not name.startswith("/")
            if self.begun and not is_own and name not in self._allowed:
                self.seen.append(f"opened {name}")
            self._allowed |= set() if self.begun else {name}
        elif self.begun and event in (
            "socket.connect", "socket.getaddrinfo", "socket.bind", "pickle.find_class",
            "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "urllib.Request",
        ):  # fmt: skip
            self.seen.append(f"{event} {given}")


def command(*arguments) -> tuple[int, str]:
    """Exit status and output of a command."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    raise AssertionError("main() exits")


def read_by_command(name: str, path: Path) -> str:
    """Fault of a command: an error that names nothing, or none of its own; empty if right."""
    status, output = command(name, path)
    if "unexpected" in output or "Traceback" in output:
        return output
    named = path.name in output or "a file of the study is damaged" in output
    return "" if status == 0 or named else output


def read_in_python(path: Path, intact: xr.Dataset | None) -> str:
    """Fault of reading in Python; values must be those of the intact study, if that is given."""
    try:
        study = StoredStudy(path)
        for result in study.results:
            study.result(result).load()
        dataset = open_study(path).load()
    except (PathkernelError, OSError, ValueError) as error:  # by Zarr, of a checksum of a chunk
        expected = isinstance(error, PathkernelError) or "checksum" in str(error)
        return "" if expected else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if intact is None or dataset.identical(intact):
        return ""
    # of a piece that is not taken, values are missing
    is_missing = (dataset["status"] <= intact["status"]).all() and dataset.sizes == intact.sizes
    return "" if is_missing and path.name == "in progress" else "other values"


def run(edits: int, first: int, seed: int, folder: Path) -> int:
    """Edit and read; print what must not be, and how many are refused; return the faults."""
    vl_convert.javascript_bundle = functools.cache(vl_convert.javascript_bundle)  # takes a second
    watch = Watch(folder)
    folders = make_folders(folder / "intact")
    intact = {name: open_study(path).load() for name, path in folders.items()}
    for name, path in folders.items():  # imports, and that what is intact is read
        copy = shutil.copytree(path, folder / "warm" / name)
        assert not any(read_by_command(reader, copy) for reader in READERS)
        assert not read_in_python(copy, intact[name])
    watch.begun, faults, refused, slowest = True, 0, 0, (0.0, "")
    for number in range(first, first + edits):
        rng = np.random.default_rng([seed, number])
        edit, sealed = EDITS[number % len(EDITS)], rng.random() < 0.5
        kinds = {of_piece: ["in progress"], of_description: list(folders)}
        name = pick(kinds.get(edit, ["single", "swept"]), rng)
        copy = shutil.copytree(folders[name], folder / "edited" / str(number) / name)
        edited, lines, watch.seen = edit(copy, rng, sealed), [], []
        sealed |= edit is of_piece
        for reader in (*READERS, "python"):
            begun = time.process_time()  # others may use the machine
            given = (copy, None if sealed else intact[name])
            fault = read_in_python(*given) if reader == "python" else read_by_command(reader, copy)
            seconds = time.process_time() - begun
            slowest = max(slowest, (seconds, f"{reader} of {number}, {edited}"))
            lines += [f"{reader}: {fault.strip()[-400:]}"] * bool(fault)
            lines += [f"{reader}: {seconds:.0f} s"] * (seconds > SECONDS)
        lines += watch.seen
        if (peak := 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > BYTES:
            lines.append(f"{peak / 1e9:.1f} GB")
        with contextlib.suppress(StudyError):
            refused -= bool(open_study(copy))
        refused += 1
        faults += bool(lines)
        for line in lines:
            print(f"{number} {name}{', sealed' * sealed}: {edited}: {line}", flush=True)
        shutil.rmtree(copy)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{edits} edits: {refused} refused by open_study, {faults} faults; the slowest reader took "
        f"{slowest[0]:.1f} s ({slowest[1]}), the largest memory is {peak / 1e9:.2f} GB"
    )
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first edit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        sys.exit(bool(run(options.edits, options.first, options.seed, Path(name))))
