"""All chains of a run: their keys, their blocks of draws, and who computes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pathkernel_core.backend import Array
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minima import may_have_several
from pathkernel_core.sampler import Model
from pathkernel_datasets.computing import minimise_from
from pathkernel_datasets.labelling import padded_rows
from pathkernel_datasets.point import Point, PointData
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling import chains as nuts
from pathkernel_sampling.evidence import LARGEST_DIMENSION
from pathkernel_sampling.models import OrderParameterModel, position_at


@dataclass(frozen=True, eq=False)
class Chains:
    """Chains of a model, any of which goes on from where it stands.

    Attributes
    ----------
    model : Model
    point : PointData
        Whose test sets the predictor is evaluated on, and whose seed fixes the draws.
    thin : int
        Draws of a round.
    start : array, shape (dimension,), optional
        Start of every chain. By default each starts from a draw from the prior.
    """

    model: Model
    point: PointData
    thin: int
    start: np.ndarray | None = None

    def key(self, chain: int, step: int) -> jax.Array:
        """Random key of the warm-up of a chain (step 0), or of one of its rounds."""
        of_chain = jax.random.fold_in(jax.random.key(self.point.point.seed), chain)
        return jax.random.fold_in(of_chain, step)

    def warm_up(
        self, chain: int, steps: int, report: Callable[[int], None] = lambda done: None
    ) -> dict[str, np.ndarray]:
        """State of a chain after its warm-up, see :func:`pathkernel_sampling.chains.warm_up`."""
        key = self.key(chain, 0)
        return nuts.warm_up(self.model, key, steps, report, self.start).to_arrays()

    def rounds(
        self, chain: int, arrays: Mapping[str, np.ndarray], first: int, rounds: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[np.ndarray]]:
        """State of a chain after some rounds; their draws, and the predictions after each."""
        state, drawn, predictions = nuts.ChainState.from_arrays(arrays), [], []
        for index in range(first, first + rounds):
            state, draws = nuts.draw(self.model, state, self.key(chain, index + 1), self.thin)
            drawn.append(draws)
            predictions.append(self._predictions(state.position))
        together = {name: np.concatenate([draws[name] for draws in drawn]) for name in drawn[0]}
        return state.to_arrays(), together, predictions

    def _predictions(self, position: Array) -> np.ndarray:
        """Mean and variance on all test sets, (2, test_set, example, …), NaN where one is shorter.

        With one output the output's axis is left out, as in the study.
        """
        data, outputs = self.point.data, self.point.network.outputs
        tail = (outputs,) if outputs > 1 else ()
        predicted = []
        for xi, _ in data.test_sets.values():
            mean, variance = (
                np.asarray(values).reshape(len(xi), *tail)
                for values in _predict(self.model, position, xi)
            )
            predicted.append((mean + data.offset, variance))
        return np.stack([padded_rows(moment) for moment in zip(*predicted)])


@jax.jit
def _predict(model: Model, position: Array, xi: Array) -> tuple[Array, Array]:
    return model.predict(position, xi)


def chains_at(study: StoredStudy, at: Point, sampler: str, thin: int) -> Chains:
    """Chains at a point of a study, whose data are drawn anew."""
    point = study.rebuild(at)
    build = study.plugins.samplers[sampler].build
    model = build(point.data.xi, point.data.labels, point.network, at.temperature)
    start = None
    if isinstance(model, OrderParameterModel):
        start = _lowest_minimum(point)
    return Chains(model, point, thin, start)


def _lowest_minimum(point: PointData) -> np.ndarray | None:
    """Start at the lowest minimum where there may be several, between which chains do not pass."""
    problem, network = PathKernels(point.data.xi, point.data.labels), point.network
    if not may_have_several(problem, network, point.point.temperature):
        return None
    solution = minimise_from(problem, network, point.point.temperature, None)
    return None if solution is None else position_at(network, solution.factors)


_last_chains = functools.lru_cache(maxsize=1)(chains_at)
"""A worker has the same chains again and again."""


def _elsewhere(where: tuple, method: str, arguments: tuple) -> Any:
    return getattr(_last_chains(*where), method)(*arguments)


class Ensemble:
    """Independent chains of a model, which take their steps at the same time.

    Draws are made in rounds of ``thin``, each with a random key of its own, and the predictor is
    evaluated after each. A block is any number of rounds, so that its length may follow the clock.

    To be used as a context: threads are left behind rather than waited for if it is interrupted.
    JAX computes without Python's global lock, so that threads are enough on one machine.

    Parameters
    ----------
    chains : Chains
    count : int
        Number of chains.
    jobs : int
        Chains that are drawn at the same time, in threads.
    each : callable
        A ``map`` that workers compute, see :meth:`StoredStudy.parts`; or the ``map`` of Python.
    where : tuple
        Arguments of :func:`chains_at`, for workers.
    """

    def __init__(
        self, chains: Chains, count: int, jobs: int, each: Callable[..., Any], where: tuple
    ):
        self.chains, self._numbers = chains, range(count)
        self._each, self._where = each, where
        self._threads = ThreadPoolExecutor(min(jobs, count))

    def __enter__(self) -> Ensemble:
        """Return the ensemble itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def warm_up(self, steps: int, report: Callable[[int], None]) -> list[dict[str, np.ndarray]]:
        """States of all chains after the warm-up, as arrays.

        Parameters
        ----------
        steps : int
        report : callable
            Called with the number of steps that all chains together have done, from 0.
        """
        report(0)
        if self._each is not map:
            states = []
            for state in self._for_each("warm_up", [(chain, steps) for chain in self._numbers]):
                states.append(state)
                report(steps * len(states))
            return states
        done = dict.fromkeys(self._numbers, 0)

        def tell(chain: int, steps_done: int) -> None:
            done[chain] = steps_done
            report(sum(done.values()))

        return list(
            self._for_each(
                "warm_up", [(chain, steps, partial(tell, chain)) for chain in self._numbers]
            )
        )

    def block(
        self, states: Sequence[Mapping[str, np.ndarray]], first: int, rounds: int
    ) -> tuple[list[dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]:
        """Draw some rounds of every chain.

        Parameters
        ----------
        states : sequence of mapping of str to array
            Where the chains stand.
        first : int
            Number of the first round, from 0.
        rounds : int

        Returns
        -------
        states : list of mapping of str to array
            After the block.
        block : mapping of str to mapping of str to array
            By group and variable, such as ``block["posterior"]["order_parameter"]``.
        """
        calls = [(chain, states[chain], first, rounds) for chain in self._numbers]
        after, drawn, predictions = zip(*self._for_each("rounds", calls))
        values = {name: np.stack([draws[name] for draws in drawn]) for name in drawn[0]}
        positions = values.pop("position", None)
        matrices = values.pop("order_parameter")
        network = self.chains.point.network
        if network.outputs > 1:  # (…, n·C, n·C) → (…, n, C, n, C)
            matrices = matrices.reshape(
                *matrices.shape[:2], *(network.n_paths, network.outputs) * 2
            )
        means, variances = np.moveaxis(np.array(predictions), 2, 0)
        groups = {
            "posterior": {"order_parameter": matrices},
            "predictions": {"predictor_mean": means, "predictor_variance": variances},
            "sample_stats": values,
        }
        if self.chains.model.dimension <= LARGEST_DIMENSION:  # others would be gigabytes of weights
            groups["unconstrained_posterior"] = {"position": positions}
        return list(after), groups

    def _for_each(self, method: str, calls: Sequence[tuple]) -> Iterator[Any]:
        if self._each is map:
            return self._threads.map(lambda call: getattr(self.chains, method)(*call), calls)
        return self._each(partial(_elsewhere, self._where, method), calls)
