"""Damage to a store: named by check, refused or mended, and never taken for values."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from pathkernel_datasets.publishing import publish_groups
from pathkernel_datasets.store import check, check_store, open_study

from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.lock import lock_of
from pathkernel_datasets.run_study import compute_study
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_datasets.study import Study
from pathkernel_datasets.testing import SmallTask

GROUP = "further/group"


def run(path):
    return compute_study(Study(SmallTask(), (10, 100), (1.0,)), path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished study with a result beside it."""
    path = tmp_path_factory.mktemp("whole") / "study.zarr"
    run(path)
    publish_groups(path, [(GROUP, xr.Dataset({"number": ("place", np.zeros(3))}))])
    return path


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "study.zarr")


@pytest.mark.parametrize("content", [b"notes", b"CDF\x01", None])
def test_what_never_was_a_store(tmp_path, content):
    path = tmp_path / "d.nc"
    if content is None:
        (path / "inside").mkdir(parents=True)
    else:
        path.write_bytes(content)
    message = "is no store of pathkernel, which is a folder such as NAME.zarr; choose another"
    for read in (open_study, check, run):
        with pytest.raises(StoreError, match=message):
            read(path)


def content(path):
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def flip(file, bit=100):
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def test_a_whole_store_is_found_whole(store):
    checked = check(store)
    assert (checked.study, checked.results) == ((), ())
    assert (checked.points, checked.computed) == (2, 2)
    assert run(store) == 0


DAMAGE = {
    "deleted": Path.unlink,
    "emptied": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(b"\0" * 4),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "flipped": flip,
}


FILES = (
    *("order_parameter/c/0/0/0/0/0", "test_label/c/0/0/0", "status/c/0/0/0", "path/c/0"),
    *("zarr.json", "action/zarr.json", "width/zarr.json", "status/checksums.json"),
)


# every file and every damage in each run, all of their pairs in the slow ones
PAIRS = [
    pytest.param(file, damage, marks=[pytest.mark.slow] * ((row + column) % 3 > 0))
    for row, file in enumerate(FILES)
    for column, damage in enumerate(DAMAGE)
]


@pytest.mark.parametrize(("file", "damage"), PAIRS)
def test_damage_is_named_and_mended_by_the_same_command(whole, store, file, damage):
    DAMAGE[damage](store / file)
    assert check(store).study[0].startswith(file)
    with pytest.warns(StoreWarning, match="was damaged"):
        computed = run(store)
    if file.startswith(("test_label", "path", "width")) or file.endswith(".json"):
        assert computed == 0, "only what is damaged is computed again"
    assert content(store) == content(whole)
    assert check(store).study == ()


def test_a_store_that_lacks_chunks_is_not_shown(store):
    (store / "action/c/0/0/0").unlink()
    with pytest.raises(StoreError, match=r"damaged: chunks of action are missing; run the command"):
        open_study(store)


def test_a_damaged_result_is_named(store):
    flip(store / GROUP / "number" / "c" / "0")
    checked = check(store)
    assert checked.study == ()
    assert checked.results == (f"{GROUP}/number/c/0 is not as it was written",)


def test_one_flipped_bit_is_not_read_as_another_value(store):
    for file in (store / "action" / "c").rglob("0"):
        if file.is_file():
            flip(file)
    with pytest.raises(ValueError, match="checksum"):
        open_study(store)["action"].load()


def test_what_is_no_store_is_left_alone(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        check(tmp_path / "none" / "study.zarr")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("study", ["[]", '{"sweep": {"n": {}}, "options": {"n": ["a/../../b"]}}'])
def test_a_study_whose_values_are_no_plain_words_is_refused(store, study):
    metadata = json.loads((store / "zarr.json").read_bytes())
    metadata["attributes"]["study"] = study
    (store / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(StoreError, match="its study is unreadable"):
        check_store(store)


@pytest.mark.parametrize("name", ["../outside/zarr.json", "/outside/zarr.json"])
def test_checksums_of_files_outside_the_store_are_refused(store, name):
    text = json.dumps({"attributes": {}, "files": {name: "0"}})
    digest = hashlib.sha256(text.encode()).hexdigest()
    (store / "status/checksums.json").write_text(text + digest)
    assert check(store).study == ("status/checksums.json is missing or damaged",)


def test_plain_xarray_opens_what_open_store_does(store):
    for consolidated in (True, False):
        plain = xr.open_zarr(store, chunks=None, consolidated=consolidated)
        assert plain.data_vars.keys() == open_study(store).data_vars.keys()
        assert plain.attrs == open_study(store).attrs


REWRITTEN = {
    "fill values left out": lambda dataset: (dataset, {"write_empty_chunks": False}),
    "all chunks": lambda dataset: (dataset, {"write_empty_chunks": True}),
    "not consolidated": lambda dataset: (dataset, {"consolidated": False}),
    "one width": lambda dataset: (dataset.sel(width=[100]), {}),
    "other order": lambda dataset: (dataset.isel(width=[1, 0]), {}),
    "other compression": lambda dataset: (dataset.drop_encoding(), {}),
    "other chunks": lambda dataset: (dataset, {"encoding": {"action": {"chunks": (1, 1, 1)}}}),
    "single precision": lambda dataset: (dataset.assign(action=dataset.action.astype("f4")), {}),
}


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("change", REWRITTEN)
def test_what_xarray_rewrote_is_opened_and_never_computed_into(whole, tmp_path, change):
    changed, settings = REWRITTEN[change](xr.open_zarr(whole, chunks=None).load())
    path = tmp_path / "rewritten.zarr"
    changed.to_zarr(path, zarr_format=3, **settings)
    xr.testing.assert_equal(open_study(path).drop_vars("path"), changed.drop_vars("path"))
    checked = check(path)
    assert (checked.study, checked.results) == ((), ())
    assert checked.computed == checked.points == changed.status.size
    before = content(path)
    with pytest.raises(StoreError, match="written by another program than pathkernel"):
        run(path)
    assert content(path) == before
    assert not lock_of(path).with_name("rewritten.zarr.pieces").exists()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_damage_to_what_xarray_rewrote_is_named(store, tmp_path):
    path = tmp_path / "rewritten.zarr"
    xr.open_zarr(store, chunks=None).load().to_zarr(path, zarr_format=3)
    (file,) = (file for file in (path / "action" / "c").rglob("*") if file.is_file())
    flip(file, 200)
    assert check(path).study[0].startswith("action is damaged (")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_selection_of_a_single_value_is_refused(store, tmp_path):
    path = tmp_path / "rewritten.zarr"
    xr.open_zarr(store, chunks=None).sel(width=10).to_zarr(path, zarr_format=3)
    with pytest.raises(StoreError, match=r"no dimension width.*dataset\.sel\(width=\[\.\.\.\]\)"):
        open_study(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are those of POSIX")
@pytest.mark.parametrize("file", ["zarr.json", "action/zarr.json", "action/c/0/0/0", "seed/c/0"])
def test_a_pipe_in_the_place_of_a_file_is_named_and_mended(whole, store, file):
    (store / file).unlink()
    os.mkfifo(store / file)
    assert check(store).study[0].startswith(f"{file} is no plain file")
    with pytest.raises(StoreError, match=f"{file} is no plain file but a pipe.*remove it"):
        open_study(store)
    with pytest.warns(StoreWarning, match="was damaged"):
        run(store)
    assert content(store) == content(whole)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are those of POSIX")
def test_pipes_and_links_that_belong_to_nothing_are_named(store):
    os.mkfifo(store / "further" / "pipe")
    (store / "again").symlink_to("..")
    checked = check(store)
    assert [line.split()[0] for line in checked.study + checked.results] == [
        "again",
        "further/pipe",
    ]
    for read in (open_study, check_store, StoredStudy):
        with pytest.raises(StoreError, match=r"is no plain file but a pipe.*; remove it"):
            read(store)


@pytest.mark.parametrize("error", [ImportError("no codec"), PermissionError(13, "denied")])
def test_what_is_no_damage_is_not_called_so(store, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("zarr.codecs.ZstdCodec._decode_sync", fail)
    with pytest.raises(type(error), match=f"{error.args[-1]}"):
        open_study(store)
    assert check_store(store)["task"] == "small-task"
