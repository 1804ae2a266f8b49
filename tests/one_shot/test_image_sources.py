"""Image sources: readers, their checks, the mirror, and the download."""

import gzip
import hashlib
import http.server
import io
import json
import os
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pathkernel_one_shot import omniglot
from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, IdxImages, read_idx
from pathkernel_one_shot.image_sources import ImageDataError, RemoteFile, locate, resize
from pathkernel_one_shot.omniglot import (
    Character,
    DrawingArchive,
    archive_digest,
    read_drawings,
    read_splits,
    split_characters,
)

FOLDER = "images_background"


def needs_data(test):
    """Mark a test that reads the real archives; it is skipped where there is no mirror."""
    skip = pytest.mark.skipif(
        not os.environ.get("PATHKERNEL_DATA"),
        reason="set PATHKERNEL_DATA to a folder that holds the image archives",
    )
    return pytest.mark.data(skip(test))


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).convert("1").save(stream, "png")
    return stream.getvalue()


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def drawings():
    """Two drawings of each of two characters, black ink on white as in the public archives."""
    generator = np.random.default_rng(0)
    return {
        f"{FOLDER}/Latin/character{number:02}/{number:04}_{drawing:02}.png": np.where(
            generator.random((105, 105)) < 0.1, 0, 255
        ).astype(np.uint8)
        for number in (1, 2)
        for drawing in (1, 2)
    }


@pytest.fixture
def archive(tmp_path, drawings):
    path = tmp_path / "drawings.zip"
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr(f"{FOLDER}/Latin/", b"")
        stream.writestr("__MACOSX/._litter.png", b"litter")
        for name, pixels in reversed(drawings.items()):
            stream.writestr(name, png(pixels))
    return path


def digest_of(path):
    with zipfile.ZipFile(path) as stream:
        return archive_digest(
            entry for entry in stream.infolist() if entry.filename.startswith(f"{FOLDER}/Latin/c")
        )


@pytest.mark.version
def test_drawings_are_read_inverted_in_order_of_name(archive, drawings):
    with DrawingArchive(archive, FOLDER, digest_of(archive)) as opened:
        for number in (1, 2):
            character = Character(FOLDER, "Latin", f"character{number:02}")
            for drawing in (0, 1):
                expected = drawings["/".join(character) + f"/{number:04}_{drawing + 1:02}.png"]
                assert np.array_equal(opened.drawing(character, drawing), 255 - expected)
        with pytest.raises(LookupError, match=r"holds 2 drawings .* no drawing 2"):
            opened.drawing(character, 2)
        with pytest.raises(LookupError, match="no drawing -1"):
            opened.drawing(character, -1)
        with pytest.raises(LookupError, match="holds 0 drawings"):
            opened.drawing(Character(FOLDER, "Latin", "character03"), 0)


def test_digest_sees_a_changed_drawing_but_not_how_it_was_packed(archive, drawings, tmp_path):
    digest = digest_of(archive)
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as stream:
        for name, pixels in drawings.items():
            stream.writestr(name, png(pixels))
    assert packed.read_bytes() != archive.read_bytes()
    DrawingArchive(packed, FOLDER, digest)

    with zipfile.ZipFile(packed, "w") as stream:
        for name, pixels in drawings.items():
            stream.writestr(name, png(pixels[::-1]))
    with pytest.raises(ImageDataError, match=r"packed\.zip.* other drawings"):
        DrawingArchive(packed, FOLDER, digest)


def test_incomplete_archives_are_named(archive):
    with pytest.raises(ImageDataError, match=r"must hold 19280 drawings .* holds 4"):
        DrawingArchive(archive, FOLDER)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ImageDataError, match=r"drawings\.zip.* not a complete zip file"):
        DrawingArchive(archive, FOLDER)


@pytest.mark.version
def test_damaged_drawing_is_named(archive, drawings):
    name, pixels = next(iter(drawings.items()))
    digest = digest_of(archive)
    content = bytearray(archive.read_bytes())
    content[content.index(png(pixels)) + 60] ^= 1
    archive.write_bytes(content)
    with (
        DrawingArchive(archive, FOLDER, digest) as opened,
        pytest.raises(ImageDataError, match=f"{name} cannot be read .*CRC"),
    ):
        opened.drawing(Character(FOLDER, "Latin", "character01"), 0)


@pytest.mark.version
def test_members_that_point_out_of_the_folder_are_never_written(tmp_path, monkeypatch):
    inside = tmp_path / "mirror" / "inside"
    inside.mkdir(parents=True)
    path = inside / "drawings.zip"
    names = [f"{FOLDER}/../../escaped/character01/0001_01.png", "/escaped.png", "../escaped.png"]
    with zipfile.ZipFile(path, "w") as stream:
        for name in names:
            stream.writestr(name, png(np.zeros((105, 105), np.uint8)))
    monkeypatch.chdir(inside)
    entry = zipfile.ZipFile(path).infolist()[:1]
    with DrawingArchive(path, FOLDER, archive_digest(entry)) as opened:
        # a name is a name: the drawing is read into memory, and no path is made of it
        opened.drawing(Character(FOLDER, "../../escaped", "character01"), 0)
    assert files_below(tmp_path) == [path]
    with pytest.raises(ImageDataError, match="must hold 19280 drawings"):
        DrawingArchive(path, FOLDER)


@pytest.mark.version
@pytest.mark.parametrize("content", [png(np.zeros((104, 105), np.uint8)), b"no picture", b""])
def test_member_that_is_no_drawing(tmp_path, content):
    path = tmp_path / "drawings.zip"
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr(f"{FOLDER}/Latin/character01/0001_01.png", content)
    with (
        DrawingArchive(path, FOLDER, digest_of(path)) as opened,
        pytest.raises(ImageDataError, match=r"0001_01\.png cannot be read"),
    ):
        opened.drawing(Character(FOLDER, "Latin", "character01"), 0)


def test_unknown_folder_of_drawings():
    with pytest.raises(LookupError, match="images_elsewhere"):
        read_drawings([(Character("images_elsewhere", "Latin", "character01"), 0)])


def test_splits_have_one_form_for_both_origins(tmp_path, monkeypatch):
    monkeypatch.setitem(
        omniglot.SPLIT_DIGESTS,
        "val",
        hashlib.sha256(b"images_background/Latin/a\nimages_background/Latin/b\n").hexdigest(),
    )
    own, merged = tmp_path / "val.json", tmp_path / "all.json"
    own.write_text(json.dumps({"background": {"Latin": ["b", "a"]}}))
    merged.write_text(json.dumps({"val": {FOLDER: {"Latin": ["a", "b"]}}, "test": {}}))
    expected = (Character(FOLDER, "Latin", "a"), Character(FOLDER, "Latin", "b"))
    for path in (own, merged):
        assert read_splits({"val": path}) == {"val": expected}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"background": {"Latin": ["a"]}}', "other val characters"),
        ('{"background": {"Lat', "val characters cannot be read"),
        ("[1, 2]", "val characters cannot be read"),
        ('{"background": {"Latin": 3}}', "val characters cannot be read"),
        ('{"background": {"Latin": [3]}}', "val characters cannot be read"),
    ],
)
def test_damaged_splits(tmp_path, text, message):
    path = tmp_path / "val.json"
    path.write_text(text)
    with pytest.raises(ImageDataError, match=rf"val\.json.*{message}"):
        read_splits({"val": path})


def idx_bytes(array):
    header = bytes((0, 0, 8, array.ndim))
    return header + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.mark.version
def test_idx_round_trip(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(array)))
    digest = hashlib.sha256(idx_bytes(array)).hexdigest()
    assert np.array_equal(read_idx(path, digest), array)
    with pytest.raises(ImageDataError, match=r"images\.gz.* must have SHA-256 0000"):
        read_idx(path, "0000")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: gzip.compress(content)[:-12], "cannot be decompressed"),
        (lambda content: content, "cannot be decompressed"),
        (lambda content: gzip.compress(content[:-1]), "does not fit the shape"),
        (lambda content: gzip.compress(content + b"\0"), "does not fit the shape"),
        (lambda content: gzip.compress(content[:6]), "ends within its header"),
        (lambda content: gzip.compress(b"\0\0\x0d" + content[3:]), "not an IDX file"),
        (lambda content: gzip.compress(b""), "not an IDX file"),
    ],
)
def test_damaged_idx(tmp_path, damage, message):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(idx_bytes(np.ones((2, 3), np.uint8))))
    with pytest.raises(ImageDataError, match=rf"images\.gz.* is damaged: .*{message}"):
        read_idx(path)


def test_resize_keeps_grey_levels_and_averages_when_shrinking():
    assert np.array_equal(resize(np.full((105, 105), 51, np.uint8)), np.full((32, 32), 0.2))
    stripes = np.zeros((128, 128), np.uint8)
    stripes[:, ::2] = 255
    shrunk = resize(stripes)
    assert shrunk.dtype == np.float64
    assert abs(shrunk[:, 1:-1] - 0.5).max() < 0.05  # without antialiasing it would be 0 or 1


# -- where files come from


def test_mirror_folder_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ImageDataError, match=r"PATHKERNEL_DATA .*nowhere.* does not exist.*unset"):
        split_characters()


def test_mirror_file_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path))
    with pytest.raises(ImageDataError, match=r"lacks the file 'omniglot/class_splits\.json'"):
        split_characters()
    with pytest.raises(ImageDataError, match=r"lacks the file 'mnist/t10k-images.*unset"):
        IdxImages(MNIST)
    character = Character(FOLDER, "Latin", "character01")
    with pytest.raises(ImageDataError, match=r"lacks the file 'omniglot/images_background\.zip'"):
        read_drawings([(character, 0)])


def test_mirror_replaces_the_download(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file").write_bytes(b"anything")
    file = RemoteFile("set/file", "http://host.invalid/file", "sha256:00")
    assert locate(file) == tmp_path / "set" / "file"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Empty cache folder, and no mirror."""
    monkeypatch.delenv("PATHKERNEL_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "cache"
    monkeypatch.setattr("pooch.os_cache", lambda project: folder / project)
    return folder / "pathkernel"


@pytest.fixture
def server():
    """Address of a server that answers every request with ``content``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "7")
            self.end_headers()
            self.wfile.write(b"content")

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/file"
        server.shutdown()
        thread.join()


@pytest.mark.version
def test_download_is_cached(cache, server):
    checksum = "sha256:" + hashlib.sha256(b"content").hexdigest()
    path = locate(RemoteFile("set/file", server, checksum))
    assert path == cache / "set" / "file"
    assert path.read_bytes() == b"content"
    assert locate(RemoteFile("set/file", "http://127.0.0.1:1/gone", checksum)) == path


def test_download_with_another_checksum_is_not_kept(cache, server):
    with pytest.raises(ImageDataError, match=r"could not be downloaded.*PATHKERNEL_DATA"):
        locate(RemoteFile("set/file", server, "sha256:" + "0" * 64))
    assert not files_below(cache)


def test_no_network(cache):
    file = RemoteFile("own", "http://127.0.0.1:1/file", "sha256:" + "0" * 64, mirrored="set/file")
    with pytest.raises(ImageDataError, match=r"PATHKERNEL_DATA to a folder that holds 'set/file'"):
        locate(file)
    assert not files_below(cache)


# -- the real archives


def test_splits_that_are_nested_without_end(tmp_path):
    path = tmp_path / "splits.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ImageDataError, match="the train characters cannot be read"):
        read_splits({"train": path})


@pytest.mark.version
def test_a_small_file_that_unpacks_to_gigabytes(tmp_path):
    """It is not unpacked to see that its digest is another one."""
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(65):
            stream.write(bytes(2**20))
    with pytest.raises(ImageDataError, match="takes more than 67108864 bytes"):
        read_idx(path, "0000")


@pytest.mark.parametrize("source", [FASHION_MNIST, MNIST])
def test_downloads_are_encrypted(source):
    assert {file.url.partition(":")[0] for file in (source.images, source.labels)} == {"https"}


@needs_data
def test_splits_are_disjoint_and_complete():
    splits = split_characters()
    assert [len(splits[split]) for split in omniglot.SPLITS] == [1028, 172, 423]
    assert len(set().union(*splits.values())) == 1028 + 172 + 423


@needs_data
@pytest.mark.parametrize("damage", ["an alphabet is missing", "the end is missing"])
def test_damaged_copies_of_the_real_archive(tmp_path, monkeypatch, damage):
    sources = Path(os.environ["PATHKERNEL_DATA"])
    whole = next(sources.rglob(f"{FOLDER}.zip"))
    copy = tmp_path / whole.relative_to(sources)
    copy.parent.mkdir(parents=True)
    character = split_characters()["train"][0]
    if damage == "the end is missing":
        copy.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        message = r"images_background\.zip' is damaged: .* not a complete zip file"
    else:
        with zipfile.ZipFile(whole) as stream, zipfile.ZipFile(copy, "w") as other:
            for entry in stream.infolist():
                if f"/{character.alphabet}/" not in entry.filename:
                    other.writestr(entry, stream.read(entry))
        message = r"images_background\.zip' is damaged: it must hold 19280 drawings"
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path))
    with pytest.raises(ImageDataError, match=message):
        read_drawings([(character, 0)])
    assert files_below(tmp_path) == [copy]


@needs_data
def test_forged_checksums_of_the_real_archive(tmp_path, monkeypatch):
    """A drawing of the same name, size and checksum of 32 bits, which says nothing."""
    sources = Path(os.environ["PATHKERNEL_DATA"])
    whole = next(sources.rglob(f"{FOLDER}.zip"))
    copy = tmp_path / whole.relative_to(sources)
    copy.parent.mkdir(parents=True)
    character = split_characters()["train"][0]
    name = "/".join(character)
    with zipfile.ZipFile(whole) as stream, zipfile.ZipFile(copy, "w") as other:
        for entry in stream.infolist():
            content = stream.read(entry)
            if entry.filename.startswith(name):
                content = with_checksum(bytes(len(content) - 4), entry.CRC)
                assert zlib.crc32(content) == entry.CRC
            other.writestr(entry.filename, content)
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path))
    with DrawingArchive(copy, FOLDER):
        pass  # its directory is the public one's
    with pytest.raises(ImageDataError, match="holds other drawings than the public archive"):
        read_drawings([(character, 0)])


def with_checksum(content, wanted):
    """Content followed by the four bytes that give it a CRC-32."""
    table = [zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256)]
    tops = {entry >> 24: (byte, entry) for byte, entry in enumerate(table)}
    places, state = [], wanted ^ 0xFFFFFFFF
    for _ in range(4):  # backwards, which byte of the table came in
        byte, entry = tops[state >> 24]
        places.append(byte)
        state = ((state ^ entry) << 8) & 0xFFFFFFFF
    state, tail = zlib.crc32(content) ^ 0xFFFFFFFF, bytearray()
    for byte in reversed(places):
        tail.append((state ^ byte) & 0xFF)
        state = table[byte] ^ (state >> 8)
    return content + bytes(tail)


@needs_data
def test_every_character_has_twenty_drawings():
    splits = split_characters()
    characters = sorted(set().union(*splits.values()))
    images = read_drawings([(character, 19) for character in characters[::100]])
    assert images.shape == (17, 32, 32)
    assert images.min() == 0.0
    assert images.max() > 0.9
    assert images.mean() < 0.3, "ink is bright and rare"
    with pytest.raises(LookupError, match="20 drawings"):
        read_drawings([(characters[0], 20)])


@needs_data
def test_drawings_come_in_the_order_asked():
    splits = split_characters()
    wanted = [(splits["test"][0], 3), (splits["val"][0], 0), (splits["test"][0], 4)]
    images = read_drawings(wanted)
    assert np.array_equal(read_drawings(wanted[::-1]), images[::-1])
    assert not np.array_equal(images[0], images[2])


@needs_data
@pytest.mark.parametrize(("source", "count"), [(FASHION_MNIST, (1000, 1000)), (MNIST, (980, 1135))])
def test_idx_sets(source, count):
    images = IdxImages(source)
    numbers = [images.of_class(label) for label in (0, 1)]
    assert tuple(len(of_class) for of_class in numbers) == count
    pixels = images.read(numbers[0][:3])
    assert pixels.shape == (3, 32, 32)
    assert 0.0 <= pixels.min() < pixels.max() <= 1.0
