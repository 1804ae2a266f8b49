"""Image sources: readers, their checks, the mirror, and the download."""

import gzip
import hashlib
import http.server
import io
import json
import os
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pathkernel_one_shot import omniglot
from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, read_idx, read_idx_set
from pathkernel_one_shot.image_sources import ImageDataError, RemoteFile, locate, resize
from pathkernel_one_shot.omniglot import (
    Character,
    read_archive,
    read_drawings,
    read_split,
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


def digest_of(drawings):
    content = b"".join(
        f"{name} {len(png(pixels))}\n".encode() + png(pixels)
        for name, pixels in sorted(drawings.items())
    )
    return hashlib.sha256(content).hexdigest()


@pytest.mark.version
def test_drawings_are_read_inverted_in_order_of_name(archive, drawings, monkeypatch):
    monkeypatch.setitem(omniglot._CONTENT_DIGESTS, FOLDER, digest_of(drawings))
    monkeypatch.setattr(omniglot, "locate", lambda file: archive)
    monkeypatch.setattr(omniglot, "resize", lambda image: image)
    characters = [Character(FOLDER, "Latin", f"character{number:02}") for number in (2, 1)]
    expected = [
        255 - drawings["/".join(character) + f"/{int(character.name[-2:]):04}_{drawing + 1:02}.png"]
        for character in characters
        for drawing in (0, 1)
    ]
    assert np.array_equal(read_drawings(characters, [0, 1, 20, 21]), expected)
    for character, number in ((characters[0], 2), (Character(FOLDER, "Latin", "none"), 0)):
        with pytest.raises(LookupError):
            read_drawings([character], [number])


def test_digest_sees_a_changed_drawing_but_not_how_it_was_packed(archive, drawings, tmp_path):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as stream:
        for name, pixels in drawings.items():
            stream.writestr(name, png(pixels))
    assert packed.read_bytes() != archive.read_bytes()
    expected = read_archive(archive, FOLDER, digest_of(drawings))
    assert read_archive(packed, FOLDER, digest_of(drawings)) == expected

    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(changed, "w") as stream:
        for name, pixels in drawings.items():
            stream.writestr(name, png(pixels[::-1]))
    with pytest.raises(ImageDataError, match=r"changed\.zip.* other drawings"):
        read_archive(changed, FOLDER, digest_of(drawings))


@pytest.mark.version
@pytest.mark.parametrize("damage", ["the end is missing", "a byte is changed"])
def test_damaged_archives_are_named(archive, drawings, damage):
    content = bytearray(archive.read_bytes())
    if damage == "the end is missing":
        del content[-100:]
    else:
        content[content.index(png(next(iter(drawings.values())))) + 60] ^= 1
    archive.write_bytes(content)
    with pytest.raises(ImageDataError, match=r"drawings\.zip.* not a complete zip file"):
        read_archive(archive, FOLDER, digest_of(drawings))


@pytest.mark.version
def test_members_that_point_out_of_the_folder_are_never_written(tmp_path, monkeypatch):
    inside = tmp_path / "mirror" / "inside"
    inside.mkdir(parents=True)
    path = inside / "drawings.zip"
    with zipfile.ZipFile(path, "w") as stream:
        for name in (f"{FOLDER}/../../escaped/character01/0001_01.png", "../escaped.png"):
            stream.writestr(name, png(np.zeros((105, 105), np.uint8)))
    monkeypatch.chdir(inside)
    with pytest.raises(ImageDataError, match="other drawings"):
        read_archive(path, FOLDER, "0000")
    assert files_below(tmp_path) == [path]


def test_an_archive_that_unpacks_to_gigabytes(tmp_path):
    path = tmp_path / "drawings.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as stream:
        stream.writestr(f"{FOLDER}/Latin/character01/0001_01.png", bytes(2**26 + 1))
    with pytest.raises(ImageDataError, match="take more than 67108864 bytes"):
        read_archive(path, FOLDER, "0000")


def test_unknown_folder_of_drawings():
    with pytest.raises(LookupError, match="images_elsewhere"):
        read_drawings([Character("images_elsewhere", "Latin", "character01")], [0])


def test_splits_have_one_form_for_both_origins(tmp_path, monkeypatch):
    monkeypatch.setitem(
        omniglot.SPLIT_DIGESTS,
        "val",
        hashlib.sha256(b"images_background/Latin/a\nimages_background/Latin/b\n").hexdigest(),
    )
    single, merged = tmp_path / "val.json", tmp_path / "all.json"
    single.write_text(json.dumps({"background": {"Latin": ["b", "a"]}}))
    merged.write_text(json.dumps({"val": {FOLDER: {"Latin": ["a", "b"]}}, "test": {}}))
    expected = (Character(FOLDER, "Latin", "a"), Character(FOLDER, "Latin", "b"))
    for path in (single, merged):
        assert read_split(path, "val") == expected


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
        read_split(path, "val")


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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: gzip.compress(content)[:-12], "cannot be decompressed"),
        (lambda content: content, "cannot be decompressed"),
        (lambda content: gzip.compress(content[:-1]), "must have SHA-256"),
    ],
)
def test_damaged_idx(tmp_path, damage, message):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(idx_bytes(np.ones((2, 3), np.uint8))))
    with pytest.raises(ImageDataError, match=rf"images\.gz.* is damaged: .*{message}"):
        read_idx(path, hashlib.sha256(idx_bytes(np.ones((2, 3), np.uint8))).hexdigest())


def test_splits_that_are_nested_without_end(tmp_path):
    path = tmp_path / "splits.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ImageDataError, match="the train characters cannot be read"):
        read_split(path, "train")


@pytest.mark.version
def test_a_small_file_that_unpacks_to_gigabytes(tmp_path):
    """It is not unpacked to see that its digest is another one."""
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(65):
            stream.write(bytes(2**20))
    with pytest.raises(ImageDataError, match="takes more than 67108864 bytes"):
        read_idx(path, "0000")


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
    with pytest.raises(ImageDataError, match=r"PATHKERNEL_DATA .*nowhere.* no such folder.*unset"):
        split_characters("train")


def test_mirror_file_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path))
    with pytest.raises(ImageDataError, match=r"lacks the file 'omniglot/class_splits\.json'"):
        split_characters("train")
    with pytest.raises(ImageDataError, match=r"lacks the file 'mnist/t10k-images.*unset"):
        read_idx_set(MNIST)
    character = Character(FOLDER, "Latin", "character01")
    with pytest.raises(ImageDataError, match=r"lacks the file 'omniglot/images_background\.zip'"):
        read_drawings([character], [0])


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
    file = RemoteFile("file", "http://127.0.0.1:1/file", "sha256:" + "0" * 64, mirrored="set/file")
    with pytest.raises(ImageDataError, match=r"PATHKERNEL_DATA to a folder that holds 'set/file'"):
        locate(file)
    assert not files_below(cache)


@pytest.mark.parametrize("source", [FASHION_MNIST, MNIST])
def test_downloads_are_encrypted(source):
    assert {file.url.partition(":")[0] for file in (source.images, source.labels)} == {"https"}


# -- the real archives


@needs_data
def test_splits_are_disjoint_and_complete():
    splits = [split_characters(split) for split in omniglot.SPLITS]
    assert [len(characters) for characters in splits] == [1028, 172, 423]
    assert len(set().union(*splits)) == 1028 + 172 + 423


@needs_data
def test_the_real_archive_without_an_alphabet(tmp_path, monkeypatch):
    sources = Path(os.environ["PATHKERNEL_DATA"])
    whole = next(sources.rglob(f"{FOLDER}.zip"))
    copy = tmp_path / whole.relative_to(sources)
    copy.parent.mkdir(parents=True)
    character = split_characters("train")[0]
    with zipfile.ZipFile(whole) as stream, zipfile.ZipFile(copy, "w") as other:
        for entry in stream.infolist():
            if f"/{character.alphabet}/" not in entry.filename:
                other.writestr(entry, stream.read(entry))
    monkeypatch.setenv("PATHKERNEL_DATA", str(tmp_path))
    message = r"images_background\.zip' is damaged: it holds other drawings"
    with pytest.raises(ImageDataError, match=message):
        read_drawings([character], [0])
    assert files_below(tmp_path) == [copy]


@needs_data
def test_every_character_has_twenty_drawings():
    characters = sorted(set().union(*map(split_characters, omniglot.SPLITS)))
    images = read_drawings(characters, range(19, 20 * len(characters), 2000))
    assert images.shape == (17, 32, 32)
    assert images.min() == 0.0
    assert images.max() > 0.9
    assert images.mean() < 0.3, "ink is bright and rare"
    with pytest.raises(LookupError):
        read_drawings(characters[:1], [20])


@needs_data
def test_drawings_come_in_the_order_asked():
    characters = [split_characters("test")[0], split_characters("val")[0]]
    numbers = [3, 20, 4]
    images = read_drawings(characters, numbers)
    assert np.array_equal(read_drawings(characters, numbers[::-1]), images[::-1])
    assert not np.array_equal(images[0], images[2])


@needs_data
@pytest.mark.parametrize(("source", "count"), [(FASHION_MNIST, (1000, 1000)), (MNIST, (980, 1135))])
def test_idx_sets(source, count):
    images, labels = read_idx_set(source)
    assert images.shape == (10_000, 28, 28)
    assert tuple(np.bincount(labels)[:2]) == count
    image = resize(images[0])
    assert image.shape == (32, 32)
    assert 0.0 <= image.min() < image.max() <= 1.0
