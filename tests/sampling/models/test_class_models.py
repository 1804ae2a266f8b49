"""Models of classes: by features and by examples one posterior, and that of a quadrature."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
jnp = jax.numpy

import pathkernel_core as pk
from pathkernel_sampling.chains.chain import draw_states, warm_up
from pathkernel_sampling.models.class_models import (
    FeatureClassModel,
    KernelClassModel,
    class_model,
)
from pathkernel_sampling.models.models import OrderParameterModel, build_model


def data(classes, examples=6, paths=2, width=3, seed=0):
    rng = np.random.default_rng(seed)
    xi = 1.5 * rng.normal(size=(examples, paths, width))
    if classes == 1:
        return xi, np.sign(rng.normal(size=examples)), "logistic"
    return xi, np.arange(examples) % classes, "softmax"


def prior_positions(model, draws):
    """Parameters drawn from their prior: Bartlett's of the order parameters, normal of outputs."""
    rng, degrees = np.random.default_rng(0), np.asarray(model.chain.degrees)
    positions = rng.standard_normal((draws, model.dimension))
    diagonal = np.flatnonzero(degrees > 0)
    k = degrees[diagonal]
    positions[:, diagonal] = np.sqrt(k / 2) * np.log(rng.chisquare(k, (draws, len(k))) / k)
    return jnp.asarray(positions)


def weighted(model, test, draws=6000):
    """Log evidence, U and moments of the outputs, and errors, from draws of the prior."""
    positions = prior_positions(model, draws)

    def read(x):
        mean, variance = model.predict(x, test)
        logs = model.log_density(x) - model.log_prior(x)
        return logs, model.order_parameter(x), mean, variance

    logs, u, mean, variance = map(np.asarray, jax.jit(lambda xs: jax.lax.map(read, xs))(positions))
    weights = np.exp(logs - logs.max())
    evidence = logs.max() + np.log(weights.mean())
    weights = weights / weights.sum()
    moments = []
    for values in (u, mean, mean**2 + variance):
        flat = values.reshape(draws, -1)
        average = weights @ flat
        moments.append((average, np.sqrt(weights**2 @ (flat - average) ** 2)))
    return (evidence, np.sqrt((weights**2).sum())), *moments


@pytest.mark.parametrize("classes", [1, 3])
def test_features_and_examples_and_given_kernels_have_one_posterior(classes):
    xi, labels, likelihood = data(classes)
    new = np.random.default_rng(1).normal(size=(2, 2, 3))
    network = pk.Network((2,), 7, outputs=classes)
    problem = pk.Problem(xi, labels, likelihood=likelihood)

    def kernels(left, right):
        return np.einsum("api,bqi->pqab", left, right) / 3

    given = pk.Problem.from_kernels(kernels(xi, xi), labels, likelihood=likelihood)
    own = np.einsum("pqaa->pqa", kernels(new, new))
    chain = OrderParameterModel(None, network)
    models = [
        (FeatureClassModel(problem, xi, network, chain), new),
        (KernelClassModel(problem, network, chain), new),
        (KernelClassModel(given, network, chain), (kernels(new, xi), own)),
    ]
    assert models[0][0].dimension - models[0][0].chain.dimension == 6 * classes
    first, *others = [weighted(model, test) for model, test in models]
    for other in others:
        for (mean, error), (value, value_error) in zip(first, other, strict=True):
            allowed = 4 * np.hypot(error, value_error) + 1e-9
            np.testing.assert_array_less(abs(mean - value), allowed)


def test_draws_agree_with_the_theory_at_moderate_scale():
    """Of wide networks U and evidence are those of Laplace's approximation to a few per cent."""
    xi, labels, likelihood = data(3, examples=15)
    network = pk.Network((2,), 60, outputs=3)
    model = build_model("order-parameter", xi, labels, network, likelihood=likelihood)
    key = jax.random.key(3)
    state = warm_up(model, jax.random.fold_in(key, 0), 400)
    _, drawn = draw_states(model, state, jax.random.fold_in(key, 1), 500)
    assert drawn["diverging"].mean() < 0.02
    problem = pk.Problem(xi, labels, likelihood=likelihood)
    solution = pk.minimise_action(problem, network)
    mean = drawn["order_parameter"].mean(axis=0)
    assert abs(mean - solution.order_parameter).max() < 0.1
    outputs = jax.vmap(model.outputs)(drawn["position"])
    sampled = np.asarray(jax.nn.softmax(outputs, axis=-1)).mean(axis=0)
    np.testing.assert_allclose(sampled, solution.predict(xi).probabilities, atol=0.06)


def test_the_fewer_numbers_are_drawn():
    xi, labels, likelihood = data(3)
    network = pk.Network((2,), 7, outputs=3)
    problem = pk.Problem(xi, labels, likelihood=likelihood)
    chain = OrderParameterModel(None, network)
    assert isinstance(class_model(problem, xi, network, chain), FeatureClassModel)
    wide, labels, likelihood = data(3, width=10)
    problem = pk.Problem(wide, labels, likelihood=likelihood)
    assert isinstance(class_model(problem, wide, network, chain), KernelClassModel)


def test_models_of_weights_are_refused():
    xi, labels, likelihood = data(3)
    network = pk.Network((2,), 7, outputs=3)
    for name in ("collapsed", "weights"):
        with pytest.raises(ValueError, match=r'squared loss; of the softmax.*"order-parameter"'):
            build_model(name, xi, labels, network, likelihood=likelihood)
    with pytest.raises(ValueError, match="temperature must be left out"):
        build_model("order-parameter", xi, labels, network, 0.1, likelihood)
    with pytest.raises(ValueError, match="temperature is missing"):
        build_model("order-parameter", xi, np.ones(6), pk.Network((2,), 7))
