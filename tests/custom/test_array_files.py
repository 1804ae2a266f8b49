"""Files of arrays: what is read, and what is refused."""

import io
import json
import os
import pickle
import struct
import sys
import zipfile

import numpy as np
import pytest
import xarray as xr
import zarr
from safetensors.numpy import save_file

from pathkernel_tasks import array_guards
from pathkernel_tasks.array_files import content_digest, others_note, read_arrays
from pathkernel_tasks.array_guards import check_names, memory_bound, real_numbers

pytestmark = pytest.mark.version

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
    read, others = read_arrays(path, "data file")
    assert others == ()
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


def test_objects_that_are_not_asked_for_are_refused_too(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays, other=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="can run code, in other; write plain"):
        read_arrays(path, "data file", lambda name: name == "inputs")


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
    read = read_arrays(path, "labels file")[0]["labels"]
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


@pytest.mark.parametrize("target", ["other.zarr/labels.a", "other.zarr/zarr.json", "nowhere"])
def test_links_in_a_folder(tmp_path, arrays, target):
    write(tmp_path / "other.zarr", arrays)
    path = tmp_path / "data.zarr"
    write(path, {"inputs": arrays["inputs"]})
    (path / "labels").symlink_to(tmp_path / target)
    for use in (read_arrays, content_digest):
        with pytest.raises(ValueError, match="holds the link 'labels'"):
            use(path, "data file")


def test_digest_through_a_link_to_the_whole(tmp_path, arrays):
    for suffix in SUFFIXES:
        path, link = tmp_path / f"data.{suffix}", tmp_path / f"link.{suffix}"
        write(path, arrays)
        link.symlink_to(path)
        assert content_digest(link, "data file") == content_digest(path, "data file")


def test_digest_of_a_folder_takes_names_and_borders(tmp_path):
    """Neither a file's name nor where it ends can be shifted unseen."""
    contents = [{"ab": b"c"}, {"a": b"bc"}, {"a": b"b", "b": b"c"}, {"d/ab": b"c"}, {"ab": b""}]
    digests = set()
    for number, files in enumerate(contents):
        for name, content in files.items():
            file = tmp_path / str(number) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        digests.add(content_digest(tmp_path / str(number), "data file"))
    assert len(digests) == len(contents)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_what_is_wanted_is_read(tmp_path, arrays, suffix):
    path = tmp_path / f"data.{suffix}"
    write(path, arrays)
    read, others = read_arrays(path, "data file", lambda name: name == "inputs")
    assert set(read) == {"inputs"}
    assert others == ("labels.a",)
    assert others_note(path, read, others) == f"of data.{suffix} labels.a (read: inputs)"
    assert others_note(path, read, ()) == ""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_larger_than_half_the_memory(tmp_path, arrays, suffix, monkeypatch):
    """Counted in double precision, whatever the file holds, and before anything is read."""
    path = tmp_path / f"data.{suffix}"
    write(path, {"inputs": np.zeros((4, 1000), np.float32), "other": np.zeros(10)})
    monkeypatch.setattr(array_guards, "memory_bound", lambda: 8 * 4010)
    assert len(read_arrays(path, "data file")[0]) == 2
    monkeypatch.setattr(array_guards, "memory_bound", lambda: 8 * 4010 - 1)
    message = rf"data\.{suffix}' holds arrays that would take .*'inputs' of shape \(4, 1000\)"
    with pytest.raises(ValueError, match=message):
        read_arrays(path, "data file")
    assert set(read_arrays(path, "data file", lambda name: name == "other")[0]) == {"other"}


def test_bound_is_half_the_memory(monkeypatch):
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
    assert memory_bound() == 2_048_000
    pages["SC_PHYS_PAGES"] = -1
    assert memory_bound() == 8 * 2**30
    monkeypatch.delattr(os, "sysconf")
    assert memory_bound() == 8 * 2**30


def terabytes(path):
    """Write a small file that claims an array of 8 TiB, as a header may."""
    shape = (2**20, 2**20)
    if path.suffix == ".npz":
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f8", "fortran_order": False, "shape": shape}
        )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inputs.npy", header.getvalue())
        content = bytearray(path.read_bytes())
        place = content.rindex(b"PK\x01\x02") + 24  # unpacked size in the archive's directory
        content[place : place + 4] = struct.pack("<I", 2**32 - 2)
        path.write_bytes(content)
    else:
        zarr.create_group(path).create_array(
            "inputs",
            shape=shape,
            chunks=shape,
            dtype="float64",
            config={"write_empty_chunks": True},
        )


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("npz", "claims the shape .* 8796093022208 bytes, but unpacks to"),
        ("zarr", "would take 8.19e"),
    ],
)
def test_a_small_file_that_claims_terabytes(tmp_path, suffix, message):
    path = tmp_path / f"data.{suffix}"
    terabytes(path)
    with pytest.raises(ValueError, match=message):
        read_arrays(path, "data file")


def test_a_small_archive_that_unpacks_to_more_than_the_memory(tmp_path, monkeypatch):
    """The header tells the truth, and nothing of the array is unpacked."""
    path = tmp_path / "data.npz"
    np.savez_compressed(path, inputs=np.zeros((1000, 1000)))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(array_guards, "memory_bound", lambda: 1_000_000)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("was read"))
    with pytest.raises(ValueError, match=r"0\.00745 GiB .* 'inputs' of shape \(1000, 1000\)"):
        read_arrays(path, "data file")


@pytest.mark.parametrize(("claimed", "held"), [((3,), 1000), ((1000,), 3), ((-1,), 3), ((), 2)])
def test_headers_that_do_not_fit_their_archive(tmp_path, claimed, held):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": claimed}
    )
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", stream.getvalue() + bytes(8 * held))
    with pytest.raises(ValueError, match=rf"claims the shape .* unpacks to {8 * held} bytes"):
        read_arrays(path, "data file")


def test_a_header_without_end(tmp_path):
    """A header of gigabytes is not unpacked to see how it goes on."""
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "inputs.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**20) + b" " * 2**20
        )
    with pytest.raises(ValueError, match=r"damaged or of another format: .*header"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_unpacks_at_once(tmp_path, compression):
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("inputs.npy", stream.getvalue())
    with pytest.raises(ValueError, match="compressed in a way that NumPy never does"):
        read_arrays(path, "data file")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_held_twice(tmp_path):
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for value in (0.0, 1.0):
            stream = io.BytesIO()
            np.save(stream, np.array(value))
            archive.writestr("inputs.npy", stream.getvalue())
    with pytest.raises(ValueError, match=r"holds 'inputs\.npy' twice"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_too_little_memory_that_is_free(tmp_path, arrays, suffix, monkeypatch):
    path = tmp_path / f"data.{suffix}"
    write(path, arrays)

    def fail(*_, **__):
        raise MemoryError

    if suffix == "npz":
        monkeypatch.setattr(np.lib.format, "read_array", fail)
    elif suffix == "zarr":
        monkeypatch.setattr(zarr.Array, "__getitem__", fail)
    else:
        monkeypatch.setattr(sys.modules["safetensors"], "safe_open", lambda *_, **__: fail())
    with pytest.raises(ValueError, match="does not fit into the memory that is free"):
        read_arrays(path, "data file")


def test_types_that_numpy_lacks(tmp_path):
    header = json.dumps(
        {"inputs": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    ).encode()
    path = tmp_path / "data.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match="'inputs' holds BF16, a type that NumPy lacks"):
        read_arrays(path, "data file")
    assert read_arrays(path, "data file", lambda name: False) == ({}, ("inputs",))


def test_zarr_without_names_of_dimensions(tmp_path, arrays):
    path = tmp_path / "data.zarr"
    group = zarr.create_group(path)
    for name, array in arrays.items():
        group[name] = array
    group.create_group("more")["labels"] = arrays["labels.a"]
    group.create_array("scalar", data=np.array(2.5))
    read, _ = read_arrays(path, "data file")
    assert set(read) == {*arrays, "more/labels", "scalar"}
    assert np.array_equal(read["inputs"], arrays["inputs"])
    assert np.array_equal(read["more/labels"], arrays["labels.a"])
    assert read["scalar"].shape == ()
    assert read["scalar"] == 2.5


def test_a_single_zarr_array_has_no_name(tmp_path):
    path = tmp_path / "data.zarr"
    zarr.create_array(path, data=np.ones(3))
    with pytest.raises(ValueError, match="a single array, which has no name; write it into a"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize(("shards", "first"), [(None, 4), ((4,), 2)])
def test_missing_chunks(tmp_path, dtype, shards, first):
    """Chunks that were never written are not taken for zeros."""
    path = tmp_path / "data.zarr"
    labels = zarr.create_group(path).create_array(
        "labels", shape=(12,), chunks=(2,), shards=shards, dtype=dtype
    )
    labels[:8] = np.arange(1, 9)
    with pytest.raises(ValueError, match=rf"'labels': the chunk 'c/{first}' is missing.*=True"):
        read_arrays(path, "data file")
    assert read_arrays(path, "data file", lambda name: False)[1] == ("labels",)
    labels[8:] = 1
    assert np.array_equal(read_arrays(path, "data file")[0]["labels"], [*range(1, 9), *[1] * 4])


def test_chunks_of_the_fill_value_count_once_they_are_written(tmp_path):
    """As the message says: written by default they are left out, with the option they are not."""
    labels = xr.Dataset({"labels": ("example", np.zeros(4, int))})
    labels.to_zarr(tmp_path / "a.zarr", zarr_format=3, consolidated=False)
    with pytest.raises(ValueError, match="the chunk 'c/0' is missing"):
        read_arrays(tmp_path / "a.zarr", "labels file")
    labels.to_zarr(tmp_path / "b.zarr", zarr_format=3, consolidated=False, write_empty_chunks=True)
    assert not read_arrays(tmp_path / "b.zarr", "labels file")[0]["labels"].any()
    zarr.create_group(tmp_path / "c.zarr").create_array(
        "labels", data=np.zeros(4, int), config={"write_empty_chunks": True}
    )
    assert not read_arrays(tmp_path / "c.zarr", "labels file")[0]["labels"].any()


@pytest.mark.parametrize(
    "encoding",
    [{"scale_factor": 0.5, "dtype": "int16", "_FillValue": -1}, {"_FillValue": -9999.0}],
)
def test_packed_zarr_arrays(tmp_path, encoding):
    """Numbers that are to be multiplied or masked first are not taken as they stand."""
    path = tmp_path / "data.zarr"
    variable = xr.Variable(("x",), np.array([1.0, 2.0]), encoding=encoding)
    xr.Dataset({"inputs": variable}).to_zarr(path, zarr_format=3, consolidated=False)
    with pytest.raises(ValueError, match=r"'inputs' is packed or masked .*_FillValue"):
        read_arrays(path, "data file")


def test_numbers_that_are_to_be_taken_without_their_sign(tmp_path):
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array(
        "labels",
        data=np.array([-1, 1], np.int8),
        dimension_names=("x",),
        attributes={"_Unsigned": "true"},
    )
    assert xr.open_zarr(path, consolidated=False, chunks=None)["labels"].values.tolist() == [255, 1]
    with pytest.raises(ValueError, match=r"'labels' is packed or masked .*_Unsigned"):
        read_arrays(path, "labels file")


def test_chunks_that_are_larger_than_the_memory(tmp_path):
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("inputs", shape=(2,), chunks=(2**45,), dtype="float64")
    with pytest.raises(ValueError, match="would take"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("whole", [True, False])
def test_real_numbers(whole):
    for dtype in (np.float16, np.float32, ">f8", *([np.uint8, np.int64] if whole else [])):
        numbers = real_numbers("'x'", np.array([1, 2], dtype), whole=whole)
        assert numbers.dtype == np.float64
        assert numbers.tolist() == [1, 2]
    for dtype in (bool, complex, str, *([] if whole else [np.int64])):
        with pytest.raises(ValueError, match=r"'x' must hold real .*numbers, but holds"):
            real_numbers("'x'", np.array([1, 0], dtype), whole=whole)
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="'x' holds NaN or infinity"):
            real_numbers("'x'", np.array([1, value], np.float32), whole=whole)


def test_harmless_names():
    check_names("x", "data file", ["inputs", "test_inputs.a..b", "encoder/layer/0", "a.b"])
