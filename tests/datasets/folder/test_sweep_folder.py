"""Several values of an option: a folder for each, as if computed alone, and the joined dataset."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
from filelock import FileLock
from folders import (
    Killed,
    check_what_a_kill_left,
    computed_so_far,
    content,
    flip,
    kill,
    killed_before,
    names,
)
from small_task import count_minimisations

import pathkernel_core as pk
from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import AttentionProduct
from pathkernel_datasets.errors import StudyError, StudyWarning, TaskError
from pathkernel_datasets.folder.check import check
from pathkernel_datasets.folder.lock import lock_of
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.folder.sweep_folder import SweepFolder
from pathkernel_datasets.folder.zarr_files import write_tree
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run import computing, run_study
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.selection import Selection
from pathkernel_datasets.selection.temperature_choice import choose_temperatures
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.swept_option import by_value


@dataclass(frozen=True)
class Signs(Task):
    """Signs in noise, as a stranger's plugin may have them; options of every kind."""

    name: ClassVar[str] = "signs"
    summary: ClassVar[str] = "Signs in noise"
    widths: ClassVar[tuple[float, ...]] = (5,)
    temperatures: ClassVar[tuple[float, ...]] = (0.1, 1.0)

    noise: float = option(0.5, "standard deviation of the noise")
    examples: int = option(6, "training examples")
    heads: int = option(2, "heads", minimum=1)
    readout: str = option("mean", "token read out", choices=("mean", "last"))
    layer: int = option(1, "a name that stores use for something else")
    file: str = option(None, "not to be swept")

    def realise(self, seed):
        generator = np.random.default_rng(seed)
        products = generator.standard_normal((self.heads, 3, 3))

        def draw(count):
            labels = np.resize([1.0, -1.0], count)
            inputs = self.noise * generator.standard_normal((count, 4, 3))
            return Examples(inputs + labels[:, None, None], labels)

        tests = {"test": draw(self.examples - 2)}
        notes = {"noise": f"its deviation is {self.noise}"}
        layers = [AttentionProduct(products)]
        return Realisation(
            layers, self.readout, draw(self.examples), tests, {"first": ((1,),)}, notes=notes
        )

    def provenance(self):
        return {"noise from": f"dice {self.noise}"}


NOISES = (0.5, 2.0, 0.1)
COMPLETE = [".lock", "noise-0.1", "noise-0.5", "noise-2.0", "study.json", "study.zarr"]
TWO = {"noise": (0.5, 2.0)}


def study(**settings):
    return Study(Signs(), seeds=(3, 4), **settings)


def run(path, analyses=(), **settings):
    return compute_study(study(**settings), path, analyses=analyses)


def run_tiny(path, **settings):
    """A study of a single point for every value."""
    single = {"widths": (5,), "temperatures": (1.0,), "seeds": (3,), **settings}
    return compute_study(Study(Signs(), **single), path, analyses=())


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    path = tmp_path_factory.mktemp("noisy") / "signs"
    assert run(path, sweep={"noise": NOISES}) == 12
    assert names(path) == COMPLETE
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two values of a single point."""
    path = tmp_path_factory.mktemp("two") / "signs"
    assert run_tiny(path, sweep=TWO) == 2
    assert check(path).study == ()
    return path


@pytest.fixture(scope="module")
def first_of_two(tmp_path_factory):
    """The first of them."""
    path = tmp_path_factory.mktemp("first") / "signs"
    run_tiny(path, sweep={"noise": (0.5,)})
    return path


@pytest.fixture(scope="module")
def two_actions(two):
    return open_study(two).action.load()


def same_as_alone(parts, alone, path, analyses=()):
    """Check that parts of the joined dataset, and folders, are what is computed alone."""
    compute_study(alone, path, analyses=analyses)
    for part in (*parts, alone := open_study(path).load()):
        part.attrs.pop("study", None)
    for part in parts:
        xr.testing.assert_identical(part.load(), alone)


def test_a_value_is_as_if_computed_alone(noisy, tmp_path):
    with xr.open_zarr(noisy / "study.zarr", chunks=None) as dataset:
        assert dataset.accuracy.dims == ("noise", "seed", "temperature", "width", "test_set")
        assert dataset.noise.values.tolist() == list(NOISES)
        assert dataset.noise.long_name == "standard deviation of the noise"
    dataset = open_study(noisy)
    part, folder = by_value(dataset)[2.0], open_study(noisy / "noise-2.0")
    assert "deviation is 2.0" in part.notes
    same_as_alone([part, folder], Study(Signs(noise=2.0), seeds=(3, 4)), tmp_path / "alone")
    assert dataset.title == "Attention-path theory of signs"
    assert dataset.label.startswith("signs, noise 0.5, 2 and 0.1")
    checked = check(noisy)
    assert checked.study == ()
    assert (checked.points, run(noisy, sweep={"noise": NOISES})) == (12, 0)


def test_a_single_value_has_no_dimension(tmp_path):
    """Byte for byte the study of that value."""
    run_tiny(tmp_path / "listed", sweep={"noise": [2.0]})
    plain = Study(Signs(noise=2.0), (5,), (1.0,), (3,))
    compute_study(plain, tmp_path / "plain", analyses=())
    assert content(tmp_path / "listed") == content(tmp_path / "plain")


@pytest.mark.parametrize("several", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_study_grows_by_values_to_the_one_computed_at_once(tmp_path, monkeypatch, several):
    """Also one of a single value, whose study is taken over into the folder of that value."""
    minimised, first = count_minimisations(monkeypatch), {"examples": (8, 4)[: 1 + several]}
    values = {"examples": (*first["examples"], 10)}
    assert run_tiny(tmp_path / "grown", sweep=first) == 1 + several
    assert run_tiny(tmp_path / "grown", sweep=values) == 1
    assert len(minimised) == 2 + several
    run_tiny(tmp_path / "at_once", sweep=values)
    assert content(tmp_path / "grown") == content(tmp_path / "at_once")
    with pytest.warns(StudyWarning, match="more values of examples than are asked for"):
        assert run_tiny(tmp_path / "grown", sweep=first) == 0
    assert names(tmp_path / "grown") == names(tmp_path / "at_once")


@pytest.mark.slow
def test_a_study_grows_in_values_and_seeds_at_once(noisy, tmp_path):
    path = tmp_path / "signs"
    compute_study(Study(Signs(noise=2.0), seeds=(4,)), path, analyses=())
    assert run(path, sweep={"noise": (2.0, 0.5)}) == 6
    with pytest.warns(StudyWarning, match="more values of noise and seed than are asked for"):
        assert compute_study(Study(Signs(noise=0.1), seeds=(3,)), path) == 4  # as seeds do
    grown = open_study(path).load().sel(noise=list(NOISES), seed=[3, 4])
    for name, values in open_study(noisy).data_vars.items():
        np.testing.assert_array_equal(grown[name], values, err_msg=name)


def test_the_folder_of_a_value_is_extended_by_itself(two, tmp_path):
    """The joined dataset stays as it is, and takes what is there when it is extended as well."""
    path, grid = shutil.copytree(two, tmp_path / "signs"), {"seeds": (3, 4)}
    alone = Study(Signs(noise=2.0), (5,), (1.0,), (3, 4))
    assert compute_study(alone, path / "noise-2.0", analyses=()) == 1
    xr.testing.assert_identical(open_study(path).load(), open_study(two).load())
    assert check(path).study == ()
    assert run_tiny(path, sweep=TWO) == 0
    assert run_tiny(path, sweep=TWO, **grid) == 1
    run_tiny(tmp_path / "at_once", sweep=TWO, **grid)
    assert content(path) == content(tmp_path / "at_once")


@pytest.mark.parametrize("done", [1, 4])
def test_an_interrupted_run_resumes_to_the_same_folder(two, tmp_path, monkeypatch, done):
    path, write, calls = tmp_path / "signs", computing.write_arrays, []

    def failing(*given):
        if len(calls) == done:
            raise Killed
        calls.append(given)
        write(*given)

    with monkeypatch.context() as patch:
        patch.setattr(computing, "write_arrays", failing)
        patch.setattr(SweepFolder, "publish", failing)
        with pytest.raises(Killed):
            run_tiny(path, sweep=TWO)
    so_far = open_study(path)
    assert (so_far.status != 0).values.ravel().tolist() == [True, done == 4]
    assert run_tiny(path, sweep=TWO) == (0 if done == 4 else 1)
    assert content(path) == content(two)


@pytest.mark.parametrize("single", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [(3, 45), pytest.param(range(90), marks=pytest.mark.slow)])
def test_a_sweep_that_is_killed_before_any_step_is_resumed(
    two, first_of_two, tmp_path, steps, single
):
    path = tmp_path / "signs"
    if single:
        shutil.copytree(first_of_two, path)
    for step in steps:
        if kill(step, lambda: run_tiny(path, sweep=TWO)):
            break
        check_what_a_kill_left(path)
        so_far = computed_so_far(path)
        if single:  # what was computed before is there at any moment
            point = so_far.sel(noise=0.5) if "noise" in so_far.dims else so_far
            assert (point.status == 1).all()
    assert run_tiny(path, sweep=TWO) <= 2 - single
    assert content(path) == content(two)
    assert names(path) == names(two)


@pytest.mark.parametrize("single", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [2, pytest.param(99, marks=pytest.mark.slow)])
def test_a_sweep_that_is_killed_while_it_is_published_is_in_progress(
    two, first_of_two, tmp_path, monkeypatch, count, single
):
    """Before the last steps or all from the last piece to the end, of a new study or a grown one.

    At the end only the folder of pieces is left.
    """
    computed, publish = tmp_path / "computed", run_study._publish
    if single:
        shutil.copytree(first_of_two, computed)
    with monkeypatch.context() as patch:
        patch.setattr(run_study, "_publish", lambda *given: None)
        run_tiny(computed, sweep=TWO)
    whole = shutil.copytree(computed, tmp_path / "whole")
    with killed_before(sys.maxsize) as steps:
        publish(whole, sorted(whole.glob("noise-*")))
    assert content(whole) == content(two)
    # not inside of an old Zarr that is removed
    outer = [step for step, given in enumerate(steps) if Path(str(given[0])).is_absolute()]
    for step in outer[-count - 1 : -1]:
        path = shutil.copytree(computed, tmp_path / f"{step}")
        assert not kill(step, lambda path=path: publish(path, sorted(path.glob("noise-*"))))
        assert not check_what_a_kill_left(path)
        assert (open_study(path)["status"].sel(noise=[0.5, 2.0]) == 1).all()


def test_damage_of_one_value_is_mended(two, tmp_path):
    path = shutil.copytree(two, tmp_path / "signs")
    flip(path / "noise-2.0" / "study.zarr" / "action" / "c" / "0" / "0" / "0")
    assert check(path).study[0].startswith(f"{path}/noise-2.0/study.zarr/action is damaged")
    with pytest.warns(StudyWarning, match=r"noise-2\.0/study\.zarr/action is damaged"):
        assert run_tiny(path, sweep=TWO) == 1
    assert content(path) == content(two)


def _delete_value(path):
    shutil.rmtree(path / "noise-2.0")


def _empty_value(path):
    shutil.rmtree(path / "noise-2.0")
    (path / "noise-2.0").mkdir()


DAMAGE = {  # with the number of points that are computed again
    "a value's folder deleted": (_delete_value, 1),
    "a value's folder emptied": (_empty_value, 1),
    "a value's study deleted": (lambda path: shutil.rmtree(path / "noise-0.5" / "study.zarr"), 1),
    "a value's description deleted": (lambda path: (path / "noise-0.5/study.json").unlink(), 0),
    "the joined dataset deleted": (lambda path: shutil.rmtree(path / "study.zarr"), 0),
    "the joined dataset damaged": (lambda path: flip(path / "study.zarr/action/c/1/0/0/0"), 0),
    "its metadata damaged": (lambda path: flip(path / "study.zarr/zarr.json", 4000), 0),
    "the description deleted": (lambda path: (path / "study.json").unlink(), 0),
    "all descriptions deleted": (
        lambda path: [file.unlink() for file in path.glob("**/study.json")],
        0,
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.filterwarnings("ignore:.*is damaged")
def test_damage_is_named_and_mended(two, two_actions, tmp_path, damage):
    path, (change, again) = shutil.copytree(two, tmp_path / "signs"), DAMAGE[damage]
    change(path)
    assert check(path).study
    try:
        so_far = open_study(path)[["action", "status"]].load()
    except (StudyError, ValueError):
        pass
    else:
        computed = so_far.status != 0
        xr.testing.assert_equal(so_far.action.where(computed), two_actions.where(computed))
    assert run_tiny(path, sweep=TWO) == again
    assert content(path) == content(two)  # in which check names no damage


def test_folders_of_values_that_are_swapped(two, tmp_path):
    path = shutil.copytree(two, tmp_path / "signs")
    for old, new in (("0.5", "x"), ("2.0", "0.5"), ("x", "2.0")):
        (path / f"noise-{old}").rename(path / f"noise-{new}")
    assert check(path).study
    with pytest.raises(StudyError, match=r"noise-0\.5 holds another study.*2\.0"):
        run_tiny(path, sweep=TWO)


def test_a_stranger_is_not_taken_into_the_folder_of_several_values(two, tmp_path):
    path, grid = shutil.copytree(two, tmp_path / "signs"), ((5,), (1.0,), (3,))
    shutil.rmtree(path / "noise-2.0")
    for name, noise, message in (
        (
            "noise-2.0",
            0.7,
            r"noise-2\.0 holds another study .*noise: the folder has 2\.0, this run",
        ),
        ("noise-3.0", 3.0, r"inside the folder of several values of noise; choose another folder"),
    ):
        with pytest.raises(StudyError, match=message):
            compute_study(Study(Signs(noise=noise), *grid), path / name, analyses=())
        assert not (path / name).exists()
    assert compute_study(Study(Signs(noise=2.0), *grid), path / "noise-2.0", analyses=()) == 1
    assert run_tiny(path, sweep=TWO) == 0
    assert content(path) == content(two)


def test_a_wait_for_the_folder_of_a_value_is_told(two, tmp_path):
    path = shutil.copytree(two, tmp_path / "signs")
    other, told = FileLock(lock_of(path / "noise-2.0")), []

    def report(progress):
        told.append(progress.doing)
        other.release()

    other.acquire()
    study = Study(Signs(), (5,), (1.0,), (3,), sweep=TWO)
    assert compute_study(study, path, analyses=(), report=report) == 0
    assert told == [f"waiting for another process that reads or publishes {path / 'noise-2.0'}"]


def test_other_options_and_results_of_one_value_do_not_mix(noisy, first_of_two, tmp_path):
    with pytest.raises(ValueError, match=r"one option may have several values, not .*noise"):
        run(noisy, sweep={"examples": (6, 8)})
    with pytest.raises(StudyError, match=r"another study.*examples.*has 6, this run 8"):
        run(noisy, sweep={"noise": NOISES, "examples": [8]})
    path = shutil.copytree(first_of_two, tmp_path / "signs")
    write_tree(path / "samples.zarr", xr.Dataset({"number": ("place", np.ones(3))}))
    before = content(path)
    with pytest.raises(StudyError, match=r"results of a single value of noise \(samples\)"):
        run_tiny(path, sweep=TWO)
    assert content(path) == before


@pytest.mark.parametrize(("axis", "projection"), [("variance", 0.3), ("input_scale", 0.09)])
def test_settings_of_the_study_are_axes(axis, projection, noisy, tmp_path):
    """Inputs that are scaled have the kernel of a larger or smaller variance of the projection."""
    path = tmp_path / "axis"
    run(path, sweep={axis: (1.0,)})
    run(path, sweep={axis: (1.0, 0.3)})  # grows
    dataset = open_study(path)
    assert dataset[axis].values.tolist() == [1.0, 0.3]
    name = {"variance": "prior variance σ²", "input_scale": "input scale"}[axis]
    assert f"{name} 1 and 0.3" in dataset.label
    assert dataset[axis].long_name == name
    others = (projection,) * 2 if axis == "variance" else (1.0, 1.0)
    compute_study(study(variances=(projection, *others)), tmp_path / "other", analyses=())
    for value, alone in ((1.0, noisy / "noise-0.5"), (0.3, tmp_path / "other")):
        part, expected = by_value(dataset)[value], open_study(alone)
        for name in ("order_parameter", "predictor_mean", "predictor_mean_gp", "action"):
            np.testing.assert_allclose(part[name], expected[name], rtol=1e-5, atol=1e-7)
    (_, single) = StoredStudy(path, Plugins(tasks={Signs.name: Signs})).singles
    point = single.point(5, 0.1, 4)
    rebuilt = single.rebuild(point)
    problem = pk.Problem(rebuilt.data.xi, rebuilt.data.labels)
    solution = pk.minimise_action(problem, rebuilt.network, 0.1)
    stored = single.dataset["order_parameter"].sel(width=5, temperature=0.1, seed=4)
    np.testing.assert_allclose(solution.order_parameter, stored, rtol=1e-5)


def test_settings_of_the_study_are_checked():
    with pytest.raises(ValueError, match="give variance or variances"):
        study(variance=0.1, variances=(1.0, 1.0, 0.5))
    with pytest.raises(ValueError, match="input_scale must be positive"):
        study(sweep={"input_scale": (1.0, -1.0)})
    with pytest.raises(ValueError, match="variance must be positive"):
        study(variance=0.0)
    assert study(variance=0.1).on_grid({"seed": (1,)}).variance == 0.1


def test_fewer_examples_are_padded_and_taken_off_again(tmp_path):
    path = tmp_path / "several"
    analyses, grid = pathkernel_analyses(), {"temperatures": (1.0,), "seeds": (3,)}
    several = Study(Signs(), **grid, sweep={"examples": (4, 8)})
    compute_study(several, path, analyses=analyses)
    dataset = open_study(path)
    sizes = {"example": 6, "train_example": 8, "component": 8}
    assert {name: dataset.sizes[name] for name in sizes} == sizes
    assert dataset.test_label.sel(examples=4, seed=3).notnull().sum() == 2
    parts = [by_value(dataset)[4], open_study(path / "examples-4")]
    same_as_alone(parts, Study(Signs(examples=4), **grid), tmp_path / "alone", analyses)


def test_the_identity_holds_what_every_value_draws(noisy):
    identity = StoredStudy(noisy).identity
    assert identity["options"]["noise"] == list(NOISES)
    for value in NOISES:
        alone = identity_of(Study(Signs(noise=value), seeds=(3, 4)))
        assert identity["sweep"]["noise"][str(value)] == {
            name: alone[name] for name in ("provenance", "drawn")
        }

    class Changed(Signs):
        def provenance(self):
            return {"noise from": f"dice {self.noise}" if self.noise < 2 else "coins"}

    with pytest.raises(StudyError, match=r"another study.*sweep, noise, 2\.0, provenance.*coins"):
        compute_study(Study(Changed(), seeds=(3, 4), sweep={"noise": NOISES}), noisy)


@pytest.mark.parametrize(
    ("several", "error", "message"),
    [
        (
            {"heads": (2, 3)},
            TaskError,
            "heads 3 and heads 2 do not fit.* head, path, .*of its own",
        ),
        ({"layer": (1, 2)}, TaskError, "'layer'.*calls something else so"),
        ({"heads": (2, 0)}, ValueError, "heads must be at least 1"),
        ({"file": ("a", "b")}, ValueError, "'file' takes one value"),
        ({"nose": (1, 2)}, ValueError, "no option 'nose'; its options: noise, "),
        ({"noise": (0.5, 0.5)}, ValueError, "noise holds a value twice"),
        ({"noise": ("a", 0.5)}, TypeError, "noise must be one number, but is 'a'"),
        ({"heads": (1.5, 2)}, TypeError, "heads must be a whole number, but is 1.5"),
        ({"heads": ()}, ValueError, "heads must hold at least one value"),
        ({"heads": 2}, TypeError, "heads must be a sequence"),
        ({"noise": (1, 2), "heads": (1, 2)}, ValueError, "one option.*not noise and heads"),
    ],
)
def test_what_cannot_be_swept_is_refused(tmp_path, several, error, message):
    with pytest.raises(error, match=message):
        run(tmp_path / "signs", sweep=several)
    assert not (tmp_path / "signs").exists()


def test_words_to_choose_from_are_values_too(tmp_path):
    path = tmp_path / "signs"
    run_tiny(path, sweep={"readout": ("mean", "last")})
    dataset = open_study(path)
    assert dataset.readout.values.tolist() == ["mean", "last"]
    assert [part.attrs["readout"] for part in by_value(dataset).values()] == ["mean", "last"]
    assert json.loads(dataset.attrs["of_each_value"])["last"]["sizes"] == {}


def test_temperatures_are_chosen_for_each_value(noisy):
    dataset = open_study(noisy)
    parts = by_value(dataset)
    for value, part in parts.items():
        score = dataset.sel(noise=value).leave_one_out_squared_error.sum("seed")
        expected = score.argmin("temperature").values
        np.testing.assert_array_equal(
            choose_temperatures(part, "leave-one-out")["index"][:, 0], expected
        )
    assert finite_width_gain(parts[2.0]).sizes["width"] == 1


@pytest.mark.parametrize("view", [Selection, finite_width_gain])
def test_views_of_one_value_refuse_several(noisy, view):
    with pytest.raises(StudyError, match=r"3 values of the option 'noise'.*by_value"):
        view(open_study(noisy))


def test_every_value_is_a_study_of_its_own(noisy):
    study = StoredStudy(noisy, Plugins(tasks={Signs.name: Signs}))
    with pytest.raises(StudyError, match=r"several values of the option 'noise'.*\.singles"):
        study.task()
    assert [single.task().noise for single in study.singles] == list(NOISES)
    point = study.singles[1].point(5, 0.1, 4)
    labels = Signs(noise=NOISES[1]).realise(4).train.labels
    np.testing.assert_array_equal(study.singles[1].rebuild(point).data.labels, labels)


def test_points_that_no_value_has_are_not_published(two, tmp_path, monkeypatch):
    """A process is killed between the new grid of all values and those of the single ones."""
    path = shutil.copytree(two, tmp_path / "signs")
    published = content(path)["study.zarr/zarr.json"]
    larger = Study(Signs(), (5,), (1.0,), (3, 7), sweep=TWO)

    def killed(one):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("pathkernel_datasets.run.comparing._Compared.describe", killed)
        with pytest.raises(Killed):
            compute_study(larger, path, analyses=())
    run_study._publish(path, [])
    assert content(path)["study.zarr/zarr.json"] == published
    compute_study(larger, path, analyses=())
    grown = open_study(path)
    assert grown["seed"].values.tolist() == [3, 7]
    assert (grown["status"] != 0).all()
