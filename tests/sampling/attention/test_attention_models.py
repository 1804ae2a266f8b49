"""Models of attention and weights together: densities, gradients, and draws that agree."""

import dataclasses
import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
array_stats = pytest.importorskip("arviz_stats.base").array_stats

import pathkernel_core as pk
from pathkernel_sampling.attention.corrections import next_order_density
from pathkernel_sampling.attention.models import attention_model
from pathkernel_sampling.chains.chain import draw_states, warm_up
from pathkernel_sampling.corrections.next_order import next_order, predict_next_order
from pathkernel_sampling.models.models import build_model

NAMES = ("order-parameter", "collapsed", "weights", "marginal", "marginal-next-order")


def posterior(examples=9, width=4, outputs=1, temperature=0.3, **options):
    generator = np.random.default_rng(outputs)
    inputs = generator.standard_normal((examples, 5, 3))
    inputs[:, :, 0] *= 2
    place = inputs[:, :, 0].argmax(1)
    labels = np.sign(inputs[np.arange(examples), place, 1 : 1 + outputs])
    layers = [pk.KeyVectors(np.ones((2, 3)), 1.0)]
    network = pk.Network((2,), width, (0.8, 1.3, 0.9), outputs)
    return pk.AttentionPosterior(
        inputs, labels, layers, network, temperature, variances=1.5, **options
    )


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("order-parameter", 1),
        ("weights", 2),
        pytest.param("collapsed", 1, marks=pytest.mark.slow),
        pytest.param("order-parameter", 2, marks=pytest.mark.slow),
        pytest.param("collapsed", 2, marks=pytest.mark.slow),
        pytest.param("weights", 1, marks=pytest.mark.slow),
    ],
)
def test_given_attention_the_density_is_that_of_its_weights(name, outputs):
    """Times the prior of attention; predictions, too."""
    of_heads = posterior(outputs=outputs)
    model = attention_model(name, of_heads)
    x = model.initial(jax.random.key(3))
    heads = np.asarray(model.attention(x))
    layers = of_heads.layers_at(heads)
    xi, new = of_heads.attend(layers), np.random.default_rng(0).standard_normal((2, 5, 3))
    given = build_model(name, xi, of_heads.labels, of_heads.network, 0.3)
    weights = x[: given.dimension]
    assert len(x) == model.dimension == given.dimension + 6
    prior = -0.5 * (heads @ heads + 6 * np.log(2 * np.pi))

    def evaluate(of, x, new):  # in one program: compiling many takes longer
        density, gradient = jax.value_and_grad(of.log_density)(x)
        values = (of.order_parameter(x), *of.predict(x, new))
        return of.log_prior(x), density, gradient[: given.dimension], values

    actual = jax.jit(functools.partial(evaluate, model))(x, new)
    expected = jax.jit(functools.partial(evaluate, given))(weights, of_heads.attend(layers, new))
    assert float(actual[0]) == pytest.approx(float(expected[0]) + prior, rel=1e-12)
    assert float(actual[1]) == pytest.approx(float(expected[1]) + prior, rel=1e-10)
    np.testing.assert_allclose(actual[2], expected[2], rtol=1e-8, atol=1e-8)
    for value, want in zip(actual[3], expected[3], strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-12)


def test_one_program_serves_all_widths_and_temperatures():
    """But not other forms; each with its own density."""

    @jax.jit
    def evaluate(model, x):
        return model.log_density(x)

    cases = [posterior(width=width, temperature=t) for width, t in ((4, 0.3), (9, 0.3), (9, 1.0))]
    models = [attention_model("order-parameter", case) for case in cases]
    x = models[0].initial(jax.random.key(0))
    values = [float(evaluate(model, x)) for model in models]
    assert evaluate._cache_size() == 1
    alone = [float(jax.jit(model.log_density)(x)) for model in models]
    assert values == pytest.approx(alone, rel=1e-12)
    assert len(set(values)) == 3
    other = dataclasses.replace(cases[0], layers=[pk.KeyVectors(np.ones((2, 3)), 2.0)])
    scaled = attention_model("order-parameter", other)
    value = float(jax.jit(scaled.log_density)(x))
    assert float(evaluate(scaled, x)) == pytest.approx(value, rel=1e-12)
    assert evaluate._cache_size() == 2


@pytest.mark.parametrize("name", [*NAMES[:-1], pytest.param(NAMES[-1], marks=pytest.mark.slow)])
def test_gradients_are_those_of_differences(name):
    model = attention_model(name, posterior(width=8))
    x = model.initial(jax.random.key(3))
    direction = np.random.default_rng(1).standard_normal(len(x))
    density = jax.jit(jax.value_and_grad(model.log_density))
    gradient = density(x)[1]
    step = 1e-4
    slope = (density(x + step * direction)[0] - density(x - step * direction)[0]) / (2 * step)
    assert float(gradient @ direction) == pytest.approx(float(slope), rel=1e-5, abs=1e-5)


def test_the_marginal_density_is_that_of_the_core():
    of_heads = posterior(width=8)
    model = attention_model("marginal", of_heads)
    x = model.initial(jax.random.key(0))
    expected = of_heads.evaluate(np.asarray(x))
    density, gradient = jax.jit(jax.value_and_grad(model.log_density))(x)
    assert float(density) == pytest.approx(expected.log_density, rel=1e-12)
    np.testing.assert_allclose(gradient, expected.gradient, rtol=1e-6, atol=1e-6)
    new = np.random.default_rng(0).standard_normal((2, 5, 3))
    mean, variance = jax.jit(model.predict)(x, jax.numpy.asarray(new))
    xi = of_heads.attend(of_heads.layers_at(np.asarray(x)), new)
    prediction = expected.solution.predict(xi)
    np.testing.assert_allclose(mean[:, 0], prediction.mean, rtol=1e-6)
    np.testing.assert_allclose(variance[:, 0], prediction.variance, rtol=1e-6)


def test_u_and_predictions_to_next_order_are_those_of_the_expansion():
    of_heads = posterior(width=8)
    model = attention_model("marginal-next-order", of_heads)
    x = model.initial(jax.random.key(0))
    solution, layers = of_heads.solve(np.asarray(x)), of_heads.layers_at(np.asarray(x))
    expected = next_order(solution).mean_order_parameter
    np.testing.assert_allclose(model.order_parameter(x), expected, rtol=1e-6)
    new = np.random.default_rng(0).standard_normal((2, 5, 3))
    prediction = predict_next_order(solution, of_heads.attend(layers, new))
    mean, variance = jax.jit(model.predict)(x, jax.numpy.asarray(new))
    np.testing.assert_allclose(mean[:, 0], prediction.mean, rtol=1e-6)
    np.testing.assert_allclose(variance[:, 0], prediction.variance, rtol=1e-6)
    density = next_order_density(of_heads, np.asarray(x))
    value, gradient = jax.value_and_grad(model.log_density)(x)
    assert float(value) == pytest.approx(density.log_density, rel=1e-8)
    np.testing.assert_allclose(gradient, density.gradient, rtol=1e-6, atol=1e-6)


def test_scores_that_overflow_have_no_density():
    model = attention_model("marginal", posterior(width=8))
    density, gradient = jax.value_and_grad(model.log_density)(jax.numpy.full(6, 1e308))
    assert density == -np.inf
    np.testing.assert_array_equal(gradient, 0)


def sampled(model, chains=2, warm=300, draws=400):
    """Means of quantities that no exchange of heads changes, and their errors."""
    values = []
    for chain in range(chains):
        key = jax.random.key(chain)
        state = warm_up(model, jax.random.fold_in(key, 0), warm)
        _, drawn = draw_states(model, state, jax.random.fold_in(key, 1), draws)
        heads = np.stack([model.attention(x) for x in drawn["position"]])
        u = drawn["order_parameter"]
        values.append(np.stack([np.trace(u, axis1=1, axis2=2), heads[:, 0] + heads[:, 3]], 1))
    values = np.stack(values)
    errors = [array_stats.mcse(values[..., k], chain_axis=0, draw_axis=1) for k in range(2)]
    return values.mean((0, 1)), np.array(errors)


@pytest.mark.slow
def test_samplers_of_weights_and_of_order_parameters_agree():
    """At N = 4, where the saddle point does not hold: both are exact."""
    of_heads = posterior()
    one, error = sampled(attention_model("order-parameter", of_heads), draws=2000)
    other, other_error = sampled(attention_model("collapsed", of_heads), draws=2000)
    np.testing.assert_array_less(np.abs(one - other), 4 * np.hypot(error, other_error))


def test_draws_are_the_same_each_time():
    model = attention_model("marginal", posterior(width=8))
    state = warm_up(model, jax.random.key(0), 20)
    after, first = draw_states(model, state, jax.random.key(1), 3)
    _, second = draw_states(model, after, jax.random.key(2), 3)
    again = attention_model("marginal", posterior(width=8))  # as another process would make it
    _, resumed = draw_states(
        again, type(after).from_arrays(after.to_arrays()), jax.random.key(2), 3
    )
    np.testing.assert_array_equal(second["position"], resumed["position"])
    assert not np.array_equal(first["position"], second["position"])


def test_names_and_widths_are_checked():
    with pytest.raises(ValueError, match="model"):
        attention_model("nuts", posterior())
    with pytest.raises(ValueError, match="whole numbers"):
        attention_model("weights", posterior(width=4.5))
