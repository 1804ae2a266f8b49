"""The folder of a study: interrupted, killed, extended or shared, it ends with the same values."""

from __future__ import annotations

import errno
import os
import random
import shutil

import numpy as np
import pytest
import xarray as xr
from folders import Killed, check_what_a_kill_left, computed_so_far, content, kill, names
from small_task import count_minimisations

from pathkernel_core.system import atomic
from pathkernel_datasets.errors import StudyError, StudyWarning, TaskError
from pathkernel_datasets.folder import published, zarr_files
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.study_folder import StudyFolder
from pathkernel_datasets.run import computing
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.run.workers import workers
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SMALL_STUDY, SmallTask

COMPLETE = [".lock", "study.json", "study.zarr"]
TINY = Study(SmallTask(), (10,), (1.0,), (0,))
WIDER = TINY.on_grid({"width": (10, 100)})


def run(path, study=SMALL_STUDY, **settings):
    return compute_study(study, path, analyses=(), **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A complete study."""
    path = tmp_path_factory.mktemp("whole") / "study"
    assert run(path) == 8
    assert names(path) == COMPLETE
    return path


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """The same study, all pieces of which are computed and none published."""
    path = tmp_path_factory.mktemp("pieces") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StudyFolder, "publish", _die)
        with pytest.raises(Killed):
            run(path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A study of one point."""
    path = tmp_path_factory.mktemp("tiny") / "study"
    run(path, TINY)
    return path


@pytest.fixture(scope="module")
def wider(tmp_path_factory):
    """A study of two points."""
    path = tmp_path_factory.mktemp("wider") / "study"
    run(path, WIDER)
    return path


def _die(*given, **settings):
    raise Killed


def same(dataset, path):
    xr.testing.assert_identical(dataset.load(), open_study(path).load())


@pytest.mark.parametrize("done", [0, 3, 4])
def test_an_interrupted_run_resumes_and_computes_nothing_twice(tmp_path, whole, monkeypatch, done):
    path, calls = tmp_path / "study", []
    write = computing.write_arrays

    def failing(file, *given):
        if len(calls) == done:  # three pieces a seed
            raise Killed
        calls.append(file.name)
        write(file, *given)

    with monkeypatch.context() as patch:
        patch.setattr(computing, "write_arrays", failing)
        with pytest.raises(Killed):
            run(path)
    assert names(path) == [".lock", "pieces", "study.json"]
    so_far = open_study(path)
    computed = so_far.status != 0
    assert computed.sum() == {0: 0, 3: 4, 4: 6}[done]
    expected = open_study(whole).action
    xr.testing.assert_equal(so_far.action.where(computed), expected.where(computed))
    checked = check(path)
    assert checked.computed == computed.sum()
    assert not checked.study
    minimised = count_minimisations(monkeypatch)
    assert run(path) == len(minimised) == 8 - computed.sum()
    assert content(path) == content(whole)
    assert run(path) == 0
    assert names(path) == COMPLETE


def _test_kills(path, run, expected, steps):
    """Kill a run before each of some steps, and look at what it leaves; then run to the end."""
    for step in steps:
        if kill(step, run):
            break
        check_what_a_kill_left(path)
        so_far = computed_so_far(path)
        if so_far is not None and "status" in so_far:
            computed = so_far.status != 0
            whole = open_study(expected).action.reindex_like(so_far)
            xr.testing.assert_equal(so_far.action.where(computed), whole.where(computed))
    run()
    assert content(path) == content(expected)
    assert names(path) == names(expected)
    assert run() == 0


def all_steps(count, slow_except):
    """Steps one by one; most of them in the slow tests."""
    return [
        pytest.param([step], marks=() if step in slow_except else pytest.mark.slow)
        for step in range(count)
    ]


@pytest.mark.parametrize("steps", [range(40), *all_steps(25, ())])
def test_a_run_that_is_killed_before_any_step_is_resumed(tmp_path, tiny, steps):
    """At one step after another in the same folder, or at one in a new folder."""
    _test_kills(tmp_path / "study", lambda: run(tmp_path / "study", TINY), tiny, steps)


@pytest.mark.parametrize("steps", [range(40), *all_steps(25, (14,))])
@pytest.mark.parametrize("exchange", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_extension_that_is_killed_before_any_step_loses_nothing(
    tmp_path, tiny, wider, monkeypatch, steps, exchange
):
    """Where two folders can be exchanged in one step there is always a published study."""
    path = shutil.copytree(tiny, tmp_path / "study")
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *folders: False)

    def extend():
        computed = run(path, WIDER)
        assert computed in (0, 1), "the point of before is never computed again"
        return computed

    for step in steps:
        if kill(step, extend):
            break
        if exchange:
            assert xr.open_zarr(path / "study.zarr", chunks=None).status.sel(width=10) == 1
        assert open_study(path).status.sel(width=10) == 1
        check_what_a_kill_left(path)
    extend()
    assert content(path) == content(wider)
    assert names(path) == COMPLETE


def test_a_full_disk_while_publishing_loses_nothing(tmp_path, whole, pieces, monkeypatch):
    path = shutil.copytree(pieces, tmp_path / "study")

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zarr_files, "_seal", full)
        with pytest.raises(OSError, match="No space"):
            run(path)
    assert names(path) == [".lock", "pieces", "study.json"]
    same(open_study(whole), path)
    assert run(path) == 0
    assert content(path) == content(whole)


DAMAGE = {
    "flipped": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "cut": lambda data: data[:-1],
    "emptied": lambda data: b"",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", ["seed-0.npz", "seed-0_N-10.npz"])
def test_a_damaged_piece_is_computed_again(tmp_path, whole, pieces, monkeypatch, file, damage):
    path = shutil.copytree(pieces, tmp_path / "study")
    damaged = path / "pieces" / file
    damaged.write_bytes(DAMAGE[damage](damaged.read_bytes()))
    assert check(path).study == (f"{damaged} is damaged",)
    minimised = count_minimisations(monkeypatch)
    with pytest.warns(StudyWarning, match=rf"{file} is damaged; a run computes it again"):
        open_study(path)
    with pytest.warns(StudyWarning, match=rf"{file} is damaged"):
        run(path)
    assert minimised == [10, 10] * (file == "seed-0_N-10.npz")
    assert content(path) == content(whole)


def test_a_renamed_piece_is_not_taken_for_another(tmp_path, whole, pieces):
    path = shutil.copytree(pieces, tmp_path / "study")
    shutil.copy(path / "pieces" / "seed-0_N-10.npz", path / "pieces" / "seed-1_N-10.npz")
    assert check(path).study == (f"{path / 'pieces' / 'seed-1_N-10.npz'} is damaged",)
    with pytest.warns(StudyWarning, match=r"seed-1_N-10\.npz is damaged"):
        assert run(path) == 2
    assert content(path) == content(whole)


def test_pieces_of_another_study_are_not_taken(tmp_path, pieces, monkeypatch):
    path = tmp_path / "study"
    other = Study(SmallTask(examples=14), (10,), (0.1, 1.0))
    with monkeypatch.context() as patch:
        patch.setattr(StudyFolder, "publish", _die)
        with pytest.raises(Killed):
            run(path, other)
    shutil.copy(pieces / "pieces" / "seed-0_N-10.npz", path / "pieces")
    with pytest.warns(StudyWarning, match="is of another study; a run computes it again"):
        assert run(path, other) == 2


def test_what_killed_processes_left_is_removed(tmp_path, whole):
    path = shutil.copytree(whole, tmp_path / "study")
    (path / ".study.zarr.abc.partial").mkdir()
    (path / ".study.json.abc.partial").touch()
    assert run(path) == 0
    assert names(path) == COMPLETE
    (path / "study.zarr").rename(path / ".study.zarr.abc.partial.old")
    same(open_study(path), whole)
    assert names(path) == COMPLETE


def test_a_study_larger_than_memory_is_published_in_blocks(tmp_path, monkeypatch):
    grid = SMALL_STUDY.on_grid({"seed": (2, 0, 1)})
    run(tmp_path / "whole", grid)
    expected = open_study(tmp_path / "whole").load()
    for largest in (expected.nbytes * 2 // 3 + 1, 1000):
        monkeypatch.setattr(published, "_LARGEST_BLOCK", largest)
        monkeypatch.setattr(zarr_files, "_LARGEST_CHUNK", 1000)
        run(tmp_path / f"{largest}", grid)
        same(expected, tmp_path / f"{largest}")
        assert not check(tmp_path / f"{largest}").study


def test_many_seeds_share_chunks(tmp_path, monkeypatch):
    """Damage to one of them costs the seeds of a chunk."""
    monkeypatch.setattr(published, "_SEED_CHUNKS", 2)
    path, grid = tmp_path / "study", TINY.on_grid({"seed": range(5)})
    run(path, grid)
    before = content(path)
    chunk = path / "study.zarr" / "action" / "c" / "0" / "0" / "0"
    chunk.write_bytes(b"damage")
    with pytest.warns(StudyWarning, match="action is damaged"):
        assert run(path, grid) == 3
    assert content(path) == before


def test_a_study_grows_in_any_order_to_the_one_that_is_computed_at_once(tmp_path, monkeypatch):
    """The same values, also where only a part of a step is computed before the next."""
    full = {"seed": (3, 0, 5), "temperature": (1.0, 0.1), "width": (30, 10)}
    at_once, steps = tmp_path / "at_once", random.Random(int(os.environ.get("GROWTH", "0")))
    run(at_once, SMALL_STUDY.on_grid(full))
    minimised, path, grid = count_minimisations(monkeypatch), tmp_path / "grown", {}
    for name, values in full.items():  # the highest temperature first: minima begin there
        grid[name] = [values[0] if name == "temperature" else steps.choice(values)]
    run(path, SMALL_STUDY.on_grid(grid))
    while any(len(grid[name]) < len(full[name]) for name in full):
        name = steps.choice([name for name in full if len(grid[name]) < len(full[name])])
        grid[name].append(steps.choice([v for v in full[name] if v not in grid[name]]))
        if steps.random() < 0.5:  # a part of it alone
            run(path, SMALL_STUDY.on_grid(grid), part=(1, 2))
        else:
            run(path, SMALL_STUDY.on_grid(grid))
    run(path, SMALL_STUDY.on_grid(full))
    grown = open_study(path).load()
    assert len(minimised) >= 12
    expected = open_study(at_once).load()
    xr.testing.assert_equal(grown.reindex_like(expected), expected)
    assert run(path, SMALL_STUDY.on_grid(full)) == 0


def test_order_follows_the_grid_that_contains_the_other(tmp_path):
    """Bytes too are those of the study that is computed at once."""
    larger = TINY.on_grid({"seed": (3, 0, 5), "width": (5, 10)})
    assert run(tmp_path / "grown", TINY) == 1
    assert run(tmp_path / "grown", larger) == 5
    assert run(tmp_path / "at_once", larger) == 6
    assert content(tmp_path / "grown") == content(tmp_path / "at_once")
    with pytest.warns(StudyWarning, match="holds more values of seed and width than are asked for"):
        assert run(tmp_path / "grown", TINY.on_grid({"temperature": (1.0, 0.5)})) == 6
    grown = open_study(tmp_path / "grown")
    assert grown.seed.values.tolist() == [3, 0, 5]
    assert grown.temperature.values.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_higher_temperatures_leave_what_is_computed_as_it_is(tmp_path, monkeypatch, jobs):
    path, calls = tmp_path / "study", []
    assert run(path, TINY.on_grid({"temperature": (0.1, 0.5)})) == 2
    before, point_values = open_study(path).load(), computing.point_values

    def counted(data, solution, analyses):
        calls.append(solution.temperature)
        return point_values(data, solution, analyses)

    monkeypatch.setattr(computing, "point_values", counted)
    larger = TINY.on_grid({"temperature": (0.1, 0.3, 0.5, 2.0)})
    with workers(jobs) as executor:
        assert run(path, larger, executor=executor) == 2
    assert sorted(calls) == ([0.3, 2.0] if jobs == 1 else [])
    grown = open_study(path).load()
    xr.testing.assert_equal(grown.sel(temperature=[0.1, 0.5]), before)
    assert (grown.status == 1).all()
    assert (grown.reference_done == 1).all()
    alone = tmp_path / "alone"
    run(alone, larger)
    for name in ("action", "order_parameter", "predictor_mean"):
        xr.testing.assert_allclose(grown[name], open_study(alone)[name], rtol=1e-5, atol=1e-7)


def test_two_runs_in_one_folder_do_no_harm(tmp_path, whole):
    path, runs = tmp_path / "study", []

    def second(progress):
        if not runs and progress.total:
            runs.append(progress)
            run(path)

    run(path, report=second)
    assert content(path) == content(whole)
    assert names(path) == COMPLETE


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_followed_also_one_that_leads_nowhere_yet(tmp_path, there):
    link, target = tmp_path / "link", tmp_path / "scratch" / "study"
    target.parent.mkdir()
    link.symlink_to(target)
    if there:
        target.mkdir()
    for study in (TINY, WIDER):
        assert run(link, study) == 1
    assert link.is_symlink()
    assert open_study(link).width.size == 2
    assert (names(tmp_path / "scratch"), names(target)) == (["study"], COMPLETE)


def test_a_folder_that_is_moved_is_the_same(tmp_path, tiny, wider):
    shutil.copytree(tiny, tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "moved")
    assert run(tmp_path / "moved", WIDER) == 1
    assert content(tmp_path / "moved") == content(wider)


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (Study(SmallTask(), dtype="float32"), 'dtype: .* has "float64", this run "float32"'),
        (Study(SmallTask(examples=14)), r"\(options, examples: .* has 12, this run 14\)"),
    ],
)
def test_two_studies_do_not_mix(whole, study, message):
    before = {file: file.stat().st_mtime_ns for file in whole.rglob("*")}
    with pytest.raises(StudyError, match=f"another study.*{message}.*own settings to resume it"):
        run(whole, study)
    assert before == {file: file.stat().st_mtime_ns for file in whole.rglob("*")}


def test_what_is_opened_is_edited_in_memory_alone(whole):
    dataset = open_study(whole)
    before = dataset.action.values.copy()
    dataset["action"][0] = np.nan
    assert np.isnan(dataset.copy(deep=True).action.values[0]).all()
    assert np.array_equal(open_study(whole).action.values, before)


def test_an_error_leaves_no_new_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(SmallTask, "realise", lambda self, seed: 1 / 0)
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        run(tmp_path / "new" / "study")
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "new"])


def test_a_folder_without_permission_for_new_files(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match=r"file/study cannot be written \(Not a directory\)"):
        run(tmp_path / "file" / "study")
