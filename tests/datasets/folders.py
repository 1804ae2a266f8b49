"""Folders of studies: their files, damage to them, and a process that is killed between steps."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest

from pathkernel_core.system import atomic
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.reading import open_study


def content(path):
    """All files of a folder but its locks, with their bytes."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def names(path):
    """Names of all that is in a folder, in alphabetic order."""
    return sorted(entry.name for entry in path.iterdir())


def flip(file, bit=100):
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    file.write_bytes(data)


class Killed(Exception):
    """Stands for the end of a process."""


STEPS = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link")


@contextmanager
def killed_before(step):
    """Kill this process before its step of a number that changes a folder; yield steps so far.

    A dead process takes no other step, whatever it is to clean up.
    """
    done = []

    def mortal(function):
        def take(*given, **settings):
            if threading.current_thread() is threading.main_thread():
                if len(done) >= step:
                    raise Killed
                done.append(given)
            return function(*given, **settings)

        return take

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, mortal(getattr(os, name)))
        patch.setattr(atomic, "_exchange", mortal(atomic._exchange))
        yield done


def kill(step, run):
    """Run something that is killed before a step; return whether it ended before that."""
    try:
        with killed_before(step):
            run()
    except Killed:
        return False
    return True


def check_what_a_kill_left(path):
    """No damage and no other study is named in a folder; return whether it is published."""
    if not path.exists() or not names(path):
        return False
    try:
        checked = check(path)
    except StudyError as error:
        assert "is in progress, and nothing is computed yet; run" in str(error)  # noqa: PT017
        return False
    assert checked.study == ()
    return checked.is_published


def computed_so_far(path):
    """The dataset of a folder that a process may have left in any state; None if there is none."""
    try:
        return open_study(path).load()
    except StudyError:
        return None
