"""All chains of a run: their random keys, their blocks of draws, and the threads or workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import jax
import numpy as np

from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.action.minima import may_have_several
from pathkernel_core.arrays.backend import Array
from pathkernel_core.contracts.read_only import read_only
from pathkernel_core.contracts.sampler import Model
from pathkernel_core.energy.problem import Problem
from pathkernel_datasets.results.point import Point, PointData
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.labelling import padded_rows
from pathkernel_sampling.chains import chain as nuts
from pathkernel_sampling.chains.evidence import LARGEST_DIMENSION
from pathkernel_sampling.models.models import OrderParameterModel, position_at

State = Mapping[str, np.ndarray]

ForEach = Callable[[str, Sequence[tuple]], Iterator[Any]]
"""Calls a method of :class:`Chains`, by its name, with the arguments of each chain."""


@dataclass(frozen=True, eq=False)
class Chains:
    """Chains of a model at a point of a study, each of which resumes from a stored state.

    A round has ``thin`` draws. Chains begin at ``start`` (dimension,), by default each at a draw
    from the prior.
    """

    model: Model
    point: PointData
    thin: int
    start: np.ndarray | None = None

    share_alone: ClassVar[float] = 1.0
    """Share of the warm-up that each chain makes by itself; what follows all make together."""

    @property
    def test_inputs(self) -> list[Array]:
        """New examples of every test set, as the model predicts for them."""
        return [xi for xi, _ in self.point.data.test_sets.values()]

    def posterior(self, positions: np.ndarray, matrices: np.ndarray) -> dict[str, np.ndarray]:
        """Variables of the group ``posterior``, from positions and U (chain, draw, n·C, n·C)."""
        del positions
        return {"order_parameter": matrices}

    @property
    def keeps_positions(self) -> bool:
        """Whether positions are stored; those of many weights would be gigabytes."""
        return self.model.dimension <= LARGEST_DIMENSION

    def key(self, chain: int, step: int) -> jax.Array:
        """Return the random key of a chain's warm-up (step 0), or of one of its rounds."""
        # by numbers and not by splitting, so that it depends neither on the number of chains nor on
        # where blocks of rounds begin
        chain_key = jax.random.fold_in(jax.random.key(self.point.point.seed), chain)
        return jax.random.fold_in(chain_key, step)

    def warm_up(
        self, chain: int, steps: int, report: Callable[[int], None] = lambda steps_done: None
    ) -> State:
        """Warm up a chain and return its state."""
        key = self.key(chain, 0)
        return nuts.warm_up(self.model, key, steps, report, self.start).to_arrays()

    def warm_up_together(
        self,
        states: Sequence[State],
        steps: int,
        for_each: ForEach,
        report: Callable[[int], None],
    ) -> list[State]:
        """Go on where chains learn from each other, and return their states; others are warm.

        Parameters
        ----------
        states : sequence
            Of all chains, from :meth:`warm_up`.
        steps : int
        for_each : callable
            Calls a method with the arguments of each chain, at once.
        report : callable
            Called with the steps so far of every chain.
        """
        del steps, for_each, report
        return list(states)

    def rounds(
        self, chain: int, arrays: State, first: int, rounds: int
    ) -> tuple[State, dict[str, np.ndarray], list[np.ndarray]]:
        """Draw some rounds of a chain: its state, its draws, and the predictions of each round."""
        state, blocks, predictions = nuts.ChainState.from_arrays(arrays), [], []
        for index in range(first, first + rounds):
            state, draws = nuts.draw_states(
                self.model, state, self.key(chain, index + 1), self.thin
            )
            blocks.append(draws)
            predictions.append(self._predictions(state.position))
        joined = {name: np.concatenate([draws[name] for draws in blocks]) for name in blocks[0]}
        return state.to_arrays(), joined, predictions

    def _predictions(self, position: Array) -> np.ndarray:
        """Mean and variance on all test sets, (2, test_set, example, …), NaN where one is shorter.

        With one output the output's axis is left out, as in the study.
        """
        data, outputs = self.point.data, self.point.network.outputs
        tail = (outputs,) if outputs > 1 else ()
        moments = []
        for inputs in self.test_inputs:
            mean, variance = (
                np.asarray(values).reshape(len(inputs), *tail)
                for values in _predict(self.model, position, inputs)
            )
            moments.append((mean + data.offset, variance))
        return np.stack([padded_rows(moment) for moment in zip(*moments)])


@jax.jit
def _predict(model: Model, position: Array, xi: Array) -> tuple[Array, Array]:
    return model.predict(position, xi)


def chains_at(study: StoredStudy, coordinates: Point, sampler: str, thin: int) -> Chains:
    """Build the chains of a point of a study from its data, which are drawn again.

    Where the action may have several minima, between which chains hardly pass, chains of order
    parameters start at the lowest.
    """
    point, temperature = study.rebuild(coordinates), coordinates.temperature
    xi, labels, network = point.data.xi, point.data.labels, point.network
    model = study.plugins.samplers[sampler].build(
        read_only(xi), read_only(labels), network, temperature
    )
    start = None
    if isinstance(model, OrderParameterModel):
        problem = Problem(xi, labels)
        if may_have_several(problem, network, temperature):
            minimum = minimise_from(problem, network, temperature, None)
            start = None if minimum is None else position_at(network, minimum.factors)
    return Chains(model, point, thin, start)


@lru_cache(maxsize=1)  # a worker draws the same chains again and again
def _last_chains(build: Callable[..., Chains], *arguments: Any) -> Chains:
    return build(*arguments)


def _call_in_worker(of_chains: tuple, method: str, arguments: tuple) -> Any:
    return getattr(_last_chains(*of_chains), method)(*arguments)


class Ensemble:
    """Independent chains of a model, drawn in threads of this process or by workers.

    Draws are made in rounds of ``thin``, each with its own random key, and the predictor is
    evaluated after each. A block is any number of rounds, so that its length may follow the clock.

    A context manager: if it is interrupted, it does not wait for its threads. JAX computes without
    Python's global lock, so that threads are enough on one machine.

    Parameters
    ----------
    count : int
        Number of chains.
    jobs : int
        Number of threads.
    map_parts : callable
        From :meth:`StoredStudy.mapping`: Python's ``map``, for threads, or one of workers.
    of_chains : tuple
        A function that builds the chains, such as :func:`chains_at`, and its arguments.
    """

    def __init__(self, count: int, jobs: int, map_parts: Callable[..., Any], of_chains: tuple):
        build, *arguments = of_chains
        self.chains: Chains = build(*arguments)
        self._count, self._map_parts, self._of_chains = count, map_parts, of_chains
        self._threads = ThreadPoolExecutor(min(jobs, count))

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def warm_up(self, steps: int, report: Callable[[int], None]) -> list[State]:
        """Warm up all chains, and report their steps so far, from 0; return their states."""
        steps_done = [0] * self._count

        def tell(chain: int, steps: int) -> None:
            steps_done[chain] = steps
            report(sum(steps_done))

        report(0)
        calls: list[tuple] = [(chain, steps) for chain in range(self._count)]
        if self._map_parts is map:  # workers report whole chains alone
            calls = [(*call, partial(tell, call[0])) for call in calls]
        states = []
        for chain, state in enumerate(self._for_each("warm_up", calls)):
            states.append(state)
            tell(chain, int(self.chains.share_alone * steps))
        states = self.chains.warm_up_together(
            states, steps, self._for_each, lambda done: report(done * self._count)
        )
        report(steps * self._count)
        return states

    def block(
        self, states: Sequence[State], first: int, rounds: int
    ) -> tuple[list[State], dict[str, dict[str, np.ndarray]]]:
        """Draw some rounds of every chain, from round number ``first`` on.

        Returns the states after the block, and its draws by group and variable, such as
        ``block["posterior"]["order_parameter"]``.
        """
        calls = [(chain, state, first, rounds) for chain, state in enumerate(states)]
        states, draws, predictions = zip(*self._for_each("rounds", calls))
        statistics = {name: np.stack([chain[name] for chain in draws]) for name in draws[0]}
        positions = statistics.pop("position", None)
        posterior = self.chains.posterior(positions, statistics.pop("order_parameter"))
        matrices = posterior["order_parameter"]
        network = self.chains.point.network
        if network.outputs > 1:  # (…, n·C, n·C) → (…, n, C, n, C)
            sizes = (network.n_paths, network.outputs) * 2
            posterior["order_parameter"] = matrices.reshape(*matrices.shape[:2], *sizes)
        means, variances = np.moveaxis(np.array(predictions), 2, 0)
        groups = {
            "posterior": posterior,
            "predictions": {"predictor_mean": means, "predictor_variance": variances},
            "sample_stats": statistics,
        }
        if self.chains.keeps_positions:
            groups["unconstrained_posterior"] = {"position": positions}
        return list(states), groups

    def _for_each(self, method: str, calls: Sequence[tuple]) -> Iterator[Any]:
        if self._map_parts is map:
            return self._threads.map(lambda call: getattr(self.chains, method)(*call), calls)
        return self._map_parts(partial(_call_in_worker, self._of_chains, method), calls)
