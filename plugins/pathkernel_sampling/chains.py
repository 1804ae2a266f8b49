"""One Markov chain of the no-U-turn sampler: warm-up, draws, and a state that can be stored.

One compiled loop does both warm-up and draws, for any number of steps, so that a model is compiled
once. Step i of a call uses the key ``fold_in(key, i)``: a chain that goes on from a stored state
with the same keys continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import blackjax.mcmc.hmc as hmc
import blackjax.mcmc.nuts as nuts
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule

from pathkernel_core.sampler import Model

MAX_TREE_DEPTH = 10

_ACCEPTANCE = 0.8  # rate that the step size aims at
_BLOCK = 128  # steps of one call of the compiled loop
_STEPS_PER_DIMENSION = 10  # of a warm-up that can tell a dense mass matrix from noise
_KEPT = 10_000  # largest dimension whose positions are returned: others would fill the memory

Draws = dict[str, np.ndarray]


class ChainState(NamedTuple):
    """All that the next draw depends on, besides its key.

    Attributes
    ----------
    position : array, shape (dimension,)
    log_density : array, shape ()
    gradient : array, shape (dimension,)
        Gradient of the log density at the position.
    step_size : array, shape ()
    inverse_mass_matrix : array, shape (dimension,) or (dimension, dimension)
    """

    position: jax.Array
    log_density: jax.Array
    gradient: jax.Array
    step_size: jax.Array
    inverse_mass_matrix: jax.Array

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The state as plain NumPy arrays."""
        return {name: np.asarray(value) for name, value in self._asdict().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> ChainState:
        """State of the arrays that :meth:`to_arrays` returned; other names are ignored."""
        missing = [name for name in cls._fields if name not in arrays]
        if missing:
            raise ValueError(f"arrays of a chain's state lack {', '.join(missing)}")
        return cls(*(jnp.asarray(np.asarray(arrays[name])) for name in cls._fields))


def warm_up(
    model: Model,
    key: jax.Array,
    steps: int,
    report: Callable[[int], None] = lambda done: None,
    position: np.ndarray | None = None,
) -> ChainState:
    """Start a chain and adapt its step size and mass matrix.

    Parameters
    ----------
    model : Model
    key : jax.random key
    steps : int
        Steps of the windowed adaptation of Stan. The mass matrix is dense if there are at least 10
        of them per dimension: from fewer its estimate would be nearly singular.
    report : callable
        Called with the number of steps that are done, again and again.
    position : array, shape (dimension,), optional
        Start of the chain. By default a draw from the prior.

    Raises
    ------
    ValueError
        If there are fewer than 20 steps, or no start of finite density is found.
    """
    if steps < 20:
        raise ValueError(f"steps of the warm-up must be at least 20, but is {steps}")
    dimension = model.dimension
    dense = steps >= _STEPS_PER_DIMENSION * dimension
    if position is None:
        start, log_density, gradient = _start(model, key)
    else:
        start = jnp.asarray(position)
        log_density, gradient = _evaluate(model, start)
    matrix = jnp.eye(dimension) if dense else jnp.ones(dimension)
    state = ChainState(start, log_density, gradient, jnp.ones(()), matrix)
    adaptation = _begin_adaptation(state)
    schedule = np.asarray(build_schedule(steps), dtype=np.int32)
    stages = schedule[:, 0] + 1  # 1: step size, 2: mass matrix too
    for first in range(0, steps, _BLOCK):
        block = slice(first, min(first + _BLOCK, steps))
        plan = _Plan.of(stages[block], schedule[block, 1])
        state, adaptation, _ = _advance(model, state, adaptation, key, first, plan)
        jax.block_until_ready(state)  # or all would be said to be done at once
        report(block.stop)
    step_size = jnp.exp(adaptation.averaging.log_step_size_avg)
    state = state._replace(step_size=step_size)
    # types as in a stored state, which decide whether code is compiled anew
    return ChainState.from_arrays(state.to_arrays())


def draw(model: Model, state: ChainState, key: jax.Array, count: int) -> tuple[ChainState, Draws]:
    """Draw from the posterior.

    Parameters
    ----------
    model : Model
    state : ChainState
        Where the chain stands, from :func:`warm_up` or the draws before.
    key : jax.random key
    count : int
        Number of draws.

    Returns
    -------
    state : ChainState
    draws : dict of arrays with leading dimension draw
        ``position`` (draw, dimension) for at most 10,000 dimensions, ``order_parameter`` (draw,
        n·C, n·C), and statistics (draw,) under ArviZ's names: ``lp``, ``energy``, ``diverging``,
        ``tree_depth``, ``reached_max_tree_depth``, ``n_steps``, ``acceptance_rate``,
        ``step_size``.
    """
    if count < 1:
        raise ValueError(f"count of draws must be at least 1, but is {count}")
    adaptation, blocks = _begin_adaptation(state), []
    for first in range(0, count, _BLOCK):
        size = min(_BLOCK, count - first)
        plan = _Plan.of(np.zeros(size), np.zeros(size))
        state, _, block = _advance(model, state, adaptation, key, first, plan)
        blocks.append({name: np.asarray(values)[:size] for name, values in block.items()})
    return state, {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


class _Plan(NamedTuple):
    """Stage of each step (0: draw), whether a window ends there, and the number of steps."""

    stages: np.ndarray
    ends: np.ndarray
    steps: int

    @classmethod
    def of(cls, stages: np.ndarray, ends: np.ndarray) -> _Plan:
        padding = (0, _BLOCK - len(stages))
        padded = (np.pad(values, padding) for values in (stages, ends))
        stages, ends = padded
        return cls(stages.astype(np.int32), ends.astype(bool), len(stages) - padding[1])


class _Adaptation(NamedTuple):
    """State of dual averaging of the step size, and of the estimate of the mass matrix."""

    averaging: Any
    matrix: Any


@jax.jit
def _begin_adaptation(state: ChainState) -> _Adaptation:
    begin_matrix, _, _ = mass_matrix_adaptation(state.inverse_mass_matrix.ndim == 1)
    begin_averaging, _, _ = dual_averaging_adaptation(_ACCEPTANCE)
    dimension = len(state.position)
    return _Adaptation(begin_averaging(state.step_size), begin_matrix(dimension))


@jax.jit
def _advance(
    model: Model,
    state: ChainState,
    adaptation: _Adaptation,
    key: jax.Array,
    first: int,
    plan: _Plan,
) -> tuple[ChainState, _Adaptation, dict[str, jax.Array]]:
    """Up to a block of steps; rows of the draws beyond the plan's steps stay zero."""
    kernel = nuts.build_kernel()
    log_density = jax.jit(model.log_density)  # traced once, not at each of its places in a step
    _, update_matrix, end_window = mass_matrix_adaptation(state.inverse_mass_matrix.ndim == 1)
    restart, update_averaging, average = dual_averaging_adaptation(_ACCEPTANCE)

    def step(index: jax.Array, state: ChainState) -> tuple[ChainState, dict[str, jax.Array]]:
        moved, info = kernel(
            jax.random.fold_in(key, first + index),
            hmc.HMCState(*state[:3]),
            log_density,
            state.step_size,
            state.inverse_mass_matrix,
            MAX_TREE_DEPTH,
        )
        drawn = {
            "order_parameter": model.order_parameter(moved.position),
            "lp": moved.logdensity,
            "energy": info.energy,
            "diverging": info.is_divergent,
            "tree_depth": info.num_trajectory_expansions,
            "reached_max_tree_depth": (info.num_trajectory_expansions >= MAX_TREE_DEPTH)
            & ~info.is_turning
            & ~info.is_divergent,
            "n_steps": info.num_integration_steps,
            "acceptance_rate": info.acceptance_rate,
            "step_size": state.step_size,
        }
        if len(moved.position) <= _KEPT:
            drawn["position"] = moved.position
        return ChainState(*moved, *state[3:]), drawn

    def adapt(
        index: jax.Array, state: ChainState, adaptation: _Adaptation, rate: jax.Array
    ) -> tuple[ChainState, _Adaptation]:
        averaging = update_averaging(adaptation.averaging, rate)
        matrix = jax.lax.cond(
            plan.stages[index] == 2,
            lambda estimate: update_matrix(estimate, state.position),
            lambda estimate: estimate,
            adaptation.matrix,
        )
        averaging, matrix = jax.lax.cond(
            plan.ends[index],
            lambda: (restart(average(averaging)), end_window(matrix)),
            lambda: (averaging, matrix),
        )
        step_size = jnp.exp(averaging.log_step_size)
        state = state._replace(step_size=step_size, inverse_mass_matrix=matrix.inverse_mass_matrix)
        return state, _Adaptation(averaging, matrix)

    def body(index: jax.Array, carry: tuple) -> tuple:
        state, adaptation, rows = carry
        state, drawn = step(index, state)
        rows = {name: rows[name].at[index].set(value) for name, value in drawn.items()}
        state, adaptation = jax.lax.cond(
            plan.stages[index] > 0,
            lambda: adapt(index, state, adaptation, drawn["acceptance_rate"]),
            lambda: (state, adaptation),
        )
        return state, adaptation, rows

    shapes = jax.eval_shape(step, jnp.asarray(0), state)[1]
    rows = {name: jnp.zeros((_BLOCK, *leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
    return jax.lax.fori_loop(0, plan.steps, body, (state, adaptation, rows))


@jax.jit
def _evaluate(model: Model, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(model.log_density)(position)


def _start(model: Model, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A draw from the prior at which the density and its gradient are finite."""
    for attempt in range(100):
        # the steps of the warm-up fold in numbers from 0
        position = model.initial(jax.random.fold_in(key, 2**31 + attempt))
        log_density, gradient = _evaluate(model, position)
        if jnp.isfinite(log_density) and jnp.isfinite(gradient).all():
            return position, log_density, gradient
    raise ValueError(
        "no start of finite density was found in 100 draws from the prior: the kernel plus the "
        "temperature cannot be factorised in float64; raise the temperature or rescale the inputs"
    )
