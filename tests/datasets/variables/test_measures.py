"""Measures of predictions: those of one solution, and those of draws."""

import numpy as np
import pytest
from scipy.stats import norm

import pathkernel_core as pk
from pathkernel_datasets.variables.measures import MEASURES, Predictions

FUNCTIONS = {measure.name: measure.function for kind in MEASURES.values() for measure in kind}


@pytest.fixture
def generator():
    """Random numbers, the same every time."""
    return np.random.default_rng(0)


def test_of_one_solution_they_are_the_cores(generator):
    mean, labels = generator.normal(size=(2, 30, 2))
    variance = generator.uniform(0.1, 1, size=(30, 2))
    predicted, expected = (
        Predictions(mean[None], labels, variance[None], 0.3),
        pk.regression(mean, variance, labels, 0.3),
    )
    for measure in MEASURES["targets"]:
        assert measure.function(predicted) == getattr(expected, measure.name)
    signs = np.sign(labels[:, 0])
    classified = Predictions(mean[None, :, 0], signs)
    assert FUNCTIONS["accuracy"](classified) == pk.accuracy(mean[:, 0], signs)


def test_of_draws_they_are_of_the_mean_and_of_the_mixture(generator):
    means, labels = generator.normal(size=(5, 30)), generator.normal(size=30)
    variances = generator.uniform(0.1, 1, size=(5, 30))
    predicted = Predictions(means, labels, variances, 0.3)
    error = np.mean((labels - means.mean(0)) ** 2)
    assert FUNCTIONS["mean_squared_error"](predicted) == pytest.approx(error)
    assert FUNCTIONS["r_squared"](predicted) == pytest.approx(1 - error / labels.var())
    mixture = norm.pdf(labels, means, np.sqrt(variances + 0.3)).mean(0)
    density = FUNCTIONS["log_predictive_density"](predicted)
    assert density == pytest.approx(np.log(mixture).mean())
    repeated = Predictions(means[[0, 0]], labels, variances[[0, 0]], 0.3)
    single = Predictions(means[:1], labels, variances[:1], 0.3)
    assert FUNCTIONS["log_predictive_density"](repeated) == pytest.approx(
        FUNCTIONS["log_predictive_density"](single)
    )


def test_validation_is_measured_by_one_measure_of_each_kind():
    measured = {
        kind: [m.name for m in of_kind if m.validation] for kind, of_kind in MEASURES.items()
    }
    assert measured == {
        "classes": ["accuracy"],
        "probabilities": ["accuracy"],
        "targets": ["mean_squared_error"],
    }


def test_fractions_are_shares_of_examples_and_are_the_ones_with_per_cent():
    fractions = [m for of_kind in MEASURES.values() for m in of_kind if m.is_fraction]
    assert {measure.name for measure in fractions} == {"accuracy"}
    labels = np.array([1.0, 1.0, -1.0, -1.0])
    means = np.array([[2.0, -1.0, -3.0, -0.5]])
    assert [measure.function(Predictions(means, labels)) for measure in set(fractions)] == [0.75]
