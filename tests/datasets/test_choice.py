"""Choices of a temperature: against a search in words, in the store, and after any interruption."""

from __future__ import annotations

import dataclasses
import math
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_sweep import Interrupt, Small

import pathkernel_core as pk
from pathkernel_core.task import Examples
from pathkernel_datasets import store as store_module
from pathkernel_datasets import sweep
from pathkernel_datasets.choice import CHOICES, at_chosen, choose_temperatures
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.store import open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study

TEMPERATURES = (1.0, 0.02, 0.3)  # in no order


def searched(scores, evidence):
    """First index of the best (score, evidence) among those known."""
    known = [
        (score, value, -index)
        for index, (score, value) in enumerate(zip(scores, evidence))
        if not math.isnan(score) and not math.isnan(value)
    ]
    return -max(known)[2] if known else -1


few = st.sampled_from([math.nan, 0.2, 0.5, 0.7])


@given(
    arrays(float, (4, 2), elements=st.sampled_from([math.nan, -3.0, -1.0, 0.5])),
    arrays(float, (4, 2, 3), elements=few),
    arrays(float, (4, 2), elements=few),
)
def test_choices_are_those_of_a_search(evidence, accuracy, validation):
    chosen = choose_temperatures(evidence, accuracy, validation)
    assert list(chosen) == list(CHOICES)
    for width, test in np.ndindex(2, 3):
        at = (slice(None), width)
        scores = {
            "evidence": evidence[at],
            "validation": validation[at],
            "test": accuracy[(*at, test)],
        }
        for name, values in scores.items():
            assert chosen[name][width, test] == searched(values, evidence[at]), name
    best = at_chosen(accuracy, chosen["test"])
    for index in chosen.values():
        other = at_chosen(accuracy, index)
        assert not (other > best).any(), "nothing beats the choice on the test set itself"


def test_temperatures_at_the_chosen_indices():
    index = np.array([[2, -1], [0, 1]])
    found = at_chosen((0.1, 0.2, 0.3), index)
    np.testing.assert_array_equal(found, [[0.3, np.nan], [0.1, 0.2]])


def test_without_validation_examples_there_are_two_choices():
    chosen = choose_temperatures(np.array([-1.0, -2.0]), np.array([[0.5], [0.6]]))
    assert {name: index.tolist() for name, index in chosen.items()} == {
        "evidence": [0],
        "test": [1],
    }


@dataclass(frozen=True)
class Validated(Small):
    """The small task with as many validation examples as its longest test set."""

    def realise(self, seed):
        realisation = Small.realise(self, seed)
        generator = np.random.default_rng([seed, 1])
        inputs = generator.standard_normal((25, 4, 3))
        teacher = np.linalg.lstsq(
            realisation.train.inputs.sum(axis=1), realisation.train.labels, rcond=None
        )[0]
        validation = Examples(inputs, np.sign(inputs.sum(axis=1) @ teacher))
        return dataclasses.replace(realisation, validation=validation)


def run(path, task=None, **settings):
    settings = {"temperatures": TEMPERATURES, "seeds": (3, 4), **settings}
    return run_study(Study(task or Validated(), **settings), path)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "study.zarr"
    assert run(path) == 12
    return path


def test_validation_accuracy_is_that_of_the_core(complete):
    dataset = open_store(complete).load()
    for seed in (3, 4):
        realisation = Validated().realise(seed)
        xi, new = (
            pk.attentioned_inputs(examples.inputs, realisation.layers, "mean")
            for examples in (realisation.train, realisation.validation)
        )
        problem = pk.PathKernels(xi, realisation.train.labels)
        labels = realisation.validation.labels
        for temperature in TEMPERATURES:
            at = dataset.sel(seed=seed, temperature=temperature)
            for width in (5, 50):
                network = pk.Network((2, 3), width, 1.3)
                solution = pk.minimise_action(problem, network, temperature)
                expected = pk.accuracy(solution.predict(new).mean, labels)
                assert at.accuracy_validation.sel(width=width) == expected
            limit = pk.gp_limit(problem, network, temperature)
            assert at.accuracy_validation_gp == pk.accuracy(limit.predict(new).mean, labels)


@pytest.mark.parametrize("suffix", ["", "_gp"])
def test_stored_choices_are_the_best_of_the_stored_grid(complete, suffix):
    dataset = open_store(complete).load()
    assert list(dataset.choice.values) == ["evidence", "validation", "test"]
    assert (dataset.choice_done == 1).all()
    accuracy = dataset[f"accuracy{suffix}"]
    scores = {
        "evidence": dataset[f"log_evidence{suffix}"].broadcast_like(accuracy),
        "validation": dataset[f"accuracy_validation{suffix}"].broadcast_like(accuracy),
        "test": accuracy,
    }
    for name, score in scores.items():
        tied = score == score.max("temperature")
        best = scores["evidence"].where(tied).idxmax("temperature")
        chosen = dataset[f"chosen_temperature{suffix}"].sel(choice=name, drop=True)
        xr.testing.assert_equal(chosen.transpose(*best.dims), best.rename(chosen.name))
        taken = dataset[f"chosen_accuracy{suffix}"].sel(choice=name, drop=True)
        expected = accuracy.sel(temperature=best, drop=True)
        np.testing.assert_array_equal(taken.transpose(*best.dims), expected.transpose(*best.dims))


def test_names_say_that_the_test_choice_is_biased(complete):
    dataset = open_store(complete)
    for name in ("chosen_accuracy", "chosen_accuracy_gp", "choice"):
        assert "optimistically biased" in dataset[name].attrs["long_name"]


def test_one_temperature_leaves_nothing_to_choose(tmp_path):
    run(tmp_path / "one.zarr", temperatures=(0.1,), widths=(5,), seeds=(0,))
    dataset = open_store(tmp_path / "one.zarr")
    assert "choice" not in dataset.dims
    assert not [name for name in dataset if name.startswith("cho")]
    assert dataset.accuracy_validation.notnull().all()


def test_no_validation_examples_no_validation_choice(tmp_path):
    run(tmp_path / "bare.zarr", Small(), widths=(5,), seeds=(0,))
    dataset = open_store(tmp_path / "bare.zarr")
    assert list(dataset.choice.values) == ["evidence", "test"]
    assert "accuracy_validation" not in dataset


@pytest.mark.parametrize("after", [2, 5, 6, 8, 10, 11, 16, 22])  # of 22 writes
def test_a_run_stopped_anywhere_goes_on_to_the_same_store(tmp_path, complete, monkeypatch, after):
    """Bit for bit, though minimisations start from neighbours that were stored before the stop."""
    path = tmp_path / "study.zarr"
    write, calls = store_module.Store.write, []

    def failing(self, index, values, marker, code):
        calls.append(marker)
        if len(calls) == after:  # the values are written, the marker is not
            for name, value in values.items():
                array = self._arrays[name]
                array[(*index, *(slice(length) for length in np.shape(value)))] = 7
            raise Interrupt
        write(self, index, values, marker, code)

    monkeypatch.setattr(store_module.Store, "write", failing)
    with pytest.raises(Interrupt):
        run(path)
    monkeypatch.setattr(store_module.Store, "write", write)
    done = int((open_store(path).status != 0).sum())
    assert run(path) == 12 - done
    xr.testing.assert_identical(open_store(path).load(), open_store(complete).load())
    assert run(path) == 0


def test_temperatures_are_swept_downwards_from_neighbour_to_neighbour(tmp_path, monkeypatch):
    starts = []
    minimise = sweep.minimise_action

    def spy(problem, network, temperature, **settings):
        start = settings.get("start")
        before = start and (start.network.width, start.temperature)
        starts.append((network.width, temperature, before))
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(sweep, "minimise_action", spy)
    run(tmp_path / "study.zarr", seeds=(3,))
    assert starts == [
        (width, temperature, before and (width, before))
        for width in (5, 50)
        for temperature, before in ((1.0, None), (0.3, 1.0), (0.02, 0.3))
    ]


@pytest.mark.parametrize("failure", ["not positive definite", "stalled"])
def test_a_failed_point_does_not_spoil_its_successor(tmp_path, complete, monkeypatch, failure):
    """The next temperature starts from the limit, as it would alone."""
    minimise = sweep.minimise_action

    def failing(problem, network, temperature, **settings):
        if temperature == 0.3:
            if failure == "stalled":
                return minimise(problem, network, temperature, **settings, max_evaluations=2)
            raise pk.NotPositiveDefiniteError("no")
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(sweep, "minimise_action", failing)
    path = tmp_path / "study.zarr"
    run(path)
    dataset = open_store(path).load()
    assert (dataset.status.sel(temperature=0.3) != STATUS_CODES["converged"]).all()
    after = dataset.status.sel(temperature=0.02)
    assert (after == STATUS_CODES["converged"]).all()
    monkeypatch.setattr(sweep, "minimise_action", minimise)
    alone = tmp_path / "alone.zarr"
    run(alone, temperatures=(0.02,))
    for name in ("order_parameter", "evaluations", "predictor_mean"):
        np.testing.assert_array_equal(
            dataset[name].sel(temperature=0.02), open_store(alone)[name].sel(temperature=0.02)
        )
    if failure == "not positive definite":
        for name in ("chosen_temperature", "chosen_accuracy"):
            assert dataset[name].notnull().all()
        assert not (dataset.chosen_temperature == 0.3).any()


def test_a_warm_start_that_fails_gives_way_to_the_limit(tmp_path, complete, monkeypatch):
    minimise = sweep.minimise_action

    def failing(problem, network, temperature, start=None, **settings):
        if start is not None:
            raise pk.NotPositiveDefiniteError("no")
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(sweep, "minimise_action", failing)
    path = tmp_path / "study.zarr"
    run(path)
    mine, theirs = open_store(path).load(), open_store(complete).load()
    assert (mine.status == STATUS_CODES["converged"]).all()
    np.testing.assert_allclose(mine.order_parameter, theirs.order_parameter, atol=1e-5)


def test_stores_of_before_the_choice_can_be_gone_on_with(tmp_path):
    """A store that lacks the variables of the choice is completed without them."""
    path = tmp_path / "study.zarr"
    run(path, Small(), widths=(5,), seeds=(0,))
    for name in ("chosen_temperature", "chosen_accuracy", "choice_done"):
        for each in (name, f"{name}_gp"):
            shutil.rmtree(path / each, ignore_errors=True)
    import zarr

    group = zarr.open_group(path, use_consolidated=False)
    left = [name for name in group.attrs["variables"] if not name.startswith("cho")]
    group.attrs["variables"] = left
    group["status"][0, 1, 0] = 0
    assert run(path, Small(), widths=(5,), seeds=(0,)) == 1
    assert run(path, Small(), widths=(5,), seeds=(0,)) == 0
