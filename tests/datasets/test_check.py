"""Damage to a store: named by check, refused or mended, and never taken for values."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from pathkernel_datasets import checksums
from pathkernel_datasets import store as store_module
from pathkernel_datasets.check import check
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.groups import add_group, sole_writer
from pathkernel_datasets.store import Store, open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study
from pathkernel_datasets.testing import SmallTask

GROUP = "further/group"


def run(path):
    return compute_study(Study(SmallTask(), (10, 100), (1.0,)), path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished study with a result beside it."""
    path = tmp_path_factory.mktemp("whole") / "study.zarr"
    run(path)
    with sole_writer(path):
        add_group(path, GROUP, xr.Dataset({"number": ("place", np.zeros(3))}))
    return path


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "study.zarr")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"notes", "is a file; a store of pathkernel is a folder, such as NAME.zarr"),
        (b"CDF\x01", "is a NetCDF file, which xarray.open_dataset opens; give the store"),
        (b"\x89HDF\r\n\x1a\n", "is a NetCDF file, which xarray.open_dataset opens; give the store"),
        (None, "is a folder, but no store of pathkernel; choose another"),
    ],
)
def test_what_never_was_a_store(tmp_path, content, message):
    path = tmp_path / "d.nc"
    if content is None:
        (path / "inside").mkdir(parents=True)
    else:
        path.write_bytes(content)
    for read in (open_store, check, run):
        with pytest.raises(StoreError, match=message) as caught:
            read(path)
        assert "run the command" not in str(caught.value)


def test_a_store_without_its_metadata_is_a_damaged_store(store):
    (store / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"is damaged: its metadata.*; run the command again"):
        open_store(store)
    with pytest.warns(StoreWarning):
        assert run(store) == 0


def content(path):
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def flip(file, bit=100):
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def test_a_whole_store_is_found_whole(store):
    found = check(store)
    assert (found.study, found.results, found.unchecked) == ((), (), 0)
    assert (found.points, found.computed) == (2, 2)
    assert run(store) == 0


DAMAGE = {
    "deleted": Path.unlink,
    "emptied": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(b"\0" * 4),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "flipped": flip,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_chunk_is_named_and_computed_again(whole, store, damage):
    name = {"cut": "predictor_mean_gp", "zeros": "test_label"}.get(damage, "order_parameter")
    file = sorted((store / name / "c").rglob("*"))[-1]
    DAMAGE[damage](file)
    (line,) = check(store).study
    assert line.startswith(f"{name} at seed 0")
    with pytest.warns(StoreWarning, match=f"damaged: {name} at 1 place; computed again"):
        assert run(store) == (name == "order_parameter")
    assert content(store) == content(whole)


def test_one_flipped_bit_is_not_read_as_another_value(store):
    for file in (store / "action" / "c").rglob("0"):
        if file.is_file():
            flip(file)
    with pytest.raises(ValueError, match="checksum"):
        open_store(store)["action"].load()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_marker_is_named_and_its_point_computed_again(whole, store, damage):
    DAMAGE[damage](store / "status" / "c" / "0" / "0" / "1")
    if damage == "deleted":
        assert check(store).computed == 1
        assert run(store) == 1
    else:
        assert "status at seed 0, temperature 1, width 100 cannot be read" in check(store).study[0]
        with pytest.warns(StoreWarning, match="damaged: status at 1 place"):
            assert run(store) == 1
    assert content(store) == content(whole)


@pytest.mark.parametrize("damage", ["deleted", "flipped"])
@pytest.mark.parametrize(
    "file",
    [
        "zarr.json",
        "action/zarr.json",
        "width/zarr.json",
        "further/zarr.json",
        "further/group/number/zarr.json",
        "metadata_copy/zarr.json",
        "metadata_copy/c",
        "temperature/c/0",
        "path/c/0",
    ],
)
def test_damaged_metadata_and_labels_are_named_and_mended(whole, store, file, damage):
    DAMAGE[damage](store / file)
    assert file.partition("/")[0] in check(store).study[0]
    with pytest.warns(StoreWarning, match=file.partition("/")[0]), sole_writer(store):
        assert content(store) == content(whole)


def test_a_variable_that_is_gone_is_computed_again(whole, store):
    shutil.rmtree(store / "predictor_mean")
    assert check(store).study == ("predictor_mean/zarr.json is missing",)
    with pytest.raises(StoreError, match="lacks predictor_mean"):
        open_store(store)
    with pytest.warns(StoreWarning):
        assert run(store) == 2
    assert content(store) == content(whole)


def test_metadata_that_are_damaged_with_their_copy_are_refused(store):
    flip(store / "metadata_copy" / "c")
    (store / "action" / "zarr.json").unlink()
    before = content(store)
    with pytest.raises(StoreError, match=r"several places of its metadata.*delete it"):
        run(store)
    assert content(store) == before


def test_a_damaged_result_is_named_and_may_be_deleted(store):
    flip(store / GROUP / "number" / "c" / "0")
    found = check(store)
    assert found.study == ()
    assert found.results == (f"{GROUP}/number, chunk 0, cannot be read (its checksum is another)",)
    shutil.rmtree(store / GROUP)
    with sole_writer(store):
        pass
    assert check(store).results == ()
    assert GROUP not in zarr.open_group(store, mode="r")


def test_an_array_that_a_killed_process_made_longer_is_no_damage(whole, store):
    zarr.open_array(store / GROUP / "number", mode="r+").resize(5)
    assert (check(store).study, check(store).results) == ((), ())
    with sole_writer(store):  # and no warning
        assert content(store).keys() == content(whole).keys()


def test_points_that_failed_have_all_their_chunks(store):
    """Nothing that was never written may look like something that was lost."""
    held = Store(store)
    held.write((0, 0, 0), {}, "status", 4)
    held.flush()
    assert np.isnan(held.read("action")[0, 0, 0])
    assert check(store).study == ()


def test_a_store_without_checksums_is_read_and_goes_on(tmp_path, monkeypatch, whole):
    path = tmp_path / "study.zarr"
    with monkeypatch.context() as older:
        for module in (store_module, checksums):
            older.setattr(module, "CHECKED", (checksums.ZstdCodec(level=0),))
        older.setattr(store_module, "copy_metadata", lambda path: None)
        run(path)
    found = check(path)
    assert found.study == ()
    assert found.unchecked == found.arrays > 40
    (path / "action" / "c" / "0" / "0" / "1").write_bytes(b"damage")
    assert "action at seed 0, temperature 1, width 100 cannot be read" in check(path).study[0]
    with pytest.warns(StoreWarning, match="action at 1 place"):
        assert run(path) == 1
    with sole_writer(path):
        add_group(path, GROUP, xr.open_zarr(whole, group=GROUP, chunks=None))
    assert "study" in open_store(path).attrs


def test_what_is_no_store_is_left_alone(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        check(tmp_path / "none" / "study.zarr")
    assert list(tmp_path.iterdir()) == []


def test_another_writer_is_waited_for(store):
    with sole_writer(store), pytest.raises(StoreError, match="another process is writing"):
        check(store)
