"""Files and folders come into their places whole or not at all."""

import pytest

from pathkernel_datasets.atomic import remove_left_over, replacing, replacing_folder

pytestmark = pytest.mark.version


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with replacing(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
        assert partial.parent == tmp_path, "a move to another disk is no move"
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail():
        with replacing(path) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole(tmp_path):
    path = tmp_path / "folder"
    for content in ("first", "second"):
        with replacing_folder(path) as partial:
            (partial / content).touch()
        assert [file.name for file in path.iterdir()] == [content]
    with pytest.raises(FileExistsError), replacing_folder(path, overwrite=False):
        pass
    with pytest.raises(RuntimeError), replacing_folder(path) as partial:
        raise RuntimeError
    assert [file.name for file in path.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_leaves_is_removed(tmp_path):
    (tmp_path / ".file[1].txt.abc.partial").touch()
    (tmp_path / ".file[1].txt.def.partial").mkdir()
    (tmp_path / ".other.txt.abc.partial").touch()
    (tmp_path / "file[1].txt").touch()
    remove_left_over(tmp_path / "file[1].txt")
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == [".other.txt.abc.partial", "file[1].txt"]
