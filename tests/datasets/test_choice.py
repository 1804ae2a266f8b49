"""Choices of a temperature: against a search in words, in the store, and after any interruption."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_sweep import Small

import pathkernel_core as pk
from pathkernel_core.task import Examples
from pathkernel_datasets import pieces
from pathkernel_datasets.choice import best, choose
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import Selection
from pathkernel_datasets.store import open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study

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
    path = tmp_path_factory.mktemp("choice") / "study.zarr"
    assert run(path) == 12
    return open_store(path).load()


def test_validation_accuracy_is_that_of_the_core(complete):
    for seed in (3, 4):
        realisation = Validated().realise(seed)
        xi, new = (
            pk.attentioned_inputs(examples.inputs, realisation.layers, "mean")
            for examples in (realisation.train, realisation.validation)
        )
        problem = pk.PathKernels(xi, realisation.train.labels)
        labels = realisation.validation.labels
        for temperature in TEMPERATURES:
            at = complete.sel(seed=seed, temperature=temperature)
            for width in (5, 50):
                network = pk.Network((2, 3), width, 1.3)
                solution = pk.minimise_action(problem, network, temperature)
                expected = pk.accuracy(solution.predict(new).mean, labels)
                assert at.accuracy_validation.sel(width=width) == expected
            limit = pk.gp_limit(problem, network, temperature)
            assert at.accuracy_validation_gp == pk.accuracy(limit.predict(new).mean, labels)


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
        found = choose(complete, name)[f"index{suffix}"]
        assert (found >= 0).all()
        np.testing.assert_array_equal(
            complete.temperature.values[found.transpose(*wanted.dims)], wanted, err_msg=name
        )


def test_the_evidence_is_chosen_by_only_where_it_is_defined(complete):
    """The order parameter has six paths: at N = 5 it has no log evidence."""
    assert complete.log_evidence.sel(width=5).isnull().all()
    assert complete.log_evidence.sel(width=50).notnull().all()
    found = choose(complete, "evidence")
    assert (found["index"].sel(width=5) == -1).all()
    best = complete.log_evidence.sel(width=50).sum("seed").argmax("temperature")
    assert (found["index"].sel(width=50) == best).all()
    with pytest.raises(ValueError, match=r'log evidence is not defined at N = 5.*"validation"'):
        Selection(complete, "evidence")
    assert Selection(complete.sel(width=[50]), "evidence").chosen == "evidence"


def test_leave_one_out_is_that_of_the_core(complete):
    dataset = complete.sel(seed=4, temperature=0.3)
    realisation = Validated().realise(4)
    train = realisation.train
    xi = pk.attentioned_inputs(train.inputs, realisation.layers, "mean")
    problem, network = pk.PathKernels(xi, train.labels), pk.Network((2, 3), 50, 1.3)
    whole = pk.minimise_action(problem, network, 0.3), pk.gp_limit(problem, network, 0.3)
    for solution, suffix, at in zip(whole, ("", "_gp"), (dataset.sel(width=50), dataset)):
        want = pk.leave_one_out(solution, xi, train.labels)
        assert at[f"leave_one_out_log_density{suffix}"] == pytest.approx(want.log_density, rel=1e-6)
        error = at[f"leave_one_out_squared_error{suffix}"]
        assert error == pytest.approx(want.squared_error, rel=1e-6)
    ((name, kept),) = realisation.sub_networks.items()
    paths = network.paths_through(kept)
    part = pk.gp_limit(problem.keep_paths(paths), network.keep_heads(kept), 0.3)
    want = pk.leave_one_out(part, xi[:, paths], train.labels)
    at = dataset.sel(sub_network=name)
    assert at.leave_one_out_squared_error_sub_network == pytest.approx(want.squared_error)
    assert at.log_evidence_sub_network == pytest.approx(part.log_evidence)


def test_defaults(complete, tmp_path):
    """Validation examples if there are any, else the training examples, each left out."""
    assert Selection(complete).chosen == "validation"
    run(tmp_path / "bare.zarr", Small(), analyses=(), widths=(5,), seeds=(0,))
    bare = open_store(tmp_path / "bare.zarr")
    assert "accuracy_validation" not in bare
    assert Selection(bare).chosen == "leave-one-out"
    with pytest.raises(ValueError, match="no validation scores"):
        choose(bare, "validation")


def test_one_temperature_leaves_nothing_to_choose(tmp_path):
    run(tmp_path / "one.zarr", analyses=(), temperatures=(0.1,), widths=(5,), seeds=(0,))
    dataset = open_store(tmp_path / "one.zarr")
    assert Selection(dataset).chosen is None
    assert dataset.accuracy_validation.notnull().all()


def test_temperatures_are_swept_downwards_from_neighbour_to_neighbour(tmp_path, monkeypatch):
    starts = []
    minimise = pieces.minimise_action

    def spy(problem, network, temperature, **settings):
        start = settings.get("start")
        before = start and (start.network.width, start.temperature)
        starts.append((network.width, temperature, before))
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(pieces, "minimise_action", spy)
    run(tmp_path / "study.zarr", analyses=(), seeds=(3,))
    assert starts == [
        (width, temperature, before and (width, before))
        for width in (5, 50)
        for temperature, before in ((1.0, None), (0.3, 1.0), (0.02, 0.3))
    ]


@pytest.mark.parametrize("failure", ["not positive definite", "stalled"])
def test_a_failed_point_does_not_spoil_its_successor(tmp_path, complete, monkeypatch, failure):
    """The next temperature starts from the limit, as it would alone."""
    minimise = pieces.minimise_action

    def failing(problem, network, temperature, **settings):
        if temperature == 0.3:
            if failure == "stalled":
                return minimise(problem, network, temperature, **settings, max_evaluations=2)
            raise pk.NotPositiveDefiniteError("no")
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(pieces, "minimise_action", failing)
    path = tmp_path / "study.zarr"
    run(path, analyses=())
    dataset = open_store(path).load()
    assert (dataset.status.sel(temperature=0.3) != STATUS_CODES["converged"]).all()
    after = dataset.status.sel(temperature=0.02)
    assert (after == STATUS_CODES["converged"]).all()
    monkeypatch.setattr(pieces, "minimise_action", minimise)
    alone = tmp_path / "alone.zarr"
    run(alone, analyses=(), temperatures=(0.02,))
    for name in ("order_parameter", "evaluations", "predictor_mean"):
        np.testing.assert_array_equal(
            dataset[name].sel(temperature=0.02), open_store(alone)[name].sel(temperature=0.02)
        )
    if failure == "not positive definite":
        assert not (Selection(dataset).temperatures == 0.3).any()


def test_a_warm_start_that_fails_gives_way_to_the_limit(tmp_path, complete, monkeypatch):
    minimise = pieces.minimise_action

    def failing(problem, network, temperature, start=None, **settings):
        if start is not None:
            raise pk.NotPositiveDefiniteError("no")
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(pieces, "minimise_action", failing)
    path = tmp_path / "study.zarr"
    run(path, analyses=())
    mine, theirs = open_store(path).load(), complete
    assert (mine.status == STATUS_CODES["converged"]).all()
    np.testing.assert_allclose(mine.order_parameter, theirs.order_parameter, atol=1e-5)
