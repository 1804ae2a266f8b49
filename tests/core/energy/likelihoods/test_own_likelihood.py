"""A likelihood of one's own: a class and a line of the table."""

import numpy as np
import pytest
import scipy

import pathkernel_core as pk
from pathkernel_core.energy import likelihoods
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood, Probabilities
from pathkernel_core.energy.likelihoods.logistic import LOGISTIC


class Probit(ClassLikelihood):
    """Two classes ±1 of one output: p(y|f) = Φ(y f), in NumPy."""

    name = "probit"

    def targets(self, labels, name, array, examples):
        return LOGISTIC.targets(labels, name, array, examples)

    def search_temperature(self, temperature, outputs):
        return np.pi / 2

    def search_labels(self, targets):
        return np.sqrt(np.pi / 2) * targets

    def _ratio(self, outputs, targets):
        z = targets * outputs
        return z, np.exp(scipy.stats.norm.logpdf(z) - scipy.stats.norm.logcdf(z))

    def log_density(self, outputs, targets):
        return scipy.stats.norm.logcdf(targets * outputs).sum()

    def derivatives(self, outputs, targets):
        z, ratio = self._ratio(outputs, targets)
        return targets * ratio, np.sqrt(ratio * (ratio + z))[:, :, None]

    def curvature_slope(self, outputs, targets, covariances):
        z, ratio = self._ratio(outputs, targets)
        slope = -ratio * (ratio + z)  # of the ratio in z
        of_curvature = slope * (2 * ratio + z) + ratio
        return covariances[:, :, 0] * targets * of_curvature

    def probabilities(self, mean, covariances):
        positive = scipy.stats.norm.cdf(mean[:, 0] / np.sqrt(1 + covariances[:, 0, 0]))
        values = np.stack([1 - positive, positive], axis=1)
        return Probabilities(values, np.zeros_like(values))


@pytest.mark.parametrize("space", ["examples", "features"])
def test_a_fourth_likelihood_is_one_class(monkeypatch, space):
    table = {**likelihoods.LIKELIHOODS, "probit": Probit()}
    monkeypatch.setattr(likelihoods, "LIKELIHOODS", table)
    rng = np.random.default_rng(0)
    xi, new = rng.normal(size=(15, 2, 4)), rng.normal(size=(3, 2, 4))
    labels = np.sign(xi[:, 0, 0])
    problem = pk.Problem(xi, labels, space, likelihood="probit")
    factor = rng.normal(size=(2, 5))
    u, direction = factor @ factor.T, np.array([[0.3, 0.1], [0.1, -0.2]])
    _, gradient = problem.energy_and_gradient(u)
    near, far = (
        problem.energy_and_gradient(u + s * direction)[0]
        - problem.energy_and_gradient(u - s * direction)[0]
        for s in (1e-3, 2e-3)
    )
    numerical = (8 * near - far) / 12e-3
    assert np.sum(gradient * direction) == pytest.approx(numerical, abs=1e-9)
    solution = pk.minimise_action(problem, pk.Network((2,), 20))
    probabilities = solution.predict(new).probabilities
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    # of about the logistic's, whose slope at 0 is 1/4 in place of 0.4
    variance = (np.sqrt(2 / np.pi) / 0.5) ** 2
    network = pk.Network((2,), 20, (variance, 1, 1))
    logistic = pk.minimise_action(pk.Problem(xi, labels, likelihood="logistic"), network)
    expected = logistic.predict(new).probabilities
    np.testing.assert_allclose(probabilities, expected, atol=0.03)
