"""Chains of the exact posterior, and their Monte-Carlo errors, shared by the benchmarks."""

import jax
import numpy as np
from arviz_stats.base import array_stats

from pathkernel_sampling.chains.chain import draw_states, warm_up


def sample(model, chains, warm_up_steps, draws, seed=7, position=None):
    """Draws of every variable, (chain, draw, ...)."""
    drawn = []
    for chain in range(chains):
        key = jax.random.fold_in(jax.random.key(seed), chain)
        state = warm_up(model, jax.random.fold_in(key, 0), warm_up_steps, position=position)
        drawn.append(draw_states(model, state, jax.random.fold_in(key, 1), draws)[1])
    return {name: np.stack([draws[name] for draws in drawn]) for name in drawn[0]}


def mean_and_error(values):
    """Mean of draws (chain, draw, ...), and its Monte-Carlo error."""
    flat = values.reshape(*values.shape[:2], -1)
    sizes = [array_stats.ess(flat[..., i], method="mean") for i in range(flat.shape[-1])]
    error = flat.std((0, 1)) / np.sqrt(sizes)
    return values.mean((0, 1)), error.reshape(values.shape[2:])
