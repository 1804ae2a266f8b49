"""Sampling a point of a study into the study's store, or going on where a run stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arviz_base
import blackjax
import jax
import numpy as np
import xarray as xr

from pathkernel_core.attention import attentioned_inputs
from pathkernel_core.backend import Array
from pathkernel_core.hooks import Plugins, UnknownNameError, load_plugins, unknown_name
from pathkernel_core.network import Network
from pathkernel_core.task import Examples
from pathkernel_datasets.selection import Selection, number
from pathkernel_datasets.store import StoreError, check_store, open_store
from pathkernel_datasets.study import Study, versions
from pathkernel_sampling import chains as nuts
from pathkernel_sampling.diagnostics import minimum_bulk_ess
from pathkernel_sampling.models import Model
from pathkernel_sampling.sample_store import SampleStore, group_name

DRAWS = 1000
_BLOCK_SECONDS = 3.0  # what a kill may cost
_UNLIMITED = 2**40
_LEAST_DRAWS = 100  # of a chain before an estimate of the effective sample size decides anything
_RECORDED_VERSIONS = ("pathkernel", "numpy", "jax", "jaxlib", "blackjax")


@dataclass(frozen=True)
class SampleProgress:
    """Where a run stands.

    Attributes
    ----------
    done : int
        Draws of each chain so far.
    total : int or None
        Draws to be made; where an effective sample size decides, its extrapolation.
    doing : str
        What happens now.
    ess : float
        Smallest bulk effective sample size of U's entries so far, over all chains; NaN at first.
    divergences : int
        Divergent trajectories so far, in all chains.
    """

    done: int
    total: int | None
    doing: str
    ess: float = np.nan
    divergences: int = 0


@dataclass(frozen=True)
class Point:
    """A point of a study that is sampled: its network, temperature, and data along the paths.

    Attributes
    ----------
    network : Network
    temperature : float
        Gibbs temperature T.
    seed : int
        Seed of data, heads and chains.
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples.
    labels : array, shape (P,) or (P, C)
    test_sets : mapping of str to (xi, labels)
    """

    network: Network
    temperature: float
    seed: int
    xi: np.ndarray
    labels: np.ndarray
    test_sets: Mapping[str, tuple[np.ndarray, np.ndarray]]


def sample_study(
    store: str | os.PathLike,
    sampler: str,
    *,
    width: float,
    temperature: float | None = None,
    seed: int | None = None,
    draws: int | None = None,
    chains: int = 4,
    warm_up: int = 500,
    thin: int = 10,
    target_ess: float | None = None,
    jobs: int = 1,
    plugins: Plugins | None = None,
    report: Callable[[SampleProgress], None] = lambda progress: None,
) -> str:
    """Sample the posterior at a point of a study, or go on where an earlier run stopped.

    The same call gives the same draws bit for bit, however often it is interrupted. More
    ``draws``, or a larger ``target_ess``, extend what is there.

    Parameters
    ----------
    store : path
        Result store of the study.
    sampler : str
        ``"order-parameter"``, ``"collapsed"``, ``"weights"``, or what plugins add.
    width : float
        Width N, one of the study's.
    temperature : float, optional
        Temperature T, one of the study's; by default that of largest log evidence at this width.
    seed : int, optional
        Seed of data and heads, one of the study's, and of the chains; by default the study's first.
    draws : int, optional
        Draws of each chain after the warm-up, rounded up to a multiple of ``thin``. By default
        1000, or with ``target_ess`` as many as it takes.
    chains : int
        Independent chains.
    warm_up : int
        Steps in which step size and mass matrix adapt, which are not kept.
    thin : int
        The predictor is evaluated, and stored, at every ``thin``-th draw.
    target_ess : float, optional
        Stop once the bulk effective sample size of every entry of U, over all chains, reaches this.
        It is looked at as blocks are written, so where exactly the run stops depends on the
        machine's speed; the draws do not.
    jobs : int
        Chains that are drawn at the same time, in threads.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    report : callable
        Called with a SampleProgress before every step.

    Returns
    -------
    str
        Group of the run, for :func:`pathkernel_sampling.sample_store.open_samples`.

    Raises
    ------
    StoreError
        If the store is damaged, lacks the point, was made from other data, or holds draws at this
        point with other settings.
    UnknownNameError
        If no plugin provides that sampler or the study's task.
    ValueError
        If a number is out of range.
    """
    numbers = {"chains": chains, "warm-up": warm_up, "thin": thin, "jobs": jobs}
    for name, value in (numbers | ({} if draws is None else {"draws": draws})).items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
    if target_ess is not None and not target_ess > 0:
        raise ValueError(f"target-ess must be positive, but is {target_ess}")
    plugins = load_plugins() if plugins is None else plugins
    if sampler not in plugins.samplers:
        raise UnknownNameError(unknown_name("sampler", sampler, plugins.samplers))
    store = Path(store)
    study = check_store(store)
    dataset = open_store(store)
    width, temperature, seed = _grid_point(dataset, width, temperature, seed)
    group = group_name(sampler, seed, temperature, width)
    settings = {
        "sampler": sampler,
        "seed": seed,
        "temperature": temperature,
        "width": width,
        "chains": chains,
        "warm_up": warm_up,
        "thin": thin,
    }
    if draws is None:
        draws = DRAWS if target_ess is None else _UNLIMITED
    goal = _Goal(-(-draws // thin) * thin, target_ess)
    samples = SampleStore.resume(store, group, settings)
    if samples is not None and goal.reached(*_so_far(samples)):
        return group
    report(SampleProgress(0, None, "data and attention"))
    point = _rebuild(study, width, temperature, seed, plugins)
    build = plugins.samplers[sampler].build
    model = build(point.xi, point.labels, point.network, temperature)
    with _threads(min(jobs, chains)) as each_chain:
        run = _Run(model, point, chains, thin, each_chain)
        if samples is None:
            samples = _begin(run, store, group, settings, dataset, report)
        _extend(run, samples, goal, report)
    return group


@dataclass(frozen=True)
class _Goal:
    """When a run is done."""

    draws: int
    ess: float | None

    def reached(self, draws: int, ess: float) -> bool:
        if self.ess is not None and draws >= _LEAST_DRAWS and ess >= self.ess:
            return True
        return draws >= self.draws

    def total(self, draws: int, ess: float) -> int | None:
        """Draws after which it is expected to be reached."""
        expected = self.draws
        if self.ess is not None and ess > 0:
            expected = min(expected, max(_LEAST_DRAWS, int(np.ceil(draws * self.ess / ess))))
        return None if expected == _UNLIMITED else max(expected, draws)


class _Run:
    """Chains of a model: their keys, and how all of them take a step at the same time.

    Draws are made in rounds of ``thin``, each with a random key of its own, and the predictor is
    evaluated after each. A block is any number of rounds, so that its length may follow the clock.
    """

    def __init__(
        self,
        model: Model,
        point: Point,
        chains: int,
        thin: int,
        each_chain: Callable[[Callable, Iterable], list],
    ):
        self.model, self.point, self.thin = model, point, thin
        self._each_chain = each_chain
        self._keys = [jax.random.fold_in(jax.random.key(point.seed), c) for c in range(chains)]

    def warm_up(self, steps: int, report: Callable[[SampleProgress], None]) -> list:
        """States of all chains after the warm-up."""
        chains = len(self._keys)
        finished = [0]

        def one(key: jax.Array) -> Any:
            state = nuts.warm_up(self.model, jax.random.fold_in(key, 0), steps)
            finished[0] += 1
            report(SampleProgress(0, None, _warming_up(finished[0], chains)))
            return state

        report(SampleProgress(0, None, _warming_up(0, chains)))
        return self._each_chain(one, self._keys)

    def block(self, states: Sequence, first: int, rounds: int) -> tuple[list, dict]:
        """States after some rounds from number ``first``, and the block (see SampleStore)."""

        def one(chain: int) -> tuple[Any, dict, list]:
            state, drawn, predictions = states[chain], [], []
            for index in range(first, first + rounds):
                key = jax.random.fold_in(self._keys[chain], index + 1)
                state, draws = nuts.draw(self.model, state, key, self.thin)
                drawn.append(draws)
                predictions.append(self._predictions(state.position))
            together = {name: np.concatenate([draws[name] for draws in drawn]) for name in drawn[0]}
            return state, together, predictions

        states, drawn, predictions = zip(*self._each_chain(one, range(len(self._keys))))
        values = {name: np.stack([draws[name] for draws in drawn]) for name in drawn[0]}
        del values["position"]  # gigabytes of weights, and U and the predictor are kept
        matrices = values.pop("order_parameter")
        if self.point.network.outputs > 1:  # (…, n·C, n·C) → (…, n, C, n, C)
            shape = (self.point.network.n_paths, self.point.network.outputs) * 2
            matrices = matrices.reshape(*matrices.shape[:2], *shape)
        means, variances = np.moveaxis(np.array(predictions), 2, 0)
        return list(states), {
            "posterior": {"order_parameter": matrices},
            "predictions": {"predictor_mean": means, "predictor_variance": variances},
            "sample_stats": values,
        }

    def _predictions(self, position: Array) -> np.ndarray:
        """Mean and variance on all test sets, (2, test_set, example, …), NaN where one is shorter.

        With one output the output's axis is left out, as in the study.
        """
        tests = self.point.test_sets.values()
        longest = max(len(xi) for xi, _ in tests)
        tail = (self.point.network.outputs,) if self.point.network.outputs > 1 else ()
        table = np.full((2, len(tests), longest, *tail), np.nan)
        for index, (xi, _) in enumerate(tests):
            for row, values in zip(table, _predict(self.model, position, xi)):
                row[index, : len(xi)] = np.asarray(values).reshape(len(xi), *tail)
        return table


@jax.jit
def _predict(model: Model, position: Array, xi: Array) -> tuple[Array, Array]:
    return model.predict(position, xi)


def _begin(
    run: _Run,
    store: Path,
    group: str,
    settings: Mapping[str, Any],
    dataset: xr.Dataset,
    report: Callable[[SampleProgress], None],
) -> SampleStore:
    """Warm up, and make the run's groups."""
    start = time.monotonic()
    states = run.warm_up(settings["warm_up"], report)
    _, example = run.block(states, 0, 1)
    outputs = ("output",) if run.point.network.outputs > 1 else ()
    dual = ("output_dual",) if outputs else ()
    attributes = {
        "title": f"Posterior of {dataset.attrs['task']}, sampler {settings['sampler']}",
        "inference_library": "blackjax",
        "inference_library_version": blackjax.__version__,
        "creation_library": "pathkernel",
        "arviz_base_version": arviz_base.__version__,
        "max_tree_depth": nuts.MAX_TREE_DEPTH,
        "package_versions": versions(_RECORDED_VERSIONS),
    }
    return SampleStore.create(
        store,
        group,
        settings,
        attributes,
        {name: variable.variable for name, variable in dataset.coords.items()},
        {
            "order_parameter": ("path", *outputs, "path_dual", *dual),
            "predictor_mean": ("test_set", "example", *outputs),
            "predictor_variance": ("test_set", "example", *outputs),
        },
        example,
        np.asarray(run.point.labels),
        [state.to_arrays() for state in states],
        time.monotonic() - start,
    )


def _extend(
    run: _Run, samples: SampleStore, goal: _Goal, report: Callable[[SampleProgress], None]
) -> None:
    """Draw and write blocks until the goal is reached."""
    states = [nuts.ChainState.from_arrays(arrays) for arrays in samples.states()]
    matrices = [samples.read("posterior", "order_parameter")]
    divergences = int(samples.read("sample_stats", "diverging").sum())
    done, looked, ess, rounds = samples.draws_done, 0, np.nan, 1
    clock = time.monotonic() - samples.seconds
    while True:
        if done >= 1.05 * looked:  # on average this costs little, however long the run
            matrices = [np.concatenate(matrices, axis=1)]
            ess, looked = minimum_bulk_ess(matrices[0]), done
        total = goal.total(done, ess)
        if goal.reached(done, ess):
            report(SampleProgress(done, done, "complete", ess, divergences))
            return
        report(SampleProgress(done, total, "drawing", ess, divergences))
        rounds = min(rounds, -(-(goal.draws - done) // run.thin))
        start = time.monotonic()
        states, block = run.block(states, done // run.thin, rounds)
        took = time.monotonic() - start
        arrays = [state.to_arrays() for state in states]
        samples.append(block, arrays, time.monotonic() - clock)
        matrices.append(block["posterior"]["order_parameter"])
        divergences += int(block["sample_stats"]["diverging"].sum())
        done += rounds * run.thin
        # compilation makes the first block slow: grow from there, at most twofold
        rounds = max(1, min(2 * rounds, int(rounds * _BLOCK_SECONDS / took)))


def _so_far(samples: SampleStore) -> tuple[int, float]:
    return samples.draws_done, minimum_bulk_ess(samples.read("posterior", "order_parameter"))


def _grid_point(
    dataset: xr.Dataset, width: float, temperature: float | None, seed: int | None
) -> tuple[float, float, int]:
    """Width, temperature and seed as the store has them."""
    index = _nearest(dataset, "width", width, "width", "--widths")
    if not float(width).is_integer():
        raise ValueError(f"only whole widths can be sampled, but width is {width:g}")
    if temperature is None:
        temperature = Selection(dataset).temperatures[index]
    at = _nearest(dataset, "temperature", temperature, "temperature", "--temperatures")
    seeds = dataset["seed"].values
    if seed is None:
        seed = seeds[0]
    _nearest(dataset, "seed", seed, "seed", "--seeds")
    values = dataset["width"].values[index], dataset["temperature"].values[at]
    return float(values[0]), float(values[1]), int(seed)


def _nearest(dataset: xr.Dataset, name: str, value: float, words: str, flag: str) -> int:
    values = dataset[name].values
    found = np.flatnonzero(np.isclose(values, value, rtol=1e-9, atol=0))
    if not found.size:
        raise StoreError(
            f"the store has no {words} {value:g}; it has {', '.join(map(number, values))}. Run "
            f"the study with it in {flag}, into another store"
        )
    return int(found[0])


def _rebuild(
    study: Mapping[str, Any], width: float, temperature: float, seed: int, plugins: Plugins
) -> Point:
    """Data and network of a study from its identity, which must still give the same study."""
    task = plugins.task(study["task"])(**study["options"])
    grid = (study["widths"], study["temperatures"], study["seeds"])
    identity = Study(task, *grid, study["backend"], study["dtype"]).identity()
    different = sorted(key for key in identity if identity[key] != study.get(key))
    if different:
        lines = "; ".join(
            f"{key}: the store has {study.get(key)}, here it is {identity[key]}"
            for key in different
        )
        raise StoreError(
            f"the study was made from something else than what is installed here ({lines}); run "
            "it again into another store"
        )
    realisation = task.realise(seed)

    def along_paths(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
        xi = attentioned_inputs(examples.inputs, realisation.layers, realisation.readout)
        labels = examples.labels
        return xi, labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels

    xi, labels = along_paths(realisation.train)
    return Point(
        Network(realisation.heads, width, task.variances, realisation.outputs),
        temperature,
        seed,
        xi,
        labels,
        {name: along_paths(examples) for name, examples in realisation.test_sets.items()},
    )


class _threads:
    """Threads that work on all chains, left behind rather than waited for if interrupted.

    JAX computes without Python's global lock, so that threads are enough.
    """

    def __init__(self, jobs: int):
        self._pool = ThreadPoolExecutor(jobs)

    def __enter__(self) -> Callable[[Callable, Iterable], list]:
        return lambda function, items: list(self._pool.map(function, items))

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _warming_up(finished: int, chains: int) -> str:
    return f"warm-up, {finished} of {chains} chains"
