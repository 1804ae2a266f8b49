"""Files of arrays: what is read, and what is refused."""

import gzip
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
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from pathkernel_tasks import array_guards
from pathkernel_tasks.array_files import content_digest, read_arrays
from pathkernel_tasks.array_guards import check_shapes, real_numbers

pytestmark = pytest.mark.version

SUFFIXES = ("npz", "safetensors", "zarr")
COMPRESSORS = {"zstd": ZstdCodec(), "blosc": BloscCodec(), "gzip": GzipCodec(), "none": None}
ROWS = np.arange(1, 25.0).reshape(6, 4)


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


def chunk_files(path):
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.name not in ("zarr.json", "notes.txt")
    )


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return {"inputs": generator.normal(size=(3, 2)), "labels.a": np.array([0, 1, 1])}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_and_digest(tmp_path, arrays, suffix):
    path = tmp_path / f"data.{suffix}"
    write(path, arrays)
    read, note = read_arrays(path, "data file")
    assert note == ""
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
    with pytest.raises(ValueError, match=r"is damaged,? or"):
        read_arrays(path, "data file")


def test_objects_in_an_archive(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays, other=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="'other' holds Python objects, which are never loaded"):
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
    with pytest.raises(ValueError, match="no Zarr group of format 3"):
        read_arrays(path, "data file")


def test_text_in_zarr(tmp_path):
    path = tmp_path / "data.zarr"
    write(path, {"labels": np.array(["yes", "no"], dtype=np.dtypes.StringDType())})
    read = read_arrays(path, "labels file")[0]["labels"]
    assert read.dtype.kind == "U"
    assert list(read) == ["yes", "no"]


def test_one_long_text_among_many(tmp_path):
    """It is not cut off."""
    words = np.array([*["yes"] * 1000, "a" * 1000], dtype=np.dtypes.StringDType())
    write(tmp_path / "data.zarr", {"labels": words})
    read = read_arrays(tmp_path / "data.zarr", "labels file")[0]["labels"]
    assert read.dtype == np.dtype("U1000")
    assert list(read) == list(words)


@pytest.mark.parametrize("linked", ["labels.a/zarr.json", "labels.a/c/0"])
def test_links_in_a_folder(tmp_path, arrays, linked):
    """Those to files stand for what they lead to, in the digest too."""
    path, away = tmp_path / "data.zarr", tmp_path / "away"
    write(path, arrays)
    digest = content_digest(path, "data file")
    (path / linked).rename(away)
    (path / linked).symlink_to(away)
    assert content_digest(path, "data file") == digest
    assert np.array_equal(read_arrays(path, "data file")[0]["labels.a"], arrays["labels.a"])
    away.write_bytes(b"changed")
    assert content_digest(path, "data file") != digest
    (path / "more").symlink_to(tmp_path)
    for use in (read_arrays, content_digest):
        with pytest.raises(ValueError, match=r"/more' is no plain file .* a link to a folder"):
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
    read, note = read_arrays(path, "data file", lambda name: name == "inputs")
    assert set(read) == {"inputs"}
    assert note == f"data.{suffix}: labels.a not read (read: inputs)"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_larger_than_half_the_memory(tmp_path, arrays, suffix, monkeypatch):
    """Counted in double precision, whatever the file holds, and before anything is read."""
    path = tmp_path / f"data.{suffix}"
    write(path, {"inputs": np.zeros((4, 1000), np.float32), "other": np.zeros(10)})
    monkeypatch.setattr(array_guards, "memory_bound", lambda: 8 * 4010)
    assert len(read_arrays(path, "data file")[0]) == 2
    monkeypatch.setattr(array_guards, "memory_bound", lambda: 8 * 4010 - 1)
    message = rf"data\.{suffix}' of .* holds arrays that would take .*'inputs' of shape \(4, 1000\)"
    with pytest.raises(ValueError, match=message):
        read_arrays(path, "data file")
    assert set(read_arrays(path, "data file", lambda name: name == "other")[0]) == {"other"}


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
        ("npz", "would take 4.3 GB in double precision, .* 1000 times the file"),
        ("zarr", "would take 8.8 TB"),
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
    with pytest.raises(ValueError, match=r"8 MB .* 'inputs' of shape"):
        read_arrays(path, "data file")


@pytest.mark.parametrize(
    ("claimed", "held", "message"),
    [
        ((3,), 1000, r"holds more than its shape \(3,\)"),
        ((1000,), 3, "EOF: reading array data, expected 8000 bytes got 24"),
        ((2**40,), 3, "is damaged|does not fit into the memory"),
        ((-1,), 3, "negative dimensions"),
        ((), 2, r"holds more than its shape \(\)"),
    ],
)
def test_headers_that_do_not_fit_their_archive(tmp_path, claimed, held, message):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": claimed}
    )
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", stream.getvalue() + bytes(8 * held))
    with pytest.raises(ValueError, match=rf"'inputs' .*{message}"):
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
    with pytest.raises(ValueError, match=r"holds \['inputs'\] more than once"):
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
    with pytest.raises(ValueError, match=r"no Zarr group .*; write named .*create_group"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"filters": [TransposeCodec(order=(1, 0))]},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
    ],
)
def test_codecs_and_names_of_chunks(tmp_path, name, how):
    path, compressors = tmp_path / "data.zarr", COMPRESSORS[name]
    zarr.create_group(path).create_array(
        "inputs", data=ROWS, chunks=(2, 2), compressors=compressors, **how
    )
    (path / "inputs" / "notes.txt").write_text("no chunk")
    read, note = read_arrays(path, "data file")
    assert np.array_equal(read["inputs"], ROWS)
    assert note == ""
    chunk_files(path)[0].unlink()
    read, note = read_arrays(path, "data file")
    assert note == "data.zarr: inputs lacks 1 of its 6 chunks, read as 0.0"
    assert (read["inputs"][:2, :2] == 0).all()


@pytest.mark.parametrize("compressors", [[GzipCodec(), Crc32cCodec()], [Crc32cCodec()]])
def test_codecs_in_a_row(tmp_path, compressors):
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("inputs", data=ROWS, compressors=compressors)
    assert np.array_equal(read_arrays(path, "data file")[0]["inputs"], ROWS)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("damage", [b"", b"no chunk"])
def test_damaged_chunks(tmp_path, name, damage):
    path, compressors = tmp_path / "data.zarr", COMPRESSORS[name]
    zarr.create_group(path).create_array(
        "inputs", data=ROWS, chunks=(2, 2), compressors=compressors
    )
    chunk_files(path)[0].write_bytes(damage)
    with pytest.raises(ValueError, match=r"data\.zarr': 'inputs' .* is damaged"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("kept", [1, 8, -40, -5, -1])
def test_chunks_that_are_cut_off(tmp_path, name, kept):
    """Blosc would read on in memory, beyond the end of such a chunk."""
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("inputs", data=ROWS, compressors=COMPRESSORS[name])
    (chunk,) = chunk_files(path)
    chunk.write_bytes(chunk.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"'inputs' .* is damaged"):
        read_arrays(path, "data file")


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("data", [np.zeros(()), np.zeros((0, 3)), np.zeros(2**17), np.ones((0, 0))])
def test_shapes_and_sizes_at_the_edge(tmp_path, name, data):
    zarr.create_group(tmp_path / "data.zarr").create_array(
        "inputs",
        data=data,
        compressors=COMPRESSORS[name],
        config={"write_empty_chunks": True},
    )
    read, note = read_arrays(tmp_path / "data.zarr", "data file")
    assert np.array_equal(read["inputs"], data)
    assert read["inputs"].shape == data.shape
    assert note == ""


def test_missing_chunks(tmp_path):
    """Those that would read as numbers are told, and those that would read as NaN refused."""
    path = tmp_path / "data.zarr"
    group = zarr.create_group(path)
    for name, fill in (("labels", 0), ("inputs", np.nan)):
        group.create_array(name, shape=(12,), chunks=(2,), dtype="float64", fill_value=fill)
        group[name][:8] = np.arange(1, 9)
    read, note = read_arrays(path, "data file", lambda name: name == "labels")
    assert np.array_equal(read["labels"], [*range(1, 9), *[0] * 4])
    assert note == (
        "data.zarr: inputs not read (read: labels); "
        "data.zarr: labels lacks 2 of its 6 chunks, read as 0.0"
    )
    with pytest.raises(ValueError, match=r"'inputs' of shape \(12,\) lacks 2 of its 6 .* as NaN"):
        read_arrays(path, "data file")
    group["inputs"][8:] = 1
    assert np.array_equal(read_arrays(path, "data file")[0]["inputs"], [*range(1, 9), *[1] * 4])


VARIABLES = {
    "inputs": (("p", "m"), np.repeat([0.0, 1.0], 4).reshape(4, 2)),
    "single": ("p", np.zeros(4, np.float32)),
    "labels": ("p", np.array([0, 0, 1, 2])),
    "answers": ("p", np.array([False, False, False, True])),
    "words": ("p", np.array(["", "", "no", "yes"], dtype=np.dtypes.StringDType())),
    "empty": ("q", np.zeros(0)),
    "scalar": ((), np.array(0.0)),
}
CHUNKS = {name: {"chunks": (2,)} for name in ("single", "labels", "answers", "words")}


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("consolidated", [True, False])
def test_what_xarray_writes_by_default(tmp_path, consolidated):
    """Chunks of zeros are left out; of floating-point arrays it depends on xarray's version."""
    first, again = tmp_path / "first.zarr", tmp_path / "again.zarr"
    xr.Dataset(VARIABLES, {"p": np.arange(4)}).to_zarr(
        first, zarr_format=3, consolidated=consolidated, encoding=CHUNKS
    )
    xr.open_zarr(first, consolidated=consolidated, chunks=None).to_zarr(again, zarr_format=3)
    for path in (first, again):
        read, note = read_arrays(path, "data file", lambda name: name != "p")
        assert read.keys() == VARIABLES.keys()
        for name, array in read.items():
            assert np.array_equal(array, VARIABLES[name][1]), name
        assert f"{path.name}: labels lacks 1 of its 2 chunks, read as 0;" in note


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:The data type")
@pytest.mark.parametrize("consolidated", [True, False])
def test_zarr_of_format_2_is_to_be_written_anew(tmp_path, consolidated):
    old, new = tmp_path / "old.zarr", tmp_path / "new.zarr"
    xr.Dataset(VARIABLES).to_zarr(
        old, zarr_format=2, consolidated=consolidated, encoding={"labels": {"chunks": (2,)}}
    )
    with pytest.raises(ValueError, match=r"no Zarr group of format 3.*drop_encoding\(\)\.to_zarr"):
        read_arrays(old, "data file")
    dataset = xr.open_zarr(old, consolidated=consolidated, chunks=None)
    dataset.drop_encoding().to_zarr(new, zarr_format=3)
    for name, array in read_arrays(new, "data file")[0].items():
        assert np.array_equal(array, VARIABLES[name][1]), name


@pytest.mark.parametrize(
    "encoding",
    [{"scale_factor": 0.5, "dtype": "int16", "_FillValue": -1}, {"_FillValue": -9999.0}],
)
def test_packed_zarr_arrays(tmp_path, encoding):
    """Numbers that are to be multiplied or masked first are not taken as they stand."""
    path = tmp_path / "data.zarr"
    variable = xr.Variable(("x",), np.array([1.0, 2.0]), encoding=encoding)
    xr.Dataset({"inputs": variable}).to_zarr(path, zarr_format=3, consolidated=False)
    with pytest.raises(
        ValueError,
        match=r"'inputs' of shape \(2,\) is packed or masked .*_FillValue.*drop_encoding",
    ):
        read_arrays(path, "data file")
    plain = tmp_path / "plain.zarr"
    dataset = xr.open_zarr(path, consolidated=False, chunks=None)
    dataset.drop_encoding().to_zarr(plain, zarr_format=3, consolidated=False)
    assert read_arrays(plain, "data file")[0]["inputs"].tolist() == [1, 2]


def test_numbers_that_are_to_be_taken_without_their_sign(tmp_path):
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array(
        "labels",
        data=np.array([-1, 1], np.int8),
        dimension_names=("x",),
        attributes={"_Unsigned": "true"},
    )
    assert xr.open_zarr(path, consolidated=False, chunks=None)["labels"].values.tolist() == [255, 1]
    with pytest.raises(ValueError, match=r"'labels' .* is packed or masked .*_Unsigned"):
        read_arrays(path, "labels file")


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


@pytest.mark.parametrize("name", ["data.npz", "data.safetensors", "data.zarr/labels.a/c/0"])
@pytest.mark.parametrize("what", ["pipe", "device", "broken link"])
def test_what_is_no_plain_file_is_not_opened(tmp_path, arrays, name, what):
    """A pipe blocks until someone writes, and a device may never end."""
    write(tmp_path / "data.zarr", arrays)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if what == "device" else tmp_path / "none")
    top = tmp_path / name.partition("/")[0]
    for use in (read_arrays, content_digest):
        with pytest.raises((ValueError, FileNotFoundError), match=r"is no plain file|there is no"):
            use(top, "data file")


@pytest.mark.parametrize(
    "header", [b"{'descr': " + b"[" * 5000, b"\0{'descr'", b"{[]: 1}", b"-" * 5000, b"(" * 5000]
)
def test_headers_that_are_no_headers(tmp_path, header):
    """Whatever Python's parser raises on them."""
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        archive.writestr("inputs.npy", start + header)
    with pytest.raises(ValueError, match="damaged or of another format") as raised:
        read_arrays(path, "data file")
    assert len(str(raised.value)) < 600


def test_a_zarr_array_that_is_hardly_stored(tmp_path):
    """2 kB that would take 1 GiB."""
    path = tmp_path / "data.zarr"
    array = zarr.create_group(path).create_array(
        "inputs", shape=(2**17, 1024), chunks=(1, 1024), dtype="f8", fill_value=0
    )
    array[0] = 1.0
    with pytest.raises(ValueError, match=r"would take 1\.1 GB .* than 1000 times the file"):
        read_arrays(path, "data file")


def test_a_chunk_that_is_larger_than_what_it_holds(tmp_path):
    """A file may have holes: 1 TB of zeros that take no place on the disk."""
    path = tmp_path / "data.zarr"
    write(path, {"inputs": ROWS})
    os.truncate(chunk_files(path)[0], 2**40)
    with pytest.raises(ValueError, match=r"chunk 'c/0/0' is damaged .* takes 1099511627776 bytes"):
        read_arrays(path, "data file")
    os.truncate(path / "inputs" / "zarr.json", 2**40)
    with pytest.raises(ValueError, match=r"zarr\.json' takes 1099511627776 bytes"):
        read_arrays(path, "data file")


def test_chunks_larger_than_the_memory(tmp_path):
    """Of a small array: chunks are unpacked whole."""
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("inputs", shape=(3,), chunks=(2**50,), dtype="f8")
    with pytest.raises(ValueError, match=r"of it 'inputs' of shape \(1125899906842624,\)"):
        read_arrays(path, "data file")


def test_bfloat16(tmp_path):
    """NumPy has it only if some package imported ml_dtypes."""
    about = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
    header = json.dumps({"inputs": about}).encode()
    path = tmp_path / "data.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ValueError, match="'inputs' is of type BF16, which NumPy lacks; save it as"):
        read_arrays(path, "data file")


def zstd_of_zeros(blocks, declared):
    """2 GiB and more in 4 bytes for every 128 KiB (RFC 8878)."""
    header = b"\xe0" + (blocks * 2**17).to_bytes(8, "little") if declared else b"\x00\x58"
    body = b"".join(
        (2**20 + 2 + (k == blocks - 1)).to_bytes(3, "little") + b"\0" for k in range(blocks)
    )
    return b"\x28\xb5\x2f\xfd" + header + body


def blosc_of_zeros(size):
    """A header of 16 bytes and a block of 16."""
    return b"\2\1!\x08" + struct.pack("<3I", size, size, 32) + bytes(16)


@pytest.mark.parametrize(
    ("codec", "chunk", "message"),
    [
        (ZstdCodec(), zstd_of_zeros(2**14, declared=True), "buffer too small; .* 2147483648"),
        (ZstdCodec(), zstd_of_zeros(2**14, declared=False), "buffer is too small|invalid input"),
        (GzipCodec(), gzip.compress(bytes(2**25)), "Unable to fit data into `out`"),
        (BloscCodec(), blosc_of_zeros(2**31 - 1), "buffer too small; .* 2147483647"),
        (BloscCodec(), blosc_of_zeros(192) + b"0", "packed another number of bytes"),
    ],
    ids=["zstd", "zstd without size", "gzip", "blosc", "blosc and more"],
)
def test_small_chunks_that_unpack_to_much(tmp_path, codec, chunk, message):
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("inputs", data=ROWS, compressors=codec)
    chunk_files(path)[0].write_bytes(chunk)
    with pytest.raises(ValueError, match=rf"'inputs' .*: chunk 'c/0/0' is damaged .*{message}"):
        read_arrays(path, "data file")


def test_chunks_without_number(tmp_path):
    """Of which hardly any is stored; reading one takes memory even so."""
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("labels", shape=(2**20,), chunks=(1,), dtype="int64")
    with pytest.raises(ValueError, match=r"holds arrays that would take 8\.6 GB"):
        read_arrays(path, "labels file")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"shards": (6, 4)}, "sharding_indexed; write it without shards"),
        ({"compressors": [GzipCodec(), GzipCodec()]}, "bytes, gzip, gzip; write it"),
    ],
)
def test_codecs_whose_size_cannot_be_told(tmp_path, how, message):
    path = tmp_path / "data.zarr"
    zarr.create_group(path).create_array("inputs", data=ROWS, chunks=(2, 2), **how)
    with pytest.raises(ValueError, match=rf"'inputs' of shape \(6, 4\) is stored by .*{message}"):
        read_arrays(path, "data file")


def test_one_long_text_that_would_pad_all_others(tmp_path):
    words = np.array([*["y"] * 30_000, "a" * 30_000], dtype=np.dtypes.StringDType())
    write(tmp_path / "data.zarr", {"labels": words})
    with pytest.raises(ValueError, match=r"'labels' .* would take 3\.6 GB"):
        read_arrays(tmp_path / "data.zarr", "labels file")


def test_one_long_text_in_place_of_all_that_are_missing(tmp_path):
    zarr.create_group(tmp_path / "data.zarr").create_array(
        "labels", shape=(10_000,), dtype="string", fill_value="a" * 30_000
    )
    with pytest.raises(ValueError, match=r"would take 1\.2 GB .* 'labels' of shape \(10000,\)"):
        read_arrays(tmp_path / "data.zarr", "labels file")


def test_an_archive_that_unpacks_to_more_than_a_thousand_times_its_size(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, inputs=np.zeros(2**26))
    with pytest.raises(ValueError, match=r"of 522 kB holds arrays that would take 537 MB"):
        read_arrays(path, "data file")


TABLE = {"a": ("P", "M", 3), "b": ("P", "..."), "c": ("M", "M")}


def shaped(**shapes):
    fitting = {"a": (2, 4, 3), "b": (2,), "c": (4, 4)}
    return {name: np.empty(shape) for name, shape in (fitting | shapes).items()}


@pytest.mark.parametrize("b", [(2,), (2, 7), (2, 7, 1)])
def test_shapes_that_fit_the_table(b):
    check_shapes("file", shaped(b=b), TABLE)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (2, 4)}, r"file: 'a' must have shape \(P, M, 3\), but has \(2, 4\)"),
        ({"a": (2, 4, 2)}, r"'a' must have shape \(P, M, 3\), but has \(2, 4, 2\)"),
        ({"a": (2, 0, 3)}, r"'a' must have shape"),
        ({"b": (3,)}, r"'b' must have shape \(P, \.\.\.\) with P = 2 of 'a', but has \(3,\)"),
        ({"b": ()}, r"'b' must have shape"),
        ({"c": (4, 5)}, r"'c' must have shape \(M, M\) with M = 4 of 'a', but has \(4, 5\)"),
        ({"c": (4, 4, 4)}, r"'c' must have shape"),
    ],
)
def test_shapes_that_do_not_fit_the_table(shapes, message):
    with pytest.raises(ValueError, match=message):
        check_shapes("file", shaped(**shapes), TABLE)


def test_lengths_known_beforehand():
    message = r"'a' must have shape \(P, M, 3\) with M = 5 of the paths, but has \(2, 4, 3\)"
    with pytest.raises(ValueError, match=message):
        check_shapes("file", shaped(), TABLE, {"M": (5, "the paths")})
    with pytest.raises(ValueError, match="file lacks 'b', 'c'; it holds a"):
        check_shapes("file", {"a": np.empty((2, 4, 3))}, TABLE)


def test_members_of_an_archive_that_are_no_arrays_are_noted(tmp_path):
    """Also one whose name is damaged."""
    np.savez(tmp_path / "data.npz", inputs=ROWS, scale=2.0)
    content = (tmp_path / "data.npz").read_bytes()
    first, last = content.index(b"scale.npy"), content.rindex(b"scale.npy")
    damaged = (
        content[:first] + bytes(9) + content[first + 9 : last] + bytes(9) + content[last + 9 :]
    )
    (tmp_path / "data.npz").write_bytes(damaged)
    note = read_arrays(tmp_path / "data.npz", "data file", lambda name: name == "inputs")[1]
    assert note == "data.npz: '' not read (read: inputs)"
