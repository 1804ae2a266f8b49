"""Chunks of Zarr arrays: none is unpacked whose size differs from what the metadata say."""

import gzip
import json
import os

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from pathkernel_tasks import array_guards, zarr_chunks
from pathkernel_tasks.array_files import read_arrays

pytestmark = pytest.mark.version

EMPTY = {"write_empty_chunks": True}
COMPRESSORS = {"zstd": ZstdCodec(), "blosc": BloscCodec(), "gzip": GzipCodec(), "none": None}
ROWS = np.arange(24.0).reshape(6, 4)


def chunk_files(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json")


def create(path, data=ROWS, **how):
    zarr.create_group(path).create_array("inputs", data=data, config=EMPTY, **how)
    return chunk_files(path)


def swap_chunk(tmp_path, name, content):
    """File with one array of six numbers, the chunk of which is replaced by another array's."""
    how = {"compressors": COMPRESSORS[name]}
    (file,) = create(tmp_path / "data.zarr", np.arange(6.0), **how)
    (other,) = create(tmp_path / "other.zarr", content, chunks=content.shape, **how)
    return file, other.read_bytes()


@pytest.fixture
def never_read(monkeypatch):
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda *_: pytest.fail("was unpacked"))


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"filters": [TransposeCodec(order=(1, 0))]},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
        {"shards": (4, 4)},
    ],
)
def test_plain_codecs_and_all_names_of_chunks(tmp_path, name, how):
    files = create(tmp_path / "data.zarr", chunks=(2, 2), compressors=COMPRESSORS[name], **how)
    (tmp_path / "data.zarr" / "inputs" / "notes.txt").write_text("no chunk")
    assert np.array_equal(read_arrays(tmp_path / "data.zarr", "data file")[0]["inputs"], ROWS)
    files[0].unlink()
    with pytest.raises(ValueError, match=r"'inputs': the chunk '.*0' is missing"):
        read_arrays(tmp_path / "data.zarr", "data file")


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("data", [np.zeros(()), np.zeros((0, 3)), np.zeros(2**17)])
def test_shapes_and_sizes_at_the_edge(tmp_path, name, data):
    create(tmp_path / "data.zarr", data, compressors=COMPRESSORS[name])
    read = read_arrays(tmp_path / "data.zarr", "data file")[0]["inputs"]
    assert np.array_equal(read, data)
    assert read.shape == data.shape


@pytest.mark.parametrize("count", [1, 5, 7, 31, 32, 33, 8191, 8193, 10**6])
def test_size_that_a_frame_of_zstd_tells(tmp_path, count):
    """All widths of the field and, of random and of constant bytes, all kinds of blocks."""
    for number, data in enumerate((np.zeros(count), np.random.default_rng(0).normal(size=count))):
        (file,) = create(tmp_path / str(number), data, chunks=(count,), compressors=ZstdCodec())
        assert zarr_chunks._zstd_size(file.read_bytes()) == 8 * count


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("count", [5, 10**6])
def test_a_chunk_of_another_size(tmp_path, name, count):
    file, content = swap_chunk(tmp_path, name, np.zeros(count))
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"'inputs': the chunk 'c/0' unpacks to .* take 48"):
        read_arrays(tmp_path / "data.zarr", "data file")


@pytest.mark.usefixtures("never_read")
def test_a_chunk_of_several_streams(tmp_path):
    """What follows the first stream counts, as decoders unpack it too."""
    (file,) = create(tmp_path / "data.zarr", np.arange(6.0), compressors=GzipCodec())
    file.write_bytes(gzip.compress(bytes(48)) + gzip.compress(bytes(10**6)))
    with pytest.raises(ValueError, match=r"unpacks to .* take 48"):
        read_arrays(tmp_path / "data.zarr", "data file")


@pytest.mark.usefixtures("never_read")
def test_zstd_that_hides_its_size(tmp_path):
    file, more = swap_chunk(tmp_path, "zstd", np.zeros(10**6))
    first = file.read_bytes()
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (131072 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    unsaid = bytes.fromhex("28b52ffd") + b"\x00\x58" + 400 * block + last
    skipped = bytes.fromhex("502a4d1804000000") + bytes(4)
    for content in (
        first + more,
        unsaid,
        skipped + more,
        first[:-1],
        first + b"\0",
        first[:5],
        b"",
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="'inputs': a chunk is not one whole frame of zstd"):
            read_arrays(tmp_path / "data.zarr", "data file")


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize(
    ("how", "coded"),
    [
        ({"compressors": [GzipCodec(), GzipCodec()]}, "bytes, gzip, gzip"),
        ({"compressors": [Crc32cCodec()]}, "bytes, crc32c"),
        ({"compressors": [GzipCodec(), ZstdCodec()], "shards": (6, 4)}, "bytes, gzip, zstd"),
    ],
)
def test_codecs_that_are_not_plain(tmp_path, how, coded):
    create(tmp_path / "data.zarr", chunks=(2, 2), **how)
    with pytest.raises(ValueError, match=f"'inputs': it is coded by {coded}; write plain numbers"):
        read_arrays(tmp_path / "data.zarr", "data file")


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize("count", [10**6, 1])
def test_shards_that_hold_chunks_of_another_size(tmp_path, count):
    path = tmp_path / "data.zarr"
    how = {"compressors": ZstdCodec()}
    create(
        tmp_path / "other.zarr", np.zeros(4 * count), chunks=(count,), shards=(4 * count,), **how
    )
    (file,) = create(path, np.zeros(8), chunks=(2,), shards=(8,), **how)
    file.write_bytes(chunk_files(tmp_path / "other.zarr")[0].read_bytes())
    with pytest.raises(ValueError, match=rf"unpacks to {8 * count} bytes or more, .* take 16"):
        read_arrays(path, "data file")
    file.write_bytes(b"no index")
    with pytest.raises(ValueError, match="shard of 8 bytes has no place for its index of 68"):
        read_arrays(path, "data file")


@pytest.mark.usefixtures("never_read")
def test_an_index_of_shards_that_is_compressed(tmp_path):
    create(tmp_path / "data.zarr", chunks=(2, 2), shards=(6, 4))
    file = tmp_path / "data.zarr" / "inputs" / "zarr.json"
    about = json.loads(file.read_text())
    about["codecs"][0]["configuration"]["index_codecs"][1] = {"name": "gzip"}
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match="index"):
        read_arrays(tmp_path / "data.zarr", "data file")


def test_metadata_that_claim_many_chunks(tmp_path):
    """The first that is missing ends the search."""
    zarr.create_group(tmp_path / "data.zarr").create_array(
        "inputs", shape=(2**27,), chunks=(1,), dtype="float64"
    )
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2**31:
        pytest.skip("the array would not fit into half of the memory")
    with pytest.raises(ValueError, match="the chunk 'c/0' is missing"):
        read_arrays(tmp_path / "data.zarr", "data file")


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize("name", COMPRESSORS)
def test_text_that_unpacks_to_more_than_the_memory(tmp_path, name, monkeypatch):
    words = np.array(["a" * 400_000, "b" * 400_000], dtype=np.dtypes.StringDType())
    create(tmp_path / "data.zarr", words, chunks=(1,), compressors=COMPRESSORS[name])
    monkeypatch.setattr(zarr_chunks, "memory_bound", lambda: 500_000)
    with pytest.raises(ValueError, match="'inputs': its text unpacks to more than half"):
        read_arrays(tmp_path / "data.zarr", "data file")


def test_one_long_text_among_many(tmp_path, monkeypatch):
    """As NumPy's text, each would take as much room as the longest."""
    words = np.array([*["yes"] * 1000, "a" * 1000], dtype=np.dtypes.StringDType())
    create(tmp_path / "data.zarr", words)
    read = read_arrays(tmp_path / "data.zarr", "labels file")[0]["inputs"]
    assert read.dtype == np.dtype("U1000")
    assert list(read) == list(words)
    monkeypatch.setattr(array_guards, "memory_bound", lambda: 4 * 1000 * 1001 - 1)
    with pytest.raises(ValueError, match=r"would take .* 'inputs' of shape \(1001,\)"):
        read_arrays(tmp_path / "data.zarr", "labels file")
