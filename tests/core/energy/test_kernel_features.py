"""Features that stand for kernels: they have them, and the theory agrees with them."""

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.energy.kernel_features import KernelFeatures

PATHS, EXAMPLES, NEW = 3, 8, 5


def drawn(rank, generator):
    """ξ of training and new examples, and their kernels."""
    xi = generator.standard_normal((EXAMPLES + NEW, PATHS, rank))
    kernels = np.einsum("xpi,yqi->pqxy", xi, xi) / rank
    cross = kernels[:, :, EXAMPLES:, :EXAMPLES]
    own = kernels[:, :, EXAMPLES:, EXAMPLES:].diagonal(axis1=2, axis2=3)
    return xi[:EXAMPLES], xi[EXAMPLES:], kernels[:, :, :EXAMPLES, :EXAMPLES], cross, own


@pytest.mark.parametrize("rank", [4, 100])
def test_features_have_the_kernels(generator, rank):
    _, _, kernels, cross, own = drawn(rank, generator)
    features = KernelFeatures(kernels)
    training, new = features.training, features.new(cross, own)
    assert training.shape == (EXAMPLES, PATHS, min(rank, PATHS * EXAMPLES) + PATHS)
    assert new.shape[2] == training.shape[2] == features.width

    def products(left, right):
        return np.einsum("xpi,yqi->pqxy", left, right) / features.width

    np.testing.assert_allclose(products(training, training), kernels, atol=1e-13)
    np.testing.assert_allclose(products(new, training), cross, atol=1e-12)
    np.testing.assert_allclose(products(new, new).diagonal(axis1=2, axis2=3), own, atol=1e-12)


@pytest.mark.parametrize("rank", [4, 100])
def test_minimum_and_predictions_are_those_of_the_kernels(generator, rank):
    xi, xi_new, kernels, cross, own = drawn(rank, generator)
    features = KernelFeatures(kernels)
    labels, network = np.sign(generator.standard_normal(EXAMPLES)), pk.Network((PATHS,), 6)
    expected = pk.minimise_action(pk.Problem(xi, labels), network, 0.1)
    actual = pk.minimise_action(pk.Problem(features.training, labels), network, 0.1)
    assert actual.action == pytest.approx(expected.action, rel=1e-10)
    expected, actual = expected.predict(xi_new), actual.predict(features.new(cross, own))
    np.testing.assert_allclose(actual.mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(actual.variance, expected.variance, atol=1e-5)


def test_single_precision_adds_no_features(generator):
    *_, kernels, _, _ = drawn(4, generator)
    assert KernelFeatures(kernels.astype(np.float32)).width == 4 + PATHS
