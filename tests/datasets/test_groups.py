"""Groups beside a study: whole or not at all, whatever is killed, by one writer at a time."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from pathkernel_datasets import groups
from pathkernel_datasets.groups import add_group, folder_beside, sole_writer
from pathkernel_datasets.store import StoreError
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study
from pathkernel_tasks.hidden_markov import HiddenMarkov

GROUP = "further/group"


class Killed(BaseException):
    """As little to be caught as a signal."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "study.zarr"
    compute_study(Study(HiddenMarkov(examples=10, test_examples=20), [10]), path)
    return path


@pytest.fixture
def study(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "study.zarr")


def dataset(value):
    return xr.Dataset({"number": ("place", np.full(3, value))})


def found(study):
    return xr.open_zarr(study, group=GROUP, chunks=None)["number"].values.tolist()


def beside(study):
    names = (file.name for file in study.parent.iterdir())
    return [name for name in names if name != study.name and not name.endswith(".lock")]


def kill(monkeypatch, module, name, number):
    """Let the given call of a function end the process."""
    original, count = getattr(module, name), [0]

    def fail(*arguments, **keywords):
        count[0] += 1
        if count[0] == number:
            raise Killed
        return original(*arguments, **keywords)

    monkeypatch.setattr(module, name, fail)


def test_a_group_is_added_replaced_and_seen_by_plain_xarray(study):
    before = xr.open_zarr(study, chunks=None).load()
    for value in (1.0, 2.0):
        with sole_writer(study):
            add_group(study, GROUP, dataset(value))
        assert found(study) == [value] * 3
    xr.testing.assert_identical(xr.open_zarr(study, chunks=None).load(), before)
    assert beside(study) == []
    assert "number" in xr.open_datatree(study, engine="zarr", chunks=None)[GROUP]


@pytest.mark.parametrize(
    ("module", "name", "number"), [(xr.Dataset, "to_zarr", 1), (os, "rename", 1), (os, "rename", 2)]
)
def test_killed_on_the_way_the_older_group_stays(study, monkeypatch, module, name, number):
    with sole_writer(study):
        add_group(study, GROUP, dataset(1.0))
    kill(monkeypatch, module, name, number)
    with pytest.raises(Killed), sole_writer(study):
        add_group(study, GROUP, dataset(2.0))
    monkeypatch.undo()
    assert found(study) == [1.0] * 3
    with sole_writer(study):
        add_group(study, GROUP, dataset(2.0))
    assert found(study) == [2.0] * 3
    assert beside(study) == []


def test_what_a_signal_left_between_two_moves_is_put_back_by_the_next_writer(study, monkeypatch):
    with sole_writer(study):
        add_group(study, GROUP, dataset(1.0))
    kill(monkeypatch, os, "rename", 2)
    monkeypatch.setattr(groups, "_put_back", lambda *_: None)  # a signal leaves no time for it
    with pytest.raises(Killed), sole_writer(study):
        add_group(study, GROUP, dataset(2.0))
    monkeypatch.undo()
    with pytest.raises(KeyError):  # rather than the fill values of arrays without files
        found(study)
    with sole_writer(study):
        assert found(study) == [1.0] * 3
    assert beside(study) == []


def test_a_replaced_group_that_was_half_removed_is_removed(study):
    """Killed while the files of the older group went, its name first."""
    with sole_writer(study):
        add_group(study, GROUP, dataset(2.0))
    folder = groups.folder_beside(study)
    (folder / "old").mkdir()
    with sole_writer(study):
        assert found(study) == [2.0] * 3
    assert beside(study) == []


def test_killed_before_the_index_nothing_else_is_hurt(study, monkeypatch):
    before = json.loads((study / "zarr.json").read_text())
    kill(monkeypatch, groups, "publish", 1)
    with pytest.raises(Killed), sole_writer(study):
        add_group(study, GROUP, dataset(1.0))
    assert json.loads((study / "zarr.json").read_text()) == before
    monkeypatch.undo()
    with sole_writer(study):
        groups.publish(study, GROUP)
    assert found(study) == [1.0] * 3


def test_killed_before_the_index_the_older_metadata_is_not_read_with_newer_values(
    study, monkeypatch
):
    with sole_writer(study):
        add_group(study, GROUP, dataset(1.0))
    kill(monkeypatch, groups, "publish", 1)
    with pytest.raises(Killed), sole_writer(study):
        add_group(study, GROUP, xr.Dataset({"number": ("place", np.arange(5.0))}))
    monkeypatch.undo()
    with pytest.raises(KeyError):
        found(study)
    with sole_writer(study):
        add_group(study, GROUP, dataset(2.0))
    assert found(study) == [2.0] * 3


@pytest.mark.parametrize("name", ["alias", "here", "brackets"])
def test_one_store_has_one_lock_and_one_place_for_what_is_left(study, tmp_path, monkeypatch, name):
    if name == "alias":
        (tmp_path / "elsewhere").mkdir()
        other = tmp_path / "elsewhere" / "alias.zarr"
        other.symlink_to(study)
    elif name == "here":
        monkeypatch.chdir(study)
        other = "."
    else:
        study = study.rename(tmp_path / "study[1].zarr")
        other = str(study)
    left = folder_beside(other)
    with sole_writer(other):
        assert not left.exists()
        with pytest.raises(StoreError, match="another process is writing"), sole_writer(study):
            pass


def test_another_process_is_kept_out_until_the_first_ends_however_it_ends(study):
    code = (
        "import sys, time; from pathkernel_datasets.groups import sole_writer\n"
        "with sole_writer(sys.argv[1]): print('in', flush=True); time.sleep(600)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(study)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(StoreError, match="another process is writing"), sole_writer(study):
            pass
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    left = folder_beside(study)
    with sole_writer(study):
        assert not left.exists()
