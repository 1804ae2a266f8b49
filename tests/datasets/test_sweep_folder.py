"""Several values of an option in one store: each is as if it had been computed alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
from pathkernel_datasets.pieces import PieceFiles
from pathkernel_datasets.publishing import publish_groups
from pathkernel_datasets.store import check, open_study

import pathkernel_core as pk
from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.attention import AttentionProduct
from pathkernel_core.hooks import Plugins
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets import computing
from pathkernel_datasets.errors import StoreError, StoreWarning, TaskError
from pathkernel_datasets.gains import gains
from pathkernel_datasets.identity import identity_of
from pathkernel_datasets.run_study import compute_study
from pathkernel_datasets.selection import Selection
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_datasets.study import Study
from pathkernel_datasets.swept_option import by_value
from pathkernel_datasets.temperature_choice import choose


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


def study(**settings):
    return Study(Signs(), seeds=(3, 4), **settings)


def run(path, analyses=(), **settings):
    return compute_study(study(**settings), path, analyses=analyses)


def files(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    path = tmp_path_factory.mktemp("noisy") / "signs.zarr"
    assert run(path, sweep={"noise": NOISES}) == 12
    return path


def same_as_alone(part, task, path, analyses=()):
    """Check that a part of a store is the store that is computed alone, but for its study."""
    compute_study(Study(task, seeds=(3, 4)), path, analyses=analyses)
    alone = open_study(path)
    for dataset in (part, alone):
        dataset.attrs.pop("study", None)
    xr.testing.assert_identical(part.load(), alone.load())


def test_a_value_is_as_if_computed_alone(noisy, tmp_path):
    with xr.open_zarr(noisy, chunks=None) as dataset:
        assert dataset.accuracy.dims == ("noise", "seed", "temperature", "width", "test_set")
        assert dataset.noise.values.tolist() == list(NOISES)
        assert dataset.noise.long_name == "standard deviation of the noise"
    part = by_value(open_study(noisy))[2.0]
    assert "deviation is 2.0" in part.notes
    same_as_alone(part, Signs(noise=2.0), tmp_path / "alone.zarr")
    assert open_study(noisy).title.startswith(
        "Attention-path theory of signs, noise 0.5, 2.0 and 0.1"
    )


@pytest.mark.parametrize(("axis", "projection"), [("variance", 0.3), ("input_scale", 0.09)])
def test_settings_of_the_study_are_axes(axis, projection, tmp_path):
    """Inputs that are scaled have the kernel of a larger or smaller variance of the projection."""
    path = tmp_path / "axis.zarr"
    run(path, sweep={axis: (1.0,)})
    run(path, sweep={axis: (1.0, 0.3)})  # grows
    dataset = open_study(path)
    assert dataset[axis].values.tolist() == [1.0, 0.3]
    assert f"{axis.replace('_', ' ')} 1.0 and 0.3" in dataset.title
    compute_study(study(), tmp_path / "plain.zarr", analyses=())
    others = (projection,) * 2 if axis == "variance" else (1.0, 1.0)
    compute_study(study(variances=(projection, *others)), tmp_path / "other.zarr", analyses=())
    for value, alone in ((1.0, "plain.zarr"), (0.3, "other.zarr")):
        part, expected = by_value(dataset)[value], open_study(tmp_path / alone)
        for name in ("order_parameter", "predictor_mean", "predictor_mean_gp", "action"):
            np.testing.assert_allclose(part[name], expected[name], rtol=1e-5, atol=1e-7)
    (_, single) = StoredStudy(path, Plugins(tasks={Signs.name: Signs})).singles
    point = single.point(5, 0.1, 4)
    rebuilt = single.rebuild(point)
    problem = pk.PathKernels(rebuilt.data.xi, rebuilt.data.labels)
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
    path = tmp_path / "several.zarr"
    analyses = pathkernel_analyses()
    run(path, analyses, sweep={"examples": (4, 8)})
    dataset = open_study(path)
    sizes = {"example": 6, "train_example": 8, "component": 8}
    assert {name: dataset.sizes[name] for name in sizes} == sizes
    assert dataset.test_label.sel(examples=4, seed=3).notnull().sum() == 2
    same_as_alone(by_value(dataset)[4], Signs(examples=4), tmp_path / "alone.zarr", analyses)


def test_a_single_value_has_no_dimension(tmp_path):
    """Byte for byte today's store."""
    for name, task, several in (
        ("listed", Signs(), {"noise": [2.0]}),
        ("plain", Signs(noise=2.0), None),
    ):
        single = Study(task, (5,), (1.0,), sweep=several)
        compute_study(single, tmp_path / name, analyses=())
    assert files(tmp_path / "listed") == files(tmp_path / "plain")


@pytest.mark.parametrize(("first", "damaged"), [((8, 4), 0), ((4,), 1)])
@pytest.mark.filterwarnings("ignore:.*was damaged")
def test_a_store_grows_by_values_to_the_one_computed_at_once(tmp_path, monkeypatch, first, damaged):
    minimised = []

    def counting(problem, *given):
        minimised.append(problem)
        return minimise(problem, *given)

    minimise = computing.minimise_from
    monkeypatch.setattr(computing, "minimise_from", counting)
    values = (*first, 10)
    for name, steps in {"grown": (first, values), "at_once": (values,)}.items():
        for asked in steps:
            run(tmp_path / name, temperatures=(0.1,), sweep={"examples": asked})
            if damaged and asked == first:
                chunk = tmp_path / name / "predictor_mean/c/1/0/0/0/0"
                assert chunk.exists()
                chunk.write_bytes(b"damage")
        assert len(minimised) == len(values) * 2 + damaged * (name == "grown")
        minimised.clear()
    assert files(tmp_path / "grown") == files(tmp_path / "at_once")
    assert run(tmp_path / "grown", temperatures=(0.1,), sweep={"examples": first}) == 0


def test_a_store_grows_in_values_and_seeds_at_once(noisy, tmp_path):
    path = tmp_path / "signs.zarr"
    compute_study(Study(Signs(noise=2.0), seeds=(4,)), path, analyses=())
    assert run(path, sweep={"noise": (2.0, 0.5)}) == 6
    with pytest.warns(StoreWarning, match="more values of noise and seed than are asked for"):
        assert compute_study(Study(Signs(noise=0.1), seeds=(3,)), path) == 4  # as seeds do
    grown = open_study(path).load().sel(noise=list(NOISES), seed=[3, 4])
    for name, values in open_study(noisy).data_vars.items():
        np.testing.assert_array_equal(grown[name], values, err_msg=name)


class Interrupt(Exception):
    """Stands for whatever stops a run."""


def test_an_interrupted_run_resumes_to_the_same_store(noisy, tmp_path, monkeypatch):
    path = tmp_path / "signs.zarr"
    write, calls = PieceFiles.write, []

    def failing(self, *given):
        calls.append(given)
        if len(calls) == 7:  # of the second value
            raise Interrupt
        write(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(PieceFiles, "write", failing)
        with pytest.raises(Interrupt):
            run(path, sweep={"noise": NOISES})
    done = int((open_study(path).status != 0).sum())
    assert done == 4
    assert run(path, sweep={"noise": NOISES}) == 12 - done
    assert files(path) == files(noisy)


def test_damage_of_one_value_is_mended(noisy, tmp_path):
    path = shutil.copytree(noisy, tmp_path / "signs.zarr")
    file = path / "action" / "c" / "1" / "0" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    assert check(path).study[0].startswith("action/c/1/0/0/0 is not as")
    with pytest.warns(StoreWarning, match="action/c/1/0/0/0"):
        assert run(path, sweep={"noise": NOISES}) == 2
    assert files(path) == files(noisy)


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

    with pytest.raises(StoreError, match=r"another study.*sweep, noise, 2\.0, provenance.*coins"):
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
        run(tmp_path / "signs.zarr", sweep=several)
    assert not (tmp_path / "signs.zarr").exists()


def test_other_options_and_results_of_one_value_do_not_mix(noisy, tmp_path):
    with pytest.raises(ValueError, match=r"one option may have several values, not .*noise"):
        run(noisy, sweep={"examples": (6, 8)})
    with pytest.raises(StoreError, match=r"another study.*examples.*has 6, this run 8"):
        run(noisy, sweep={"noise": NOISES, "examples": [8]})
    path = tmp_path / "signs.zarr"
    run(path, temperatures=(0.1,))
    publish_groups(path, [("samples", xr.Dataset({"number": ("place", np.ones(3))}))])
    before = files(path)
    with pytest.raises(StoreError, match=r"results of a single value of noise \(samples\)"):
        run(path, temperatures=(0.1,), sweep={"noise": NOISES})
    assert files(path) == before


def test_words_to_choose_from_are_values_too(tmp_path):
    path = tmp_path / "signs.zarr"
    run(path, temperatures=(0.1,), sweep={"readout": ("mean", "last")})
    dataset = open_study(path)
    assert dataset.readout.values.tolist() == ["mean", "last"]
    assert [part.attrs["readout"] for part in by_value(dataset).values()] == ["mean", "last"]
    assert json.loads(dataset.attrs["of_each_value"])["last"]["sizes"] == {}


def test_temperatures_are_chosen_for_each_value(noisy):
    parts = by_value(open_study(noisy))
    for value, part in parts.items():
        score = open_study(noisy).sel(noise=value).leave_one_out_squared_error.sum("seed")
        expected = score.argmin("temperature").values
        np.testing.assert_array_equal(choose(part, "leave-one-out")["index"][:, 0], expected)
    assert gains(parts[2.0]).sizes["width"] == 1


@pytest.mark.parametrize("view", [Selection, gains])
def test_views_of_one_value_refuse_several(noisy, view):
    with pytest.raises(StoreError, match=r"3 values of the option 'noise'.*by_value"):
        view(open_study(noisy))


def test_every_value_is_a_study_of_its_own(noisy):
    study = StoredStudy(noisy, Plugins(tasks={Signs.name: Signs}))
    with pytest.raises(StoreError, match=r"several values of the option 'noise'.*\.singles"):
        study.task()
    assert [single.task().noise for single in study.singles] == list(NOISES)
    point = study.singles[1].point(5, 0.1, 4)
    labels = Signs(noise=NOISES[1]).realise(4).train.labels
    np.testing.assert_array_equal(study.singles[1].rebuild(point).data.labels, labels)
