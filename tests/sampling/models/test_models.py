"""The three models against the definition of the network, and against one another."""

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
array_stats = pytest.importorskip("arviz_stats.base").array_stats
jnp = jax.numpy

from scipy import stats

from pathkernel_core import (
    Network,
    Problem,
    minimise_action,
)
from pathkernel_core.paths.order_parameter import order_parameter_from_weights
from pathkernel_sampling.chains.chain import draw_states, warm_up
from pathkernel_sampling.models.models import MODELS, build_model, position_at

UNEQUAL = Network((2, 1, 3), (5, 4, 6, 3), (1.3, 0.7, 1.2, 0.9, 1.1))
SKIPS = Network((2, 1), 4, (1.3, 0.7, 1.2, 0.9), skips=(0.7, 1.2))  # singular: N < n


def examples(network, count=12, width=5, seed=0):
    generator = np.random.default_rng(seed)
    xi = generator.standard_normal((count, network.n_paths, width))
    labels = np.sign(generator.standard_normal((count, network.outputs)))
    return xi, labels


def estimate(chains):
    """Mean and its Monte-Carlo error of every entry, from (chain, draw, …)."""
    flat = chains.reshape(*chains.shape[:2], -1)
    sizes = [array_stats.ess(flat[..., i], method="mean") for i in range(flat.shape[-1])]
    return flat.mean((0, 1)), flat.std((0, 1)) / np.sqrt(sizes)


def sample(model, test, draws=600, chains=2):
    """Order parameters and predictors of draws, (chain, draw, …)."""
    order_parameters, means = [], []
    predict = jax.jit(jax.vmap(lambda x: model.predict(x, test)[0]))
    for chain in range(chains):
        key = jax.random.fold_in(jax.random.key(1), chain)
        state = warm_up(model, jax.random.fold_in(key, 0), 500)
        _, drawn = draw_states(model, state, jax.random.fold_in(key, 1), draws)
        assert drawn["diverging"].mean() < 0.02
        order_parameters.append(drawn["order_parameter"])
        means.append(np.asarray(predict(drawn["position"])))
    return np.stack(order_parameters), np.stack(means)


def agree(one, other):
    """Means agree within their errors, given as (mean, error)."""
    (mean, error), (other_mean, other_error) = one, other
    combined = np.hypot(error, other_error)
    np.testing.assert_array_less(np.abs(mean - other_mean), 4 * combined)
    # errors are small enough to tell models apart
    assert combined.max() < 0.07 * np.abs(mean).max()


def prior_weights(network, draws, seed=0):
    """Order parameters of weights drawn from the prior, by Eq. 13."""
    generator = np.random.default_rng(seed)
    widths = [int(width) for width in network.widths]
    deviations = np.sqrt(network.variances)
    weights = []
    for _ in range(draws):
        values = [
            deviations[layer + 1]
            * generator.standard_normal((heads, widths[layer + 1], widths[layer]))
            for layer, heads in enumerate(network.heads)
        ]
        readout = deviations[-1] * generator.standard_normal((network.outputs, widths[-1]))
        weights.append(order_parameter_from_weights(values, readout, network.skips))
    return np.array(weights)


def prior_positions(name, network, draws):
    """Parameters of a model drawn from their prior, as the model defines them."""
    generator, parts, rank = np.random.default_rng(3), [], network.outputs
    if name == "collapsed":
        dimension = build_model(name, *examples(network), network, 1.0).dimension
        return generator.standard_normal((draws, dimension))
    layers = zip((1, *network.steps[::-1]), network.widths[::-1], (None, *network.skips[::-1]))
    for branches, width, skip in layers:
        size, shared = branches * rank, 0 if skip is None else rank
        rank = min(size, int(width))
        rows, columns = np.tril_indices(size, 0, rank)
        rows, columns = rows[rows >= shared], columns[rows >= shared]
        degrees = width - columns
        squares = generator.chisquare(degrees, (draws, len(rows)))
        on_diagonal = np.sqrt(degrees / 2) * np.log(squares / degrees)
        parts.append(
            np.where(rows == columns, on_diagonal, generator.standard_normal(squares.shape))
        )
    return np.concatenate(parts, axis=1)


def weighted(model, positions, test):
    """Means and errors of evidence, U and predictor from draws of the prior."""

    def read(x):
        likelihood = model.log_density(x) - model.log_prior(x)
        return likelihood, model.order_parameter(x), model.predict(x, test)[0]

    statistics = jax.jit(lambda xs: jax.lax.map(read, xs))(positions)
    logs, *values = (np.asarray(value).reshape(len(positions), -1) for value in statistics)
    weights = np.exp(logs[:, 0] - logs.max())
    evidence = logs.max() + np.log(weights.mean())
    moments = [(evidence, weights.std() / weights.mean() / np.sqrt(len(weights)))]
    weights /= weights.sum()
    for value in values:
        mean = weights @ value
        moments.append((mean, np.sqrt(weights**2 @ (value - mean) ** 2)))
    return moments


@pytest.mark.parametrize(
    ("network", "temperature"),
    [
        (Network((2, 2), 5), 0.3),
        (Network((2, 2), 3), 0.1),  # singular: N < n
        (UNEQUAL, 0.5),
        (Network((2,), (4, 5), outputs=3), 0.5),
        (SKIPS, 0.5),
    ],
    ids=["equal widths", "singular", "three unequal layers", "three outputs", "skips"],
)
def test_models_agree(network, temperature):
    """Order parameters and collapsed weights have the same posterior of U and the predictor."""
    xi, labels = examples(network)
    test, _ = examples(network, 3, seed=7)
    one, other = (
        weighted(
            build_model(name, xi, labels, network, temperature),
            prior_positions(name, network, 8000),
            test,
        )
        for name in ("order-parameter", "collapsed")
    )
    for moments in zip(one, other, strict=True):
        agree(*moments)


@pytest.mark.parametrize(
    "network",
    [Network((2, 2), 5), Network((2,), 4, outputs=3, skips=0.6)],
    ids=["one", "three outputs, skips"],
)
def test_the_collapsed_model_is_that_of_all_weights_with_the_projection_integrated(network):
    """The posterior given the other weights is Gaussian in the projection, its integral exact."""
    xi, labels = examples(network)
    test, _ = examples(network, 3, seed=7)
    weights, collapsed = (
        build_model(name, xi, labels, network, 0.3) for name in ("weights", "collapsed")
    )
    size = weights.dimension - collapsed.dimension

    def integrated(values):
        def density(projection):
            return weights.log_density(jnp.concatenate([projection, values]))

        def outputs(projection):
            return weights.predict(jnp.concatenate([projection, values]), test)[0]

        start = jnp.zeros(size)
        precision = -jax.hessian(density)(start)
        mean = jnp.linalg.solve(precision, jax.grad(density)(start))
        slopes = jax.jacfwd(outputs)(mean)
        spread = jnp.linalg.solve(precision, slopes.reshape(-1, size).T).T.reshape(slopes.shape)
        log_integral = size * math.log(2 * math.pi) / 2 - jnp.linalg.slogdet(precision)[1] / 2
        u = weights.order_parameter(jnp.concatenate([mean, values]))
        return density(mean) + log_integral, u, outputs(mean), jnp.sum(slopes * spread, axis=-1)

    def expected(values):
        moments = collapsed.predict(values, test)
        return collapsed.log_density(values), collapsed.order_parameter(values), *moments

    values = np.random.default_rng(4).standard_normal((20, collapsed.dimension))
    found, want = (
        jax.jit(lambda xs, each=each: jax.lax.map(each, xs))(values)
        for each in (integrated, expected)
    )
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_draws_of_all_models_agree():
    network = Network((2, 2), 5)
    xi, labels = examples(network)
    test, _ = examples(network, 3, seed=7)
    first, *others = (
        [estimate(values) for values in sample(build_model(name, xi, labels, network, 0.3), test)]
        for name in MODELS
    )
    for other in others:
        for moments in zip(first, other, strict=True):
            agree(*moments)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "network", [Network((2, 2), 3), UNEQUAL, Network((2,), (4, 5), outputs=3), SKIPS], ids=str
)
def test_starts_are_draws_from_the_prior_hierarchy(name, network):
    model = build_model(name, *examples(network), network, 1.0)
    keys = jax.random.split(jax.random.key(3), 1500)
    positions = np.stack([np.asarray(model.initial(key)) for key in keys])
    drawn = np.asarray(jax.jit(jax.vmap(model.order_parameter))(positions))
    want = prior_weights(network, 1500)
    exact = np.diag(network.limit_diagonal)
    error = drawn.std(0) / np.sqrt(len(drawn))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - exact), 4.5 * error)
    # second moments, over all pairs of entries' squares
    for power in (2, 0.5):
        one, two = np.abs(drawn) ** power, np.abs(want) ** power
        error = np.hypot(one.std(0), two.std(0)) / np.sqrt(len(drawn))
        np.testing.assert_array_less(np.abs(one.mean(0) - two.mean(0)), 5 * error)


@pytest.mark.parametrize("network", [Network((2, 2), 3), UNEQUAL], ids=str)
def test_bartlett_density_is_the_normalised_one_of_its_draws(network):
    # a parameter on the diagonal is the scaled logarithm of a chi variable, one below it is normal
    model = build_model("order-parameter", *examples(network), network, 1.0)
    x = np.asarray(model.initial(jax.random.key(5)))
    want, start = 0.0, 0
    rank = network.outputs
    for heads, width in zip((1, *network.heads[::-1]), network.widths[::-1]):
        size = heads * rank
        rank = min(size, int(width))
        for row in range(size):
            for column in range(min(row + 1, rank)):
                value, start = x[start], start + 1
                if row == column:
                    scale = np.sqrt(2 * (width - column))
                    chi = np.sqrt(width - column) * np.exp(value / scale)
                    want += stats.chi(width - column).logpdf(chi) + np.log(chi / scale)
                else:
                    want += stats.norm.logpdf(value)
    assert start == model.dimension == len(x)
    np.testing.assert_allclose(jax.jit(model.log_prior)(jnp.asarray(x)), want, rtol=1e-12)


def test_dimensions_are_those_of_the_paper():
    network = Network((2, 2), 10)
    xi, labels = examples(network, width=231)
    dimensions = {name: build_model(name, xi, labels, network, 0.01).dimension for name in MODELS}
    assert dimensions == {"order-parameter": 14, "collapsed": 410, "weights": 2720}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "network", [Network((2, 2), 3), UNEQUAL, Network((2,), (4, 5), outputs=3)], ids=str
)
def test_gradients_are_those_of_finite_differences(name, network):
    model = build_model(name, *examples(network), network, 0.5)
    x = model.initial(jax.random.key(0))
    direction = np.random.default_rng(0).standard_normal(len(x))
    density = jax.jit(jax.value_and_grad(model.log_density))
    slope = density(x)[1] @ direction
    step = 1e-6
    difference = density(x + step * direction)[0] - density(x - step * direction)[0]
    difference /= 2 * step
    np.testing.assert_allclose(slope, difference, rtol=1e-5)


def test_the_network_of_the_weights_is_that_of_its_definition():
    network = Network((2, 3), (4, 5, 6), (1.3, 0.7, 1.2, 0.9), outputs=2)
    xi, labels = examples(network)
    model = build_model("weights", xi, labels, network, 0.5)
    x = np.asarray(model.initial(jax.random.key(0)))
    shapes = [(4, 5), (2, 5, 4), (3, 6, 5), (2, 6)]
    parts = np.split(x, np.cumsum([math.prod(shape) for shape in shapes]))
    weights = [
        np.sqrt(variance) * part.reshape(shape)
        for variance, part, shape in zip(network.variances, parts, shapes)
    ]
    projection, first, second, readout = weights
    want = np.zeros((len(xi), 2))
    for path, (one, two) in enumerate((one, two) for one in range(2) for two in range(3)):
        hidden = xi[:, path] @ projection.T / np.sqrt(5)
        hidden = hidden @ first[one].T / np.sqrt(2 * 4)
        hidden = hidden @ second[two].T / np.sqrt(3 * 5)
        want += hidden @ readout.T / np.sqrt(6)
    mean, variance = jax.jit(model.predict)(jnp.asarray(x), xi)
    np.testing.assert_allclose(mean, want, rtol=1e-12)
    assert not variance.any()
    density = stats.norm.logpdf(x).sum() + stats.norm(want, np.sqrt(0.5)).logpdf(labels).sum()
    np.testing.assert_allclose(jax.jit(model.log_density)(jnp.asarray(x)), density, rtol=1e-12)
    np.testing.assert_allclose(
        jax.jit(model.order_parameter)(jnp.asarray(x)),
        order_parameter_from_weights([first, second], readout),
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "colapsed"}, "Did you mean 'collapsed'"),
        ({"network": Network((3,), 5)}, "have 4 paths and 1 outputs, but the network 3 and 1"),
        ({"labels": np.ones((12, 2))}, "have 4 paths and 2 outputs, but the network 4 and 1"),
        ({"name": "weights", "network": Network((2, 2), 4.5)}, "whole numbers"),
        ({"network": Network((2, 2), 1.5)}, "whole numbers"),
        ({"temperature": -1.0}, "temperature must be positive"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    network = Network((2, 2), 5)
    xi, labels = examples(network)
    given = dict(name="order-parameter", xi=xi, labels=labels, network=network, temperature=0.1)
    with pytest.raises(ValueError, match=message):
        build_model(**{**given, **change})


@pytest.mark.slow
def test_ranks_of_what_the_labels_were_drawn_from_are_uniform():
    network, temperature, count, kept = Network((2, 2), 3), 0.3, 300, 31
    xi, blank = examples(network)
    prior = build_model("order-parameter", xi, blank, network, temperature)
    generator = np.random.default_rng(11)
    ranks = []
    for trial in range(count):
        key = jax.random.fold_in(jax.random.key(2), trial)
        truth = np.asarray(prior.factor(prior.initial(jax.random.fold_in(key, 5))))
        features = np.einsum("mpi,pk->mki", xi, truth) / np.sqrt(4 * 5)
        weights = generator.standard_normal(features.shape[1:])
        labels = np.einsum("mki,ki->m", features, weights)
        labels += np.sqrt(temperature) * generator.standard_normal(len(xi))
        model = build_model("order-parameter", xi, labels, network, temperature)
        state = warm_up(model, jax.random.fold_in(key, 0), 150)
        _, drawn = draw_states(model, state, jax.random.fold_in(key, 1), 8 * kept)
        entries = drawn["order_parameter"][::8][:, *np.tril_indices(4)]
        ranks.append((entries < (truth @ truth.T)[np.tril_indices(4)]).sum(0))
    for entry in np.transpose(ranks):
        observed = np.bincount(entry // 4, minlength=8)  # 32 ranks in 8 bins
        assert stats.chisquare(observed).pvalue > 1e-4


@pytest.mark.parametrize(
    "network",
    [
        Network((2, 1, 3), (9, 8, 7, 6), (1.3, 0.7, 1.2, 0.9, 1.1)),
        Network((2, 2), 12, outputs=2),
        Network((2, 1), 9, (1.3, 0.7, 1.2, 0.9), skips=(0.7, 1.2)),
    ],
)
def test_chains_can_start_at_a_solution(network):
    xi, labels = examples(network)
    solution = minimise_action(Problem(xi, labels), network, 0.3)
    position = position_at(network, solution.factors)
    model = build_model("order-parameter", xi, labels, network, 0.3)
    assert position.shape == (model.dimension,)
    np.testing.assert_allclose(model.order_parameter(position), solution.order_parameter, rtol=1e-9)


def test_a_solution_that_no_draw_equals_is_no_start():
    xi, labels = examples(SKIPS)
    solution = minimise_action(Problem(xi, labels), SKIPS, 0.3)
    assert position_at(SKIPS, solution.factors) is None
