"""Chunks that are written and read without Zarr's calls: against Zarr itself."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec

from pathkernel_datasets.checksums import (
    CHECKED,
    MISSING,
    damaged_chunks,
    read_array,
    write_region,
    writing_every_chunk,
)
from pathkernel_datasets.chunk_files import chunk_file, places_of
from pathkernel_datasets.errors import ChecksumError

CODECS = {"checked": CHECKED, "unchecked": CHECKED[:1], "another program's": (GzipCodec(),)}


def create(path, shape, chunks, dtype, codecs, endian="little", shards=None):
    with writing_every_chunk():
        return zarr.create_array(
            path,
            shape=shape,
            chunks=chunks,
            shards=shards,
            dtype=dtype,
            fill_value=5,
            serializer=BytesCodec(endian=None if dtype == "int8" else endian),
            compressors=codecs,
        )


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8"])
@pytest.mark.parametrize("codecs", CODECS)
def test_a_chunk_is_what_zarr_writes_and_reads(tmp_path, dtype, codecs):
    values = np.arange(12).reshape(4, 3).astype(dtype)[:, ::-1]
    mine, theirs = (
        create(tmp_path / name, (2, 3, 4, 3), (1, 1, 4, 3), dtype, CODECS[codecs])
        for name in ("mine", "theirs")
    )
    for number, index in enumerate([(0, 0), (1, 2), (0, 0)]):
        write_region(mine, index, values + number)
        theirs[index] = values + number
        written = [chunk_file(array, (*index, 0, 0)).read_bytes() for array in (mine, theirs)]
        if codecs != "another program's":  # gzip writes the time
            assert written[0] == written[1]
    for array in (mine, theirs):
        np.testing.assert_array_equal(read_array(array), theirs[...])
    assert (read_array(mine)[1, 0] == 5).all()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("codecs", CODECS)
def test_a_region_is_written_as_by_zarr(tmp_path, codecs):
    for shape, chunks, regions in (
        ((2, 5, 3), (2, 3, 3), [np.s_[:, 0:2], np.s_[:, 1:5], 1, np.s_[0, 3:4], ()]),
        ((), (), [()]),
    ):
        mine, theirs = (
            create(tmp_path / f"{name}-{len(shape)}", shape, chunks, "float64", CODECS[codecs])
            for name in ("mine", "theirs")
        )
        for number, region in enumerate(regions):
            values = number + np.arange(theirs[region].size).reshape(theirs[region].shape) / 64
            write_region(mine, region, values)
            theirs[region] = values
            np.testing.assert_array_equal(read_array(mine), theirs[...])
        for chunk in places_of(mine):
            files = [chunk_file(array, chunk).read_bytes() for array in (mine, theirs)]
            assert codecs == "another program's" or files[0] == files[1]


@pytest.mark.parametrize("endian", ["little", "big"])
def test_an_array_that_ends_within_a_chunk(tmp_path, endian):
    array = create(tmp_path / "a", (5, 4), (2, 3), "float64", CHECKED, endian)
    array[...] = np.arange(20.0).reshape(5, 4)
    np.testing.assert_array_equal(read_array(array), np.arange(20.0).reshape(5, 4))


@pytest.mark.parametrize(
    "key",
    [(3,), (-1, 2), (slice(1, 4),), (slice(None, None, 2), 0), ([4, 0, 4], slice(1, 3)), ([],)],
)
@pytest.mark.parametrize("codecs", CODECS)
def test_a_part_is_read_along_each_dimension_by_itself(tmp_path, codecs, key):
    array = create(tmp_path / "a", (5, 4), (2, 3), "int32", CODECS[codecs])
    array[...] = values = np.arange(20, dtype="int32").reshape(5, 4)
    wanted = values[key[0]][..., key[1] if len(key) > 1 else slice(None)]
    found = read_array(array, [np.array(k, int) if isinstance(k, list) else k for k in key])
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_a_written_chunk_leaves_its_links_alone(tmp_path):
    """A store that has grown shares its files with the older one until that is gone."""
    array = create(tmp_path / "a", (2,), (2,), "float64", CHECKED)
    write_region(array, slice(None), np.ones(2))
    before = chunk_file(array, (0,)).read_bytes()
    (tmp_path / "link").hardlink_to(chunk_file(array, (0,)))
    write_region(array, slice(None), np.zeros(2))
    assert (tmp_path / "link").read_bytes() == before
    np.testing.assert_array_equal(read_array(array), [0, 0])


@pytest.mark.parametrize("codecs", CODECS)
def test_a_damaged_chunk_is_replaced_whatever_the_chunks(tmp_path, codecs):
    array = create(tmp_path / "a", (4, 3), (2, 3), "float64", CODECS[codecs])
    write_region(array, slice(None), np.ones((4, 3)))
    chunk_file(array, (0, 0)).write_bytes(b"nothing")
    write_region(array, slice(0, 2), np.zeros((2, 3)))
    write_region(array, (3, slice(1, 3)), np.zeros(2))
    want = np.array([[0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0.0]])
    assert np.array_equal(read_array(array), want)
    assert np.array_equal(array[...], want)


@pytest.mark.parametrize("codecs", CODECS)
def test_several_chunks_in_a_file_are_read_and_written_as_by_zarr(tmp_path, codecs):
    mine, theirs = (
        create(tmp_path / name, (2, 3, 4), (1, 1, 4), "float64", CODECS[codecs], shards=(1, 3, 4))
        for name in ("mine", "theirs")
    )
    for number, index in enumerate([(0, 2), (1, 1), (0, 0), (0, 2)]):
        values = number + np.arange(4.0)
        write_region(mine, index, values)
        theirs[index] = values
        for array in (mine, theirs):
            np.testing.assert_array_equal(read_array(array), theirs[...])
            np.testing.assert_array_equal(array[...], theirs[...])
    assert len(list((tmp_path / "mine").rglob("[01]/0/0"))) == 2
    np.testing.assert_array_equal(read_array(theirs, (0, [2, 0])), theirs[0][[2, 0]])


def test_damage_costs_a_chunk_of_a_file_or_with_the_index_all(tmp_path):
    array = create(tmp_path / "a", (2, 3), (1, 1), "float64", CHECKED, shards=(1, 3))
    for index in ((0, 0), (0, 2), (1, 0), (1, 1)):
        write_region(array, index, 7.0)
    assert damaged_chunks(array) == {(0, 1): MISSING, (1, 2): MISSING}
    file = chunk_file(array, (0, 1))
    whole = file.read_bytes()
    file.write_bytes(b"?" + whole[1:])
    assert damaged_chunks(array).keys() == {(0, 0), (0, 1), (1, 2)}
    with pytest.raises(ChecksumError):
        read_array(array)
    write_region(array, (0, 0), 7.0)
    assert file.read_bytes() == whole
    for changed in (whole[:-1], whole[:-9] + b"?" + whole[-8:], b""):
        file.write_bytes(changed)
        assert [chunk for chunk in damaged_chunks(array) if chunk[0] == 0] == [
            (0, 0),
            (0, 1),
            (0, 2),
        ]
    write_region(array, (0, 2), 7.0)
    write_region(array, (0, 0), 7.0)
    assert file.read_bytes() == whole, "in whatever order"
