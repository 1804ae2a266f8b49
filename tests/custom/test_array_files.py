"""Files of arrays: what is read, and what is refused."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import xarray as xr
import zarr
from safetensors.numpy import save_file

from pathkernel_tasks.array_files import check_names, content_digest, read_arrays

SUFFIXES = ("npz", "safetensors", "zarr")


class Bomb:
    """Object that would show, once unpickled, that it was."""

    def __reduce__(self):
        return os.abort, ()


def write(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file(arrays, path)
    else:
        variables = {
            name: ([f"{name}_{axis}" for axis in range(array.ndim)], array)
            for name, array in arrays.items()
        }
        xr.Dataset(variables).to_zarr(path, zarr_format=3, consolidated=False)


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return {"inputs": generator.normal(size=(3, 2)), "labels.a": np.array([0, 1, 1])}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_and_digest(tmp_path, arrays, suffix):
    path = tmp_path / f"data.{suffix}"
    write(path, arrays)
    read = read_arrays(path, "data file")
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(read[name], array)
    other = tmp_path / f"other.{suffix}"
    write(other, arrays)
    assert content_digest(path, "data file") == content_digest(other, "data file")
    changed = tmp_path / f"changed.{suffix}"
    write(changed, {**arrays, "inputs": arrays["inputs"] + 1e-9})
    assert content_digest(changed, "data file") != content_digest(path, "data file")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing(tmp_path, suffix):
    for use in (read_arrays, content_digest):
        with pytest.raises(FileNotFoundError, match="no data file"):
            use(tmp_path / f"none.{suffix}", "data file")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pickles_are_never_loaded(tmp_path, suffix):
    path = tmp_path / f"data.{suffix}"
    if suffix == "zarr":
        path.mkdir()
        (path / "zarr.json").write_bytes(pickle.dumps(Bomb()))
    else:
        path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="damaged or of another format"):
        read_arrays(path, "data file")


def test_objects_in_an_archive(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays, other=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="holds Python objects, which are never loaded"):
        read_arrays(path, "data file")


def test_objects_in_zarr_of_format_2(tmp_path):
    numcodecs = pytest.importorskip("numcodecs")
    path = tmp_path / "data.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("inputs", shape=(1,), dtype="float64")[:] = 1.0
    folder = path / "bomb"
    folder.mkdir()
    (folder / ".zarray").write_text(
        '{"zarr_format":2,"shape":[1],"chunks":[1],"dtype":"|O","compressor":null,"order":"C",'
        f'"fill_value":null,"filters":[{{"id":"{numcodecs.Pickle.codec_id}","protocol":5}}]}}'
    )
    (folder / "0").write_bytes(pickle.dumps([Bomb()]))
    with pytest.raises(ValueError, match="no Zarr folder of format 3"):
        read_arrays(path, "data file")


def test_text_in_zarr(tmp_path):
    path = tmp_path / "data.zarr"
    write(path, {"labels": np.array(["yes", "no"], dtype=np.dtypes.StringDType())})
    read = read_arrays(path, "labels file")["labels"]
    assert read.dtype.kind == "U"
    assert list(read) == ["yes", "no"]


@pytest.mark.parametrize(
    "name", ["../inputs", "/inputs", "a/../../inputs", r"..\inputs", r"C:\inputs", "a/.."]
)
def test_names_that_lead_out_of_the_file(tmp_path, name):
    stream = io.BytesIO()
    np.save(stream, np.ones(3))
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr(f"{name}.npy", stream.getvalue())
    save_file({name: np.ones(3)}, tmp_path / "data.safetensors")
    for suffix in ("npz", "safetensors"):
        with pytest.raises(ValueError, match="a path that leads out of the file"):
            read_arrays(tmp_path / f"data.{suffix}", "data file")


def test_links_out_of_a_folder(tmp_path, arrays):
    write(tmp_path / "other.zarr", arrays)
    path = tmp_path / "data.zarr"
    write(path, {"inputs": arrays["inputs"]})
    (path / "labels").symlink_to(tmp_path / "other.zarr" / "labels.a")
    with pytest.raises(ValueError, match="holds the link 'labels'"):
        read_arrays(path, "data file")


def test_harmless_names():
    check_names("x", "data file", ["inputs", "test_inputs.a..b", "encoder/layer/0", "a.b"])
