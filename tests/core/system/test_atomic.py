"""Files and folders come into their places whole or not at all."""

import os

import pytest

from pathkernel_core.system.atomic import remove_leftovers, replace_file, replacing_folder

pytestmark = pytest.mark.version


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with replace_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
        assert partial.parent == tmp_path, "a move to another disk is no move"
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail():
        with replace_file(path) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_followed_also_those_that_lead_nowhere_yet(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for name in ("file.txt", "folder"):
        (tmp_path / name).symlink_to(scratch / name)
    for content in ("first", "second"):
        with replace_file(tmp_path / "file.txt") as partial:
            assert partial.parent == scratch
            partial.write_text(content)
        with replacing_folder(tmp_path / "folder") as partial:
            (partial / content).touch()
        assert (scratch / "file.txt").read_text() == content
        assert [file.name for file in (scratch / "folder").iterdir()] == [content]
    assert all((tmp_path / name).is_symlink() for name in ("file.txt", "folder"))
    assert sorted(file.name for file in scratch.iterdir()) == ["file.txt", "folder"]


def test_the_next_writer_removes_what_a_kill_left(tmp_path):
    (tmp_path / ".file.txt.abc.partial").touch()
    with replace_file(tmp_path / "file.txt") as partial:
        assert list(tmp_path.iterdir()) == [partial]


def test_several_writers_of_one_file_do_no_harm(tmp_path):
    path = tmp_path / "file.txt"
    with (
        replace_file(path, several_writers=True) as one,
        replace_file(path, several_writers=True) as two,
    ):
        one.write_text("same")
        two.write_text("same")
    assert path.read_text() == "same"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole(tmp_path):
    path = tmp_path / "folder"
    for content in ("first", "second"):
        with replacing_folder(path) as partial:
            (partial / content).touch()
        assert [file.name for file in path.iterdir()] == [content]
    with pytest.raises(RuntimeError), replacing_folder(path) as partial:
        raise RuntimeError
    assert [file.name for file in path.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_leaves_is_removed(tmp_path):
    (tmp_path / ".file[1].txt.abc.partial").touch()
    (tmp_path / ".file[1].txt.def.partial").mkdir()
    (tmp_path / ".other.txt.abc.partial").touch()
    (tmp_path / "file[1].txt").touch()
    remove_leftovers(tmp_path / "file[1].txt")
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == [".other.txt.abc.partial", "file[1].txt"]


def test_what_longer_names_leave_is_theirs(tmp_path):
    live = tmp_path / ".study.zarr.abc_1.partial"
    live.mkdir()
    remove_leftovers(tmp_path / "study")
    assert live.exists()
    remove_leftovers(tmp_path / "study.zarr")
    assert not live.exists()


def test_a_folder_that_a_kill_left_without_its_place_is_put_back(tmp_path):
    (tmp_path / ".curves.abc.partial").mkdir()
    old = tmp_path / ".curves.abc.partial.old"
    old.mkdir()
    (old / "content").touch()
    remove_leftovers(tmp_path / "curves")
    assert [file.name for file in tmp_path.iterdir()] == ["curves"]
    assert (tmp_path / "curves" / "content").exists()


def test_an_error_puts_the_old_folder_back(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "content").touch()
    rename = os.rename

    def fail(source, target):
        if str(source).endswith(".partial"):
            raise OSError("no space left")
        rename(source, target)

    def replace():
        with replacing_folder(path):
            pass

    monkeypatch.setattr("os.rename", fail)
    monkeypatch.setattr("pathkernel_core.system.atomic._exchange", lambda *folders: False)
    with pytest.raises(OSError, match="no space"):
        replace()
    assert (path / "content").exists()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_permissions_are_those_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        with replace_file(tmp_path / "file.txt") as partial:
            partial.write_text("new")
        with replacing_folder(tmp_path / "folder") as partial:
            (partial / "content").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"file.txt": 0o666 & ~mask, "folder": 0o777 & ~mask, "content": 0o666 & ~mask}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are those of POSIX")
def test_pipes_devices_and_urls_are_never_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("pipe", "link")
    os.symlink("loop", "loop")
    for path in ("pipe", "link", "loop", "/dev/null"):
        with pytest.raises(FileExistsError, match="is no plain file, and is left as it is"):
            replace_file(path).__enter__()
    with pytest.raises(ValueError, match="only local paths"):
        replace_file("s3://bucket/file.txt").__enter__()
    assert sorted(os.listdir()) == ["link", "loop", "pipe"]
