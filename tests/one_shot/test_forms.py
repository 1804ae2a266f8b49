"""The network in its two forms: as its equations read, and as a sum over attention paths."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="training needs the extra: pip install pathkernel[training]")
import jax
import jax.numpy as jnp

from pathkernel_core import QueryKey, attentioned_inputs
from pathkernel_one_shot import layer_form, path_form
from pathkernel_trained.network import NetworkShape, initial_weights, shape_of

SHAPES = [
    NetworkShape(1, 1, 5, 3),
    NetworkShape(1, 4, 6, 2),
    NetworkShape(2, 1, 7, 4),
    NetworkShape(2, 3, 8, 5),
    NetworkShape(3, 2, 4, 6),
    NetworkShape(2, 8, 9, 4),
]
TOKENS = 11  # width of a token


@pytest.fixture
def problem():
    """Coordinates, space and targets of 6 examples of 7 tokens in a space of 4 dimensions."""
    generator = np.random.default_rng(4)
    coordinates = generator.normal(size=(6, 7, 4))
    space = path_form.TokenSpace(
        generator.normal(size=(4, TOKENS)), generator.normal(size=(7, TOKENS))
    )
    return coordinates, space, np.sign(generator.normal(size=6))


def large(shape, factor=2.0):
    """Initial weights, values, projection and readout enlarged by a factor, float64."""
    weights = initial_weights(shape, TOKENS, seed=0)
    factors = {"queries": 1.0, "keys": 1.0}
    return {
        name: factors.get(name, factor) * array.astype(float) for name, array in weights.items()
    }


def both_forms(problem):
    coordinates, space, labels = problem
    tokens = coordinates @ space.basis + space.offsets

    def by_layers(weights):
        return layer_form.output_by_layers(weights, tokens)

    def by_paths(weights):
        return path_form.output_along_paths(weights, space, coordinates)

    def loss(form):
        return lambda weights: jnp.mean((form(weights) - labels) ** 2)

    return by_layers, by_paths, loss


def cast(problem, dtype):
    return jax.tree.map(lambda array: jnp.asarray(array, dtype=dtype), problem)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "factor", "close", "gradients"),
    # in single precision both forms round by some 1e-6 once outputs exceed those of a new network
    [
        ("float64", 2.0, 1e-13, 1e-11),
        pytest.param("float32", 1.0, 1e-6, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_the_two_forms_agree(problem, shape, dtype, factor, close, gradients):
    weights = cast(large(shape, factor), dtype)
    by_layers, by_paths, loss = both_forms(cast(problem, dtype))

    @jax.jit
    def both(weights):
        forms = (by_layers, by_paths)
        return [(form(weights), jax.grad(loss(form))(weights)) for form in forms]

    (expected, by_layer), (actual, slopes) = both(weights)
    assert actual.dtype == dtype
    scale = float(abs(expected).max())
    assert scale > 0.05
    np.testing.assert_allclose(actual, expected, rtol=0, atol=close * max(1, scale))
    for name, slope in by_layer.items():
        size = float(np.linalg.norm(slope))
        assert size > 1e-4, name
        assert float(np.linalg.norm(slopes[name] - slope)) < gradients * size, name


@pytest.mark.parametrize("shape", SHAPES[3:5])
def test_the_output_is_that_of_the_theorys_paths(problem, shape):
    """w_π · ξ_π with ξ_π from the core, summed over paths."""
    coordinates, space, _ = problem
    weights = large(shape)
    layers = [
        QueryKey(queries, keys, scale=shape.scale)
        for queries, keys in zip(weights["queries"], weights["keys"])
    ]
    tokens = coordinates @ space.basis + space.offsets
    xi = attentioned_inputs(tokens, layers, readout="mean")
    expected = np.einsum(
        "pni,ni->p", xi, np.asarray(jax.jit(path_form.products_along_paths)(weights))
    )
    actual = jax.jit(path_form.output_along_paths)(weights, space, coordinates)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)


def test_the_output_of_one_head_by_hand():
    """One layer, one head, two tokens, all sizes 1."""
    weights = {
        "projection": np.array([[2.0]]),
        "values": np.array([[[[3.0]]]]),
        "readout": np.array([0.5]),
        "queries": np.array([[[[1.0]]]]),
        "keys": np.array([[[[0.7]]]]),
    }
    x = np.array([1.0, -2.0])
    attention = np.exp(0.7 * x[:, None] * x[None, :])
    attention /= attention.sum(axis=0)  # over keys
    expected = 0.5 * 3 * 2 * np.mean(x @ attention)
    actual = jax.jit(layer_form.output_by_layers)(weights, x.reshape(1, 2, 1))
    np.testing.assert_allclose(actual, [expected], rtol=1e-14)


def test_large_scores_do_not_overflow(problem):
    weights = large(SHAPES[3])
    weights["queries"] = 1e4 * weights["queries"]
    by_layers, by_paths, loss = both_forms(problem)
    actual, expected = jax.jit(lambda weights: (by_paths(weights), by_layers(weights)))(weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    slopes = jax.jit(jax.grad(loss(by_paths)))(weights)
    assert all(np.isfinite(slope).all() for slope in slopes.values())


def test_initial_weights():
    shape = NetworkShape(2, 3, 50, 20)
    weights = initial_weights(shape, 30, seed=1)
    assert {name: array.shape for name, array in weights.items()} == shape.weight_shapes(30)
    for name, array in weights.items():
        bound = {"values": 50, "readout": 50}.get(name, 30) ** -0.5
        assert array.dtype == np.float32
        assert 0.9 * bound < abs(array).max() <= bound, name
        spread = 5 * bound / (3 * array.size) ** 0.5
        assert abs(array.mean()) < spread, name
    again, other = initial_weights(shape, 30, 1), initial_weights(shape, 30, 2)
    assert all(np.array_equal(again[name], weights[name]) for name in weights)
    assert not any(np.array_equal(other[name], weights[name]) for name in weights)
    assert shape_of(weights) == shape


@pytest.mark.parametrize("name", ["layers", "heads", "width", "qk_width"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_wrong_sizes(name, value):
    sizes = {"layers": 1, "heads": 1, "width": 1, "qk_width": 1, name: value}
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        NetworkShape(**sizes)


def test_weights_that_do_not_fit():
    weights = initial_weights(SHAPES[3], TOKENS, 0)
    with pytest.raises(ValueError, match=r"readout must have shape \(8,\)"):
        shape_of({**weights, "readout": np.ones(7)})
