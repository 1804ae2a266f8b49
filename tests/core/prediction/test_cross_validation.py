"""Leaving examples out in closed form, against leaving them out."""

import formulas
import numpy as np
import pytest

import pathkernel_core as pk


@pytest.mark.parametrize("space", ["examples", "features"])
def test_each_example_is_predicted_from_the_others(library, network, generator, space):
    xi, labels = formulas.random_examples(network, 25, 4, generator)
    arrays = library.array(xi), library.array(labels)
    solution = pk.minimise_action(pk.Problem(*arrays, space), network, 0.3)
    result = pk.leave_one_out(solution, *arrays)
    u, outputs = library.numpy(solution.order_parameter), network.outputs
    means, densities = [], []
    for out in range(25):
        remaining = np.arange(25) != out
        kernel = formulas.kernel(xi, xi, u, outputs, network.variances[0])
        kernel += 0.3 * np.eye(len(kernel))
        rows = np.repeat(remaining, outputs)
        inverse = np.linalg.inv(kernel[np.ix_(rows, rows)])
        across = kernel[np.ix_(~rows, rows)]
        means.append(across @ inverse @ labels[remaining].reshape(-1))
        covariance = kernel[np.ix_(~rows, ~rows)] - across @ inverse @ across.T
        error = labels[out].reshape(-1) - means[-1]
        log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
        densities.append(-0.5 * (error @ np.linalg.solve(covariance, error) + log_det))
    expected = np.array(means)
    np.testing.assert_allclose(result.mean, expected.reshape(result.mean.shape), atol=1e-9)
    assert result.mean.shape == labels.shape or outputs == 1
    error = labels.reshape(expected.shape) - expected
    assert result.squared_error == pytest.approx(np.mean(error**2), rel=1e-8)
    assert result.log_density == pytest.approx(np.mean(densities), rel=1e-8)


def test_batches_change_nothing(library, generator, monkeypatch):
    network = pk.Network((2,), 10, outputs=2)
    xi, labels = formulas.random_examples(network, 8, 3, generator, rank=2)
    arrays = library.array(xi), library.array(labels)
    solution = pk.gp_limit(pk.Problem(*arrays), network, 0.1)
    complete = pk.leave_one_out(solution, *arrays)
    monkeypatch.setattr("pathkernel_core.energy.features.PREDICTION_ELEMENTS", 72)
    parts = pk.leave_one_out(solution, *arrays)
    assert parts.log_density == pytest.approx(complete.log_density, rel=1e-12)
    np.testing.assert_allclose(parts.mean, complete.mean, rtol=1e-10)


def test_some_of_the_examples_are_left_out_of_all(generator):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 8, 3, generator)
    problem = pk.Problem.from_statistics(pk.SufficientStatistics.of(xi, labels))
    solution = pk.gp_limit(problem, network, 0.1)
    part, complete = (pk.leave_one_out(solution, xi[:k], labels[:k]) for k in (3, 8))
    np.testing.assert_allclose(part.mean, complete.mean[:3], rtol=1e-12)
    assert part.squared_error == pytest.approx(np.mean((labels[:3] - complete.mean[:3]) ** 2))
    with pytest.raises(ValueError, match="labels are not those of the solution"):
        pk.leave_one_out(solution, xi[:3], 9 * labels[:3])


@pytest.mark.parametrize(("space", "second"), [("examples", 7), ("features", 9)])
def test_other_examples_are_refused(generator, space, second):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 9, 3, generator)
    solution = pk.gp_limit(pk.Problem(xi[:8], labels[:8], space), network, 0.1)
    with pytest.raises(ValueError, match=rf"xi must have shape \(8, 2, 3\), but has \({second}, 2"):
        pk.leave_one_out(solution, xi[:second], labels[:second])
    with pytest.raises(ValueError, match="labels must have 1 outputs of 8 examples"):
        pk.leave_one_out(solution, xi[:8], labels[:7])


@pytest.mark.parametrize("space", ["examples", "features", "kernels"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_other_labels_are_refused(generator, space, dtype):
    network = pk.Network((2,), 10)
    xi, labels = formulas.random_examples(network, 8, 3, generator)
    arrays = [single.astype(dtype) for single in (xi, labels + 3)]
    solution = pk.gp_limit(pk.Problem(*arrays, space), network, 0.1)
    pk.leave_one_out(solution, *arrays)
    with pytest.raises(ValueError, match="labels are not those of the solution"):
        pk.leave_one_out(solution, arrays[0], arrays[1] - 3)
