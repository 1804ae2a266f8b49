"""Chains of NumPyro's no-U-turn sampler on a density of ours, as benchmarks of chains take them."""

from __future__ import annotations

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS
from numpyro.infer.hmc import HMCState

from pathkernel_core.contracts.sampler import Model

_FIELDS = ("num_steps", "diverging")
# of a warm-up with a dense mass matrix, as in pathkernel_sampling.chains.chain
_STEPS_PER_DIMENSION = 10
_MAX_TREE_DEPTH = 10


class NumPyroChains:
    """Chains of one model, which share their compiled code.

    Parameters
    ----------
    model : Model
    warm_up : int
        Steps of adaptation of each chain.
    draws : int
        Draws of each call of :meth:`draw`.
    """

    def __init__(self, model: Model, warm_up: int, draws: int):
        self._model = model
        kernel = NUTS(
            potential_fn=lambda x: -model.log_density(x),
            dense_mass=warm_up >= _STEPS_PER_DIMENSION * model.dimension,
            max_tree_depth=_MAX_TREE_DEPTH,
        )
        self._mcmc = MCMC(kernel, num_warmup=warm_up, num_samples=draws, progress_bar=False)
        self._order_parameters = jax.jit(lambda xs: jax.lax.map(model.order_parameter, xs))

    def warm_up(self, key: jax.Array) -> HMCState:
        """Start a chain at a draw from the prior, and adapt its step size and mass matrix."""
        self._mcmc.warmup(key, init_params=self._model.initial(key), extra_fields=_FIELDS)
        return self._mcmc.post_warmup_state

    def draw(self, state: HMCState, key: jax.Array) -> tuple[HMCState, dict[str, np.ndarray]]:
        """Draw from the posterior: the state after the draws, and the draws by ArviZ's names."""
        self._mcmc.post_warmup_state = state._replace(rng_key=key)
        self._mcmc.run(key, extra_fields=_FIELDS)
        positions, fields = self._mcmc.get_samples(), self._mcmc.get_extra_fields()
        steps = np.asarray(fields["num_steps"])
        draws = {
            "position": positions,
            "order_parameter": self._order_parameters(positions),
            "n_steps": steps,
            "diverging": fields["diverging"],
            "reached_max_tree_depth": steps >= 2**_MAX_TREE_DEPTH - 1,
        }
        return self._mcmc.last_state, {name: np.asarray(values) for name, values in draws.items()}
