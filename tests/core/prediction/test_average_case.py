"""Average-case learning curve, against ridge regressions on random draws."""

import numpy as np
import pytest

from pathkernel_core.prediction.average_case import (
    average_case_error,
    feature_spectrum,
    kernel_spectrum,
)


@pytest.mark.parametrize("examples", [20, 60, 200])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_it_is_the_mean_error_of_ridge_regressions(examples, temperature):
    rng = np.random.default_rng(0)
    eigenvalues = 1.0 / np.arange(1, 101) ** 1.5
    coefficients = rng.normal(size=100) / np.arange(1, 101)
    errors = []
    for _ in range(60):
        features, tests = (rng.normal(size=(size, 100)) for size in (examples, 400))
        kernel = features * eigenvalues @ features.T + temperature * np.eye(examples)
        fit = np.linalg.solve(kernel, features @ coefficients)
        predicted = tests * eigenvalues @ features.T @ fit
        errors.append(np.mean((predicted - tests @ coefficients) ** 2))
    expected = average_case_error(eigenvalues, coefficients**2, examples, temperature)
    standard_error = np.std(errors) / np.sqrt(len(errors))
    assert abs(np.mean(errors) - expected) < 4 * standard_error + 0.03 * expected


def test_without_a_kernel_the_error_is_the_labels_square():
    assert average_case_error(np.zeros(3), np.ones(3), 10, 0.1) == pytest.approx(3.0)


def test_the_spectrum_of_a_sample_is_that_of_the_distribution():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2000, 3))
    eigenvalues, powers = kernel_spectrum(features * [4.0, 1.0, 0.25] @ features.T, features[:, 1])
    np.testing.assert_allclose(eigenvalues[-3:], [0.25, 1.0, 4.0], rtol=0.1)
    assert powers.sum() == pytest.approx(np.mean(features[:, 1] ** 2))
    assert powers[-2] == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("rank", [7, 12])
def test_features_give_the_spectrum_of_their_kernel(rank):
    rng = np.random.default_rng(2)
    features = rng.normal(size=(50, rank)) @ rng.normal(size=(rank, 12))
    labels = rng.normal(size=50)
    sums = (features.T @ features / 50, features.T @ labels / 50, np.mean(labels**2))
    eigenvalues, powers = feature_spectrum(*sums)
    expected, expected_powers = kernel_spectrum(features @ features.T, labels)
    np.testing.assert_allclose(np.sort(eigenvalues)[-rank:], expected[-rank:], rtol=1e-9)
    assert powers.sum() == pytest.approx(expected_powers.sum())
    for examples in (5, 40, 300):
        actual = average_case_error(eigenvalues, powers, examples, 0.1)
        assert actual == pytest.approx(
            average_case_error(expected, expected_powers, examples, 0.1), rel=1e-9
        )
