"""Chains: known targets, continuation bit for bit, one compilation, and the prior part alone."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
array_stats = pytest.importorskip("arviz_stats.base").array_stats
jnp = jax.numpy

from pathkernel_core import Network
from pathkernel_sampling.chains import chain as chains
from pathkernel_sampling.chains.chain import ChainState, draw_states, warm_up
from pathkernel_sampling.models.likelihood import pytree
from pathkernel_sampling.models.models import build_model

STATISTICS = {
    "lp",
    "energy",
    "diverging",
    "tree_depth",
    "reached_max_tree_depth",
    "n_steps",
    "acceptance_rate",
    "step_size",
}


@pytree(("precision",))
class Gaussian:
    """Normal density with a given precision matrix."""

    name = "gaussian"

    def __init__(self, covariance):
        self.precision = jnp.asarray(np.linalg.inv(covariance))

    @property
    def dimension(self):
        return len(self.precision)

    def initial(self, key):
        return 3 * jax.random.normal(key, (self.dimension,))

    def log_density(self, x):
        return -0.5 * x @ self.precision @ x

    def order_parameter(self, x):
        return jnp.outer(x, x)


@pytree(("model",))
class Prior:
    """A model without its likelihood."""

    name = "prior"

    def __init__(self, model):
        self.model = model

    @property
    def dimension(self):
        return self.model.dimension

    def initial(self, key):
        return self.model.initial(key)

    def log_density(self, x):
        return self.model.log_prior(x)

    def order_parameter(self, x):
        return self.model.order_parameter(x)


def small_model(name="order-parameter", network=None):
    network = network or Network((2, 2), 5)
    generator = np.random.default_rng(0)
    xi = generator.standard_normal((12, network.n_paths, 5))
    labels = np.sign(generator.standard_normal((12, network.outputs)))
    return build_model(name, xi, labels, network, 0.3)


def covariance():
    return np.array([[4.0, 1.8, 0.0], [1.8, 1.0, 0.1], [0.0, 0.1, 0.09]])


@pytest.mark.parametrize("dense", [True, False])
def test_moments_of_a_gaussian(dense):
    size = 3 if dense else 45  # a warm-up of 400 steps is too short for a dense matrix then
    whole = np.eye(size)
    whole[:3, :3] = covariance()
    model = Gaussian(whole)
    seen = []
    state = warm_up(model, jax.random.key(0), 400, seen.append)
    assert seen == [128, 256, 384, 400]
    assert state.inverse_mass_matrix.ndim == (2 if dense else 1)
    _, drawn = draw_states(model, state, jax.random.key(1), 3000)
    outer = drawn["order_parameter"]
    for i, j in zip(*np.tril_indices(3)):
        size = array_stats.ess(outer[None, :, i, j], method="mean")
        assert size > 300
        error = outer[:, i, j].std() / np.sqrt(size)
        assert abs(outer[:, i, j].mean() - covariance()[i, j]) < 4 * error
    assert 0.7 < drawn["acceptance_rate"].mean() < 0.97
    assert not drawn["diverging"].any()


def test_a_short_warm_up_in_many_dimensions_leaves_trajectories_short():
    # a dense mass matrix from as few draws would be nearly singular
    model = Gaussian(np.eye(150))
    state = warm_up(model, jax.random.key(0), 150)
    _, drawn = draw_states(model, state, jax.random.key(1), 50)
    assert drawn["n_steps"].max() <= 15


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        Network((2, 2), 3),
        pytest.param(Network((2,), (4, 5), 1.2, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_prior_part_alone_gives_the_moments_of_the_hierarchy(network):
    model = Prior(small_model(network=network))
    state = warm_up(model, jax.random.key(0), 400)
    _, drawn = draw_states(model, state, jax.random.key(1), 4000)
    keys = jax.random.split(jax.random.key(7), 4000)
    starts = np.stack([np.asarray(model.initial(key)) for key in keys])
    exact = np.asarray(jax.jit(jax.vmap(model.order_parameter))(starts))
    for i, j in zip(*np.tril_indices(exact.shape[1])):
        for function in (np.asarray, lambda values: np.sqrt(np.abs(values))):
            one, two = function(drawn["order_parameter"][:, i, j]), function(exact[:, i, j])
            error = np.hypot(
                one.std() / np.sqrt(array_stats.ess(one[None], method="mean")),
                two.std() / np.sqrt(len(two)),
            )
            assert abs(one.mean() - two.mean()) < 4.5 * error


def test_a_stored_state_goes_on_bit_for_bit():
    model = small_model()
    state = warm_up(model, jax.random.key(0), 60)
    keys = [jax.random.key(number) for number in (1, 2)]
    on, _ = draw_states(model, state, keys[0], 30)
    _, want = draw_states(model, on, keys[1], 30)
    stored = on.to_arrays()
    assert all(type(array) is np.ndarray for array in stored.values())
    _, got = draw_states(small_model(), ChainState.from_arrays(stored), keys[1], 30)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_a_draw_does_not_depend_on_how_many_follow():
    model = small_model()
    state = warm_up(model, jax.random.key(0), 60)
    _, few = draw_states(model, state, jax.random.key(1), 5)
    _, many = draw_states(model, state, jax.random.key(1), 300)  # more than one call of the loop
    np.testing.assert_array_equal(few["position"], many["position"][:5])
    assert len(np.unique(many["position"], axis=0)) > 250


def test_the_same_key_gives_the_same_chain_and_another_key_another():
    model = small_model()
    one, same, other = (warm_up(model, jax.random.key(seed), 60) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.position, same.position)
    assert (one.position != other.position).any()


def test_draws_hold_what_is_stored():
    model = small_model()
    state = warm_up(model, jax.random.key(0), 60)
    after, drawn = draw_states(model, state, jax.random.key(1), 7)
    assert set(drawn) == STATISTICS | {"position", "order_parameter"}
    assert drawn["order_parameter"].shape == (7, 4, 4)
    assert {drawn[name].shape for name in STATISTICS} == {(7,)}
    last = drawn["position"][-1]
    np.testing.assert_array_equal(after.position, last)
    np.testing.assert_allclose(drawn["lp"][-1], jax.jit(model.log_density)(last), rtol=1e-12)
    np.testing.assert_allclose(
        drawn["order_parameter"][-1], jax.jit(model.order_parameter)(last), rtol=1e-12
    )
    assert (drawn["step_size"] == float(state.step_size)).all()


def test_warm_up_and_draws_of_problems_of_one_shape_are_compiled_once():
    """Whatever the width and the variances are."""
    before = chains._advance._cache_size()
    for seed, network in enumerate((Network((3,), 4), Network((3,), 100.5, 0.7))):
        generator = np.random.default_rng(seed)
        xi, labels = generator.standard_normal((9, 3, 6)), generator.standard_normal(9)
        model = build_model("order-parameter", xi, labels, network, 0.2 + seed)
        state = warm_up(model, jax.random.key(seed), 150)
        state, _ = draw_states(model, state, jax.random.key(1), 10)
        state, _ = draw_states(model, state, jax.random.key(2), 10)
        draw_states(model, ChainState.from_arrays(state.to_arrays()), jax.random.key(3), 10)
    assert chains._advance._cache_size() == before + 1


def test_a_density_that_is_never_finite_is_refused():
    model = Gaussian(np.full((1, 1), np.nan))
    with pytest.raises(ValueError, match="no start"):
        warm_up(model, jax.random.key(0), 20)
