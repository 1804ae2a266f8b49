"""All chains of a run: their keys, their blocks of draws, and the threads that they run in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from pathkernel_core.backend import Array
from pathkernel_core.sampler import Model
from pathkernel_datasets.labelling import padded_rows
from pathkernel_datasets.point import PointData
from pathkernel_sampling import chains as nuts
from pathkernel_sampling.evidence import LARGEST_DIMENSION


class Ensemble:
    """Independent chains of a model, which take their steps at the same time.

    Draws are made in rounds of ``thin``, each with a random key of its own, and the predictor is
    evaluated after each. A block is any number of rounds, so that its length may follow the clock.

    To be used as a context: threads are left behind rather than waited for if it is interrupted.
    JAX computes without Python's global lock, so that threads are enough.

    Parameters
    ----------
    model : Model
    point : PointData
        Whose test sets the predictor is evaluated on, and whose seed fixes the draws.
    chains : int
    thin : int
        Draws of a round.
    jobs : int
        Chains that are drawn at the same time.
    """

    def __init__(self, model: Model, point: PointData, chains: int, thin: int, jobs: int):
        self.model, self.point, self.thin = model, point, thin
        self._keys = [jax.random.fold_in(jax.random.key(point.at.seed), c) for c in range(chains)]
        self._threads = ThreadPoolExecutor(min(jobs, chains))

    def __enter__(self) -> Ensemble:
        """Return the ensemble itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def warm_up(self, steps: int, report: Callable[[int], None]) -> list[nuts.ChainState]:
        """States of all chains after the warm-up.

        Parameters
        ----------
        steps : int
        report : callable
            Called with the number of steps that all chains together have done, from 0.
        """
        done = [0] * len(self._keys)

        def one(chain: int) -> nuts.ChainState:
            def tell(steps_done: int) -> None:
                done[chain] = steps_done
                report(sum(done))

            key = jax.random.fold_in(self._keys[chain], 0)
            return nuts.warm_up(self.model, key, steps, tell)

        report(0)
        return self._for_each(one, range(len(self._keys)))

    def block(
        self, states: Sequence[nuts.ChainState], first: int, rounds: int
    ) -> tuple[list[nuts.ChainState], dict[str, dict[str, np.ndarray]]]:
        """Draw some rounds of every chain.

        Parameters
        ----------
        states : sequence of ChainState
            Where the chains stand.
        first : int
            Number of the first round, from 0.
        rounds : int

        Returns
        -------
        states : list of ChainState
            After the block.
        block : mapping of str to mapping of str to array
            As :meth:`pathkernel_sampling.sample_store.SampleStore.append` takes it.
        """

        def one(chain: int) -> tuple[nuts.ChainState, dict[str, np.ndarray], list[np.ndarray]]:
            state, drawn, predictions = states[chain], [], []
            for index in range(first, first + rounds):
                key = jax.random.fold_in(self._keys[chain], index + 1)
                state, draws = nuts.draw(self.model, state, key, self.thin)
                drawn.append(draws)
                predictions.append(self._predictions(state.position))
            together = {name: np.concatenate([draws[name] for draws in drawn]) for name in drawn[0]}
            return state, together, predictions

        states, drawn, predictions = zip(*self._for_each(one, range(len(self._keys))))
        values = {name: np.stack([draws[name] for draws in drawn]) for name in drawn[0]}
        positions = values.pop("position", None)
        matrices = values.pop("order_parameter")
        network = self.point.network
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
        if self.model.dimension <= LARGEST_DIMENSION:  # others would be gigabytes of weights
            groups["unconstrained_posterior"] = {"position": positions}
        return list(states), groups

    def _for_each(self, function: Callable, items: Iterable) -> list[Any]:
        return list(self._threads.map(function, items))

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
