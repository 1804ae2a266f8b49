"""Choices of a temperature: against a search in words, in the store, and after any interruption."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from small_task import Small

import pathkernel_core as pk
from pathkernel_core.action import continuation
from pathkernel_core.contracts.task import Examples
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.selection.selection import Selection, Selections
from pathkernel_datasets.selection.temperature_choice import best, choose_temperatures
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.quantities import STATUS_CODES

TEMPERATURES = (1.0, 0.02, 0.3)  # in no order

few = st.sampled_from([math.nan, 0.2, 0.5, 0.7])


@given(
    arrays(float, (3, 4), elements=few),
    arrays(float, (3, 4), elements=st.sampled_from([-3.0, -1.0, 0.5])),
    arrays(bool, (3, 4)),
)
def test_the_best_is_that_of_a_search(score, ties, tried):
    """In words: of the seeds with most temperatures those that all of them have, …"""
    counts = [sum(row) for row in tried]
    seeds = [seed for seed in range(3) if counts[seed] == max(counts)]
    common = [t for t in range(4) if all(tried[seed, t] for seed in seeds)]
    if not common:
        seeds = seeds[:1]
        common = [t for t in range(4) if tried[seeds[0], t]]
    known = {t: [s for s in seeds if not math.isnan(score[s, t])] for t in common}
    most = max(map(len, known.values()), default=0)
    left = [t for t in common if most and len(known[t]) == most]
    for values in (score, ties):
        sums = {t: sum(values[s, t] for s in seeds if not math.isnan(values[s, t])) for t in left}
        left = [t for t in left if sums[t] >= max(sums.values()) - 1e-12]
    assert best(score, ties, tried) == (left[0] if left else -1)


def test_a_temperature_that_failed_for_a_seed_is_not_chosen():
    """However well the other seeds do there: a sum over fewer seeds is no larger sum."""
    score = np.array([[0.9, 0.3, 0.2], [math.nan, 0.3, 0.3]])
    assert best(score, score, np.ones((2, 3), dtype=bool)) == 1
    failed = np.where(np.arange(3) < 2, math.nan, -score)
    assert best(failed, failed, np.ones((2, 3), dtype=bool)) == 2


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


def run(path, task=None, analyses=None, **settings):
    settings = {"temperatures": TEMPERATURES, "seeds": (3, 4), **settings}
    return compute_study(Study(task or Validated(), **settings), path, analyses=analyses)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "study"
    assert run(path) == 12
    return open_study(path).load()


def test_scores_are_those_of_the_core(complete):
    """Of the minimum, of the limit and of the limit of a sub-network."""
    realisation = Validated().realise(4)
    train, labels = realisation.train, realisation.validation.labels
    xi, new = (
        pk.attentioned_inputs(examples.inputs, realisation.layers, "mean")
        for examples in (train, realisation.validation)
    )
    problem = pk.Problem(xi, train.labels)
    ((name, heads),) = realisation.sub_networks.items()
    for temperature, width in itertools.product(TEMPERATURES, (5, 50)):
        network = pk.Network((2, 3), width, 1.3)
        paths = network.paths_through(heads)
        limits = [problem.keep_paths(paths), network.keep_heads(heads)]
        point = complete.sel(seed=4, temperature=temperature, width=width, sub_network=name)
        for suffix, solution, chosen in (
            ("", pk.minimise_action(problem, network, temperature), slice(None)),
            ("_gp", pk.gp_limit(problem, network, temperature), slice(None)),
            ("_sub_network", pk.gp_limit(*limits, temperature), paths),
        ):
            mean = solution.predict(new[:, chosen]).mean
            left_out = pk.leave_one_out(solution, xi[:, chosen], train.labels)
            for score, expected in {
                "accuracy_validation": pk.accuracy(mean, labels),
                "leave_one_out_log_density": left_out.log_density,
                "leave_one_out_squared_error": left_out.squared_error,
                "log_evidence": solution.log_evidence,
            }.items():
                stored = point[score + suffix]
                np.testing.assert_allclose(stored, expected, rtol=1e-6, err_msg=score + suffix)


@pytest.mark.parametrize("suffix", ["", "_gp", "_sub_network"])
def test_choices_are_the_best_of_the_stored_grid_over_all_seeds(complete, suffix):
    accuracy = complete[f"accuracy{suffix}"]
    scores = {
        "leave-one-out": -complete[f"leave_one_out_squared_error{suffix}"].broadcast_like(accuracy),
        "validation": complete[f"accuracy_validation{suffix}"].broadcast_like(accuracy),
        "test": accuracy,
        "paper": accuracy.isel(test_set=0, drop=True).broadcast_like(accuracy),
    }
    ties = complete[f"leave_one_out_log_density{suffix}"].broadcast_like(accuracy).sum("seed")
    for name, score in scores.items():
        total = score.sum("seed").round(12)
        wanted = ties.where(total == total.max("temperature")).idxmax("temperature")
        index = choose_temperatures(complete, name)[f"index{suffix}"].transpose(*wanted.dims)
        assert (index >= 0).all()
        np.testing.assert_array_equal(complete.temperature.values[index], wanted, err_msg=name)


def test_the_evidence_is_chosen_by_only_where_it_is_defined(complete):
    """The order parameter has six paths: at N = 5 it has no log evidence."""
    assert complete.log_evidence.sel(width=5).isnull().all()
    assert complete.log_evidence.sel(width=50).notnull().all()
    index = choose_temperatures(complete, "evidence")["index"]
    assert (index.sel(width=5) == -1).all()
    best = complete.log_evidence.sel(width=50).sum("seed").argmax("temperature")
    assert (index.sel(width=50) == best).all()
    with pytest.raises(ValueError, match=r'log evidence is not defined at N = 5.*"validation"'):
        Selection(complete, "evidence")
    assert Selection(complete.sel(width=[50]), "evidence").chosen == "evidence"


def test_defaults(complete, tmp_path):
    """Validation examples if there are any, else the training examples, each left out."""
    assert Selection(complete).chosen == "validation"
    run(tmp_path / "bare", Small(), analyses=(), widths=(5,), seeds=(0,))
    bare = open_study(tmp_path / "bare")
    assert "accuracy_validation" not in bare
    assert Selection(bare).chosen == "leave-one-out"
    assert Selection(bare.isel(temperature=[0])).chosen is None, "nothing to choose"
    with pytest.raises(ValueError, match="no validation scores"):
        choose_temperatures(bare, "validation")


@pytest.mark.parametrize("temperature", [None, "leave-one-out", 0.3])
def test_selections_make_each_once(complete, temperature):
    """The same object again, with the temperatures and values of a selection made alone."""
    selections, alone = Selections.of(complete), Selection(complete, temperature)
    made = selections.at(None, temperature)
    assert made is selections.first(temperature) is Selections.of(selections).at(None, temperature)
    np.testing.assert_array_equal(made.temperatures, alone.temperatures)
    assert made.temperature_gp == alone.temperature_gp
    assert made.point("action").identical(alone.point("action"))


def test_temperatures_are_swept_downwards_from_neighbour_to_neighbour(tmp_path, monkeypatch):
    starts = []
    solver = continuation.solver

    def spy(descend, start, number):
        before = start and (start.network.width, start.temperature)
        starts.append((descend.action.network.width, descend.action.temperature, before))
        return (yield from solver(descend, start, number))

    monkeypatch.setattr(continuation, "solver", spy)
    run(tmp_path / "study", analyses=(), seeds=(3,))
    assert starts == [
        (width, temperature, before and (width, before))
        for width in (5, 50)
        for temperature, before in ((1.0, None), (0.3, 1.0), (0.02, 0.3))
    ]


@pytest.mark.parametrize("failure", ["not positive definite", "stalled"])
def test_a_failed_point_does_not_spoil_its_successor(tmp_path, complete, monkeypatch, failure):
    """The next temperature starts from the limit, as it would alone."""
    solver = continuation.solver

    def failing(descend, start, starts):
        if descend.action.temperature == 0.3:
            if failure != "stalled":
                raise pk.NotPositiveDefiniteError("no")
            descend.max_evaluations = 2
        return (yield from solver(descend, start, starts))

    monkeypatch.setattr(continuation, "solver", failing)
    run(tmp_path / "study", analyses=())
    dataset = open_study(tmp_path / "study").load()
    assert (dataset.status.sel(temperature=0.3) != STATUS_CODES["converged"]).all()
    assert (dataset.status.sel(temperature=0.02) == STATUS_CODES["converged"]).all()
    monkeypatch.setattr(continuation, "solver", solver)
    alone = tmp_path / "alone"
    run(alone, analyses=(), temperatures=(0.02,))
    for name in ("order_parameter", "evaluations", "predictor_mean"):
        np.testing.assert_array_equal(
            dataset[name].sel(temperature=0.02), open_study(alone)[name].sel(temperature=0.02)
        )
    if failure == "not positive definite":
        assert not (Selection(dataset).temperatures == 0.3).any()


def test_a_warm_start_that_fails_gives_way_to_the_limit(tmp_path, complete, monkeypatch):
    solver = continuation.solver

    def failing(descend, start, starts):
        if start is not None:
            raise pk.NotPositiveDefiniteError("no")
        return (yield from solver(descend, start, starts))

    monkeypatch.setattr(continuation, "solver", failing)
    run(tmp_path / "study", analyses=())
    dataset = open_study(tmp_path / "study").load()
    assert (dataset.status == STATUS_CODES["converged"]).all()
    np.testing.assert_allclose(dataset.order_parameter, complete.order_parameter, atol=1e-5)
