"""One Markov chain of the no-U-turn sampler: warm-up, draws, and a state that can be stored.

One compiled loop serves warm-up and draws, for any number of steps, so that a model is compiled
once. Step i of a call uses the key ``fold_in(key, i)``: a chain that resumes from a stored state
with the same keys gives the same draws bit for bit.
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

from pathkernel_core.contracts.sampler import Model

MAX_TREE_DEPTH = 10

_ACCEPTANCE = 0.8  # target rate of the step size
_BLOCK = 128  # steps of one call of the compiled loop
_STEPS_PER_DIMENSION = 10  # of a warm-up that can tell a dense mass matrix from noise
_LARGEST_POSITION = 10_000  # dimensions; positions of more would fill the memory

Draws = dict[str, np.ndarray]
Adaptation = tuple[Any, Any]  # BlackJAX's states of dual averaging and of the mass matrix


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
        """Return the fields as NumPy arrays, by name."""
        return {name: np.asarray(value) for name, value in self._asdict().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> ChainState:
        """Return the state of the arrays from :meth:`to_arrays`."""
        return cls(*(jnp.asarray(np.asarray(arrays[name])) for name in cls._fields))


def warm_up(
    model: Model,
    key: jax.Array,
    steps: int,
    report: Callable[[int], None] = lambda steps_done: None,
    position: np.ndarray | None = None,
) -> ChainState:
    """Start a chain and adapt its step size and mass matrix.

    Parameters
    ----------
    model : Model
    key : jax.random key
    steps : int
        Steps of Stan's windowed adaptation. The mass matrix is dense if there are at least 10 of
        them per dimension: from fewer its estimate would be nearly singular.
    report : callable
        Called with the number of steps so far, after every block of them.
    position : array, shape (dimension,), optional
        Start of the chain. By default a draw from the prior.

    Raises
    ------
    ValueError
        If no start of finite density is found.
    """
    start = _start(model, key) if position is None else jnp.asarray(position)
    dense = steps >= _STEPS_PER_DIMENSION * model.dimension
    matrix = jnp.eye(model.dimension) if dense else jnp.ones(model.dimension)
    state = ChainState(start, *_evaluate(model, start), jnp.ones(()), matrix)
    adaptation = _begin_adaptation(state)
    schedule = np.asarray(build_schedule(steps), dtype=np.int32)
    schedule[:, 0] += 1  # 0 is a draw
    for first in range(0, steps, _BLOCK):
        block = schedule[first : first + _BLOCK]
        state, adaptation, _ = _advance(model, state, adaptation, key, first, *_pad_schedule(block))
        jax.block_until_ready(state)  # or all steps would be reported at once
        report(first + len(block))
    # its average over the last window: the step size of a single step still jumps
    averaging, _ = adaptation
    state = state._replace(step_size=jnp.exp(averaging.log_step_size_avg))
    # with the types of a stored state, which decide whether code is compiled again
    return ChainState.from_arrays(state.to_arrays())


def draw_states(
    model: Model, state: ChainState, key: jax.Array, count: int
) -> tuple[ChainState, Draws]:
    """Draw from the posterior.

    Parameters
    ----------
    model : Model
    state : ChainState
        From :func:`warm_up` or the draws before.
    key : jax.random key
    count : int
        Number of draws, at least 1.

    Returns
    -------
    state : ChainState
        After the last draw.
    draws : dict of arrays with leading dimension draw
        ``position`` (draw, dimension) for at most 10,000 dimensions, ``order_parameter`` (draw,
        n·C, n·C), and statistics (draw,) under ArviZ's names: ``lp``, ``energy``, ``diverging``,
        ``tree_depth``, ``reached_max_tree_depth``, ``n_steps``, ``acceptance_rate``,
        ``step_size``.
    """
    adaptation, blocks = _begin_adaptation(state), []  # unused, but an argument of the one program
    for first in range(0, count, _BLOCK):
        plan, size = _pad_schedule(np.zeros((min(_BLOCK, count - first), 2), dtype=np.int32))
        state, _, block = _advance(model, state, adaptation, key, first, plan, size)
        blocks.append({name: np.asarray(values)[:size] for name, values in block.items()})
    return state, {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _pad_schedule(schedule: np.ndarray) -> tuple[np.ndarray, int]:
    """Schedule of a block, padded to its full length, and the number of its steps.

    It holds the stage of each step (0: draw, 1: adapt the step size, 2: the mass matrix too), and
    whether a window ends there.
    """
    steps = len(schedule)
    return np.pad(schedule.astype(np.int32), ((0, _BLOCK - steps), (0, 0))), steps


@jax.jit
def _begin_adaptation(state: ChainState) -> Adaptation:
    begin_matrix, _, _ = mass_matrix_adaptation(state.inverse_mass_matrix.ndim == 1)
    begin_averaging, _, _ = dual_averaging_adaptation(_ACCEPTANCE)
    return begin_averaging(state.step_size), begin_matrix(len(state.position))


@jax.jit
def _advance(
    model: Model,
    state: ChainState,
    adaptation: Adaptation,
    key: jax.Array,
    first: int,
    schedule: np.ndarray,
    steps: int,
) -> tuple[ChainState, Adaptation, dict[str, jax.Array]]:
    """Up to a block of steps; rows of the draws beyond them are zero."""
    kernel = nuts.build_kernel()
    log_density = jax.jit(model.log_density)  # traced once, although a step calls it in many lines
    _, update_matrix, end_window = mass_matrix_adaptation(state.inverse_mass_matrix.ndim == 1)
    restart, update_averaging, average = dual_averaging_adaptation(_ACCEPTANCE)

    def step(index: jax.Array, state: ChainState) -> tuple[ChainState, dict[str, jax.Array]]:
        end, info = kernel(
            jax.random.fold_in(key, first + index),
            hmc.HMCState(*state[:3]),
            log_density,
            state.step_size,
            state.inverse_mass_matrix,
            MAX_TREE_DEPTH,
        )
        row = {
            "order_parameter": model.order_parameter(end.position),
            "lp": end.logdensity,
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
        if len(end.position) <= _LARGEST_POSITION:
            row["position"] = end.position
        return ChainState(*end, *state[3:]), row

    def adapt(
        index: jax.Array, state: ChainState, adaptation: Adaptation, rate: jax.Array
    ) -> tuple[ChainState, Adaptation]:
        stage, is_window_end = schedule[index]
        averaging, matrix = adaptation
        averaging = update_averaging(averaging, rate)
        matrix = jax.lax.cond(
            stage == 2,
            lambda estimate: update_matrix(estimate, state.position),
            lambda estimate: estimate,
            matrix,
        )
        # another mass matrix makes other lengths of steps: dual averaging begins again from its
        # mean, and the covariance from nothing, so that early positions do not stay in it
        averaging, matrix = jax.lax.cond(
            is_window_end > 0,
            lambda: (restart(average(averaging)), end_window(matrix)),
            lambda: (averaging, matrix),
        )
        step_size = jnp.exp(averaging.log_step_size)
        state = state._replace(step_size=step_size, inverse_mass_matrix=matrix.inverse_mass_matrix)
        return state, (averaging, matrix)

    def body(index: jax.Array, carry: tuple) -> tuple:
        state, adaptation, rows = carry
        state, row = step(index, state)
        rows = {name: rows[name].at[index].set(value) for name, value in row.items()}
        state, adaptation = jax.lax.cond(
            schedule[index, 0] > 0,
            lambda: adapt(index, state, adaptation, row["acceptance_rate"]),
            lambda: (state, adaptation),
        )
        return state, adaptation, rows

    # a loop to a number that is data; a scan would be compiled for every number of steps
    shapes = jax.eval_shape(step, jnp.asarray(0), state)[1]
    rows = {name: jnp.zeros((_BLOCK, *leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
    return jax.lax.fori_loop(0, steps, body, (state, adaptation, rows))


@jax.jit
def _evaluate(model: Model, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(model.log_density)(position)


def _start(model: Model, key: jax.Array) -> jax.Array:
    """Draw from the prior until density and gradient are finite."""
    for attempt in range(100):
        # the steps of the warm-up fold in numbers from 0
        position = model.initial(jax.random.fold_in(key, 2**31 + attempt))
        log_density, gradient = _evaluate(model, position)
        if jnp.isfinite(log_density) and jnp.isfinite(gradient).all():
            return position
    raise ValueError(
        "no start of finite density was found in 100 draws from the prior: the kernel plus the "
        "temperature cannot be factorised in float64; raise the temperature or rescale the inputs"
    )
