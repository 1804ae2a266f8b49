"""Files of studies that claim more than they hold, or something else than a run writes."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import xarray as xr
from folders import content

from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.system import memory
from pathkernel_datasets.errors import StudyError, StudyWarning
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.zarr_bounds import _frame_content as frame_content
from pathkernel_datasets.folder.zarr_files import write_tree
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.identity import text_of
from pathkernel_datasets.testing import SMALL_STUDY, SmallTask
from pathkernel_datasets.variables.labelling import checksum

FOLDER = Path(__file__).parents[1]


def run(path, **settings):
    return compute_study(SMALL_STUDY, path, analyses=(), **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A complete study with a result."""
    path = tmp_path_factory.mktemp("whole") / "study"
    run(path)
    spectrum = {"number": ("place", np.arange(3.0)), "error": ("place", np.zeros(3))}
    write_tree(path / "spectrum.zarr", xr.Dataset(spectrum))
    return path


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A study in progress."""
    path = tmp_path_factory.mktemp("begun") / "study"
    run(path, part=(1, 2))
    return path


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "study")


@pytest.fixture
def in_progress(begun, tmp_path):
    return shutil.copytree(begun, tmp_path / "study")


def describe_array(zarr, name, **metadata):
    """Change the metadata of an array and of the root, with its checksum."""
    root, own = (json.loads((zarr / part / "zarr.json").read_text()) for part in ("", name))
    own |= metadata
    root["consolidated_metadata"]["metadata"][name] = own
    root["attributes"]["metadata_crc32"] = checksum(root)
    (zarr / name / "zarr.json").write_text(json.dumps(own))
    (zarr / "zarr.json").write_text(json.dumps(root))


def describe_study(path, change):
    """Change the description of a study, with its checksum."""
    described = json.loads((path / "study.json").read_text())
    change(described)
    described["attributes"]["metadata_crc32"] = checksum(described)
    (path / "study.json").write_text(json.dumps(described))


def by_chunks(*shape):
    return {"name": "regular", "configuration": {"chunk_shape": list(shape)}}


CLAIMS = {
    "chunks without end": ("action", {"shape": [2**40, 2, 2]}),
    "one chunk of all memory": ("action", {"chunk_grid": by_chunks(2**40, 2, 2)}),
    "another chunk": ("action", {"chunk_grid": by_chunks(1, 2, 3)}),
    "wider numbers": ("status", {"data_type": "complex128"}),
    "wide text": (
        "action",
        {"data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 2**30}}},
    ),
    "text that fills": ("path", {"fill_value": "x" * 1000}),
    "more texts": ("path", {"shape": [2**20], "chunk_grid": by_chunks(2**20)}),
    "another codec": ("action", {"codecs": [{"name": "bytes"}, {"name": "gzip"}]}),
    "negative": ("action", {"shape": [-1, 2, 2]}),
    "no whole number": ("action", {"shape": [2.0, 2, 2]}),
    "no list": ("action", {"shape": None}),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_an_array_claims_beyond_its_files_is_refused_by_name(path, claim):
    name, metadata = CLAIMS[claim]
    describe_array(path / "study.zarr", name, **metadata)
    with pytest.raises(StudyError, match=rf"study\.zarr is damaged.*{name}"):
        open_study(path)
    assert f"{path / 'study.zarr' / name} is damaged" in " ".join(check(path).study)
    with pytest.warns(StudyWarning, match="is damaged"):
        run(path)
    assert check(path).study == ()


@pytest.mark.parametrize("kind", ["repeated", "random"])
@pytest.mark.parametrize("size", [1, 255, 256, 70_000, 300_000])
def test_chunks_of_any_number_of_blocks_tell_what_they_unpack_to(tmp_path, size, kind):
    draw = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    content = draw.tobytes() if kind == "random" else bytes(size)
    for checksum_of in (False, True):
        frame = numcodecs.Zstd(level=0, checksum=checksum_of).encode(content)
        assert frame_content(io.BytesIO(frame), len(frame)) == size


@pytest.mark.parametrize(
    "flags",
    [0b00000000, 0b00000001, 0b00100001, 0b00100010],
    ids=["of unknown size", "of unknown size with a dictionary", "with a dictionary", "another"],
)
def test_frames_that_no_run_writes_are_refused(flags):
    frame = bytearray(numcodecs.Zstd(level=0).encode(bytes(70_000)))
    frame[4] = flags
    stream = io.BytesIO(bytes(frame))
    stream.name = "c/0"
    with pytest.raises(ValueError, match="c/0 is no chunk that pathkernel writes"):
        frame_content(stream, len(frame))


def test_chunks_that_unpack_to_more_are_refused(path):
    """Frames that follow one another are one to a decoder."""
    file = path / "study.zarr" / "action" / "c" / "0" / "0" / "0"
    frame = file.read_bytes()[:-4]
    file.write_bytes(frame + frame + b"\0\0\0\0")
    with pytest.raises(StudyError, match=r"action: .* has more content than its chunk"):
        open_study(path)
    larger = path / "study.zarr" / "order_parameter" / "c" / "0" / "0" / "0" / "0" / "0"
    file.write_bytes(larger.read_bytes())
    with pytest.raises(StudyError, match=r"action: .* would unpack to .*, not to the"):
        open_study(path)


def test_arrays_together_take_a_thousand_times_their_files_at_most(path, monkeypatch):
    monkeypatch.setattr(memory, "_SMALL_CLAIM", 100)
    open_study(path)
    monkeypatch.setattr(memory, "CLAIM_RATIO", 1)
    with pytest.raises(StudyError, match=r"its arrays would take .* but its files hold"):
        open_study(path)


def test_names_of_arrays_stay_inside_the_folder(whole, path):
    root = json.loads((path / "study.zarr" / "zarr.json").read_text())
    index = root["consolidated_metadata"]["metadata"]
    index["../action"] = index["action"]
    root["attributes"]["metadata_crc32"] = checksum(root)
    (path / "study.zarr" / "zarr.json").write_text(json.dumps(root))
    assert check(path).study[0] == f"{path / 'study.zarr'} is damaged: its metadata are unreadable"
    assert open_study(path).load().equals(open_study(whole).load())  # by the arrays' own metadata


def test_exchanged_metadata_of_a_result_are_not_taken_for_its_own(path):
    one, two = (path / "spectrum.zarr" / name / "zarr.json" for name in ("number", "error"))
    text = one.read_text().replace('"place"', '"position"')
    one.write_text(text)
    with pytest.raises(StudyError, match=r"spectrum\.zarr is damaged \(number is damaged"):
        StoredStudy(path).result("spectrum")
    assert any("spectrum.zarr/number is damaged" in line for line in check(path).results)
    shutil.copy(path / "study.zarr" / "zarr.json", path / "spectrum.zarr" / "zarr.json")
    with pytest.raises(StudyError, match=r"spectrum\.zarr is damaged"):
        StoredStudy(path).result("spectrum")
    assert two.exists()


SEEDS = list(range(40_000))


def claim_seeds(described):
    described["attributes"]["study"]["seeds"] = SEEDS
    described["coords"]["seed"]["values"] = SEEDS
    described["sizes"]["seed"] = len(SEEDS)


def claim_size(described):
    described["sizes"]["example"] = 10**5
    described["coords"]["example"]["values"] = list(range(10**5))


@pytest.mark.parametrize("claim", [claim_seeds, claim_size])
def test_a_dataset_in_progress_is_bounded_by_the_files_of_its_folder(
    in_progress, monkeypatch, claim
):
    monkeypatch.setattr(memory, "_SMALL_CLAIM", 2**20)
    monkeypatch.setattr(memory, "CLAIM_RATIO", 10)
    describe_study(in_progress, claim)
    for read in (open_study, check):
        with pytest.raises(StudyError, match=r"study\.json describes a dataset of"):
            read(in_progress)


@pytest.mark.parametrize("read", [open_study, check])
def test_a_study_is_read_while_what_is_below_it_comes_and_goes(in_progress, read):
    """Folders of results, and files in them, that other processes write and remove."""
    passing, is_over = in_progress / "passing.zarr", threading.Event()

    def come_and_go():
        while not is_over.is_set():
            (passing / "a" / "c").mkdir(parents=True, exist_ok=True)
            for name in ("a/zarr.json", "a/c/0", "zarr.json"):
                (passing / name).write_text("{}")
            shutil.rmtree(passing)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(20):
            read(in_progress)
    finally:
        is_over.set()
        other.join()


IDENTITY = {
    "seeds": ("0", [], [0, 0], [0.5], [True], [-1], None),
    "widths": ([0.0], ["5"], [None], [float("inf")], 5.0),
    "temperatures": ([-1.0], {}, [[0.1]]),
    "options": ([], {"examples": {"a": 1}}, {"examples": float("nan")}),
    "provenance": ({"inputs": 3}, None),
    "task": (3, None, []),
    "sweep": ({"examples": {}}, {"a/b": {"1": {}}}, [1]),
}


@pytest.mark.parametrize("key", IDENTITY)
def test_what_identifies_a_study_has_the_types_of_a_run(path, key):
    for value in IDENTITY[key]:
        describe_study(
            path, lambda content, value=value: content["attributes"]["study"].update({key: value})
        )
        assert check(path).study[0].startswith(f"{path / 'study.json'} is missing or damaged: ")
        assert open_study(path).sizes["seed"] == 2  # by study.zarr
    run(path)
    assert check(path).study == ()


DESCRIBED = {
    "heads": lambda content: content["attributes"].update(heads_per_layer=[2, 10**9]),
    "notes": lambda content: content["attributes"].update(notes=3),
    "schema": lambda content: content["attributes"].pop("label"),
    "seed": lambda content: content["coords"]["seed"].update({"values": [0, 7]}),
    "labels": lambda content: content["coords"]["path"].update(
        {"values": list(range(content["sizes"]["path"]))}
    ),
    "type": lambda content: content["variables"]["status"].update(dtype="float64"),
    "dims": lambda content: content["variables"]["action"]["dims"].reverse(),
    "lost": lambda content: content["variables"].pop("status"),
    "unit": lambda content: content["variables"]["action"]["attributes"].update(units=[1]),
}


@pytest.mark.parametrize("change", DESCRIBED)
def test_labels_attributes_and_variables_are_those_of_a_run(in_progress, change):
    describe_study(in_progress, DESCRIBED[change])
    for read in (open_study, check):
        with pytest.raises(StudyError, match=r"study\.json is missing or unreadable \(its? "):
            read(in_progress)


def rewrite(file, change, save=np.savez):
    with np.load(file) as stored:
        values = dict(stored)
    change(values)
    save(file, **values)


def claim_more(file):
    file.write_bytes(file.read_bytes().replace(b"'shape': (2,", b"'shape': (9,", 1))


PIECES = {
    "is of another study": lambda file: rewrite(file, lambda v: v.update(study=np.array("{}"))),
    "holds action of shape": lambda file: rewrite(file, lambda v: v.update(action=np.zeros(3))),
    "holds status of type float64, not int8": lambda file: rewrite(
        file, lambda v: v.update(status=np.zeros(2))
    ),
    "holds no temperatures": lambda file: rewrite(
        file, lambda v: v.update(temperature=np.array(["a", "b"]))
    ),
    "is damaged": lambda file: rewrite(file, lambda v: v.update(), np.savez_compressed),
    "is damaged ": claim_more,
}


@pytest.mark.parametrize("fault", PIECES)
def test_a_piece_of_another_study_or_of_other_shapes_is_named_and_computed_again(
    whole, in_progress, fault
):
    file = in_progress / "pieces" / "seed-0_N-10.npz"
    PIECES[fault](file)
    (line,) = check(in_progress).study
    assert line.startswith(f"{file} {fault.strip()}")
    with pytest.warns(StudyWarning, match="seed-0_N-10"):
        assert (open_study(in_progress)["status"].sel(seed=0, width=10) == 0).all()
    with pytest.warns(StudyWarning, match="computed? it again|computes it again"):
        run(in_progress)
    mended = {name: data for name, data in content(whole).items() if "spectrum" not in name}
    assert content(in_progress) == mended


def test_an_option_that_is_no_option_of_the_task_is_told_when_it_is_used(path):
    """Files can hold any plain value of an option: what takes it says what it must be."""
    describe_study(
        path, lambda content: content["attributes"]["study"]["options"].update(examples="many")
    )
    metadata = path / "study.zarr" / "zarr.json"
    root = json.loads(metadata.read_text())
    identity = json.loads(root["attributes"]["study"])
    identity["options"]["examples"] = "many"
    root["attributes"]["study"] = text_of(identity)
    root["attributes"]["metadata_crc32"] = checksum(root)
    metadata.write_text(json.dumps(root))
    study = StoredStudy(path, Plugins(tasks={SmallTask.name: SmallTask}))
    with pytest.raises((TypeError, ValueError), match=r"examples must be .* but is 'many'"):
        study.rebuild(study.point(10))


@pytest.mark.slow  # beside the tests of single edits above
@pytest.mark.parametrize("edits", [6])
def test_random_edits_are_refused_by_name_or_read_right(edits):
    program = [sys.executable, str(FOLDER / "edited_folders.py"), "--edits", str(edits)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{edits} edits: " in ended.stdout
