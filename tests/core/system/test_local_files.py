"""Paths that users name: local, and of plain files."""

import errno
import os
import socket

import pytest

from pathkernel_core.system.errors import NotLocalError
from pathkernel_core.system.local_files import (
    check_local,
    file_sizes,
    irregular_entries,
    is_damage,
    open_regular,
    regular_files,
)
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask

pytestmark = [
    pytest.mark.version,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and links are those of POSIX"),
]


def bound_socket(path, monkeypatch):
    monkeypatch.chdir(path.parent)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


IRREGULAR = {
    "pipe": lambda path, monkeypatch: os.mkfifo(path),
    "socket": bound_socket,
    "device": lambda path, monkeypatch: path.symlink_to("/dev/zero"),
    "loop": lambda path, monkeypatch: path.symlink_to(path.name),
    "broken link": lambda path, monkeypatch: path.symlink_to("nowhere"),
    "link to a folder": lambda path, monkeypatch: path.symlink_to(".."),
}


@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_plain_file_is_named_and_never_read(tmp_path, monkeypatch, kind):
    folder = tmp_path / "folder" / "inside"
    folder.mkdir(parents=True)
    (folder / "plain").write_text("text")
    (folder / "link").symlink_to("plain")
    assert list(irregular_entries(tmp_path)) == []
    assert regular_files(tmp_path, "store") == [folder / "link", folder / "plain"]
    IRREGULAR[kind](folder / "entry", monkeypatch)
    assert list(irregular_entries(tmp_path)) == [folder / "entry"]
    assert open_regular(folder / "entry") is None
    with pytest.raises(ValueError, match=r"^store .*inside/entry' is no plain file but a pipe"):
        regular_files(tmp_path, "store")


URLS = (
    *("s3://bucket/study.zarr", "http://host:80/study.zarr", "file:///tmp/study.zarr"),
    *("memory://study.zarr", "simplecache::gs://bucket/study.zarr"),
)


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_folder(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    reads = (open_study, check, StoredStudy, lambda path: regular_files(path, "data file"))
    for read in (*reads, lambda path: compute_study(Study(SmallTask(), (10,), (1.0,)), path)):
        with pytest.raises(NotLocalError, match="is a URL, and only local paths are read"):
            read(url)
    assert list(tmp_path.iterdir()) == []


def test_a_local_path_may_look_like_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    for path in ("s3:/bucket", "C:/study.zarr", "a b/c.zarr", "seed:1.zarr"):
        check_local(path)


@pytest.mark.parametrize(
    ("error", "damage"),
    [
        (ValueError("checksum"), True),
        (OSError("not a gzipped file"), True),
        (FileNotFoundError(errno.ENOENT, "missing"), True),
        (OSError(errno.EIO, "input or output"), True),
        (PermissionError(errno.EACCES, "denied"), False),
        (OSError(errno.ENOSPC, "full"), False),
        (OSError(errno.EMFILE, "too many open files"), False),
        (ImportError("a codec"), False),
        (MemoryError(), False),
    ],
)
def test_only_faults_of_the_content_are_damage(error, damage):
    assert is_damage(error) is damage


def test_sizes_of_files_leave_out_what_another_process_removes(tmp_path, monkeypatch):
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345"[: len(name)])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    sizes = {"a": 1, "b/c": 3, "b/d/e": 5, "link": 1}
    expected = {str(tmp_path / name): size for name, size in sizes.items()}
    assert dict(file_sizes(tmp_path)) == expected
    assert list(file_sizes(tmp_path / "a")) == [(str(tmp_path / "a"), 1)]
    assert list(file_sizes(tmp_path / "nothing")) == []
    walk = os.walk

    def racing_walk(path, **settings):
        for folder, folders, names in walk(path, **settings):
            yield folder, folders, [*names, "gone"]

    monkeypatch.setattr(os, "walk", racing_walk)
    assert len(list(file_sizes(tmp_path))) == len(sizes)
