"""Sampling a point of a study into the study's store, or going on where a run stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import arviz_base
import blackjax
import numpy as np
import xarray as xr

from pathkernel_core.hooks import Plugins, UnknownNameError, unknown_name
from pathkernel_core.progress import Progress, Report
from pathkernel_core.sampler import Model
from pathkernel_datasets.point import Point
from pathkernel_datasets.selection import number
from pathkernel_datasets.stored import StoredStudy, compute_result
from pathkernel_datasets.study import versions
from pathkernel_sampling import chains as nuts
from pathkernel_sampling.diagnostics import minimum_bulk_ess
from pathkernel_sampling.ensemble import Chains, Ensemble, chains_at
from pathkernel_sampling.evidence import LARGEST_DIMENSION, Evidence, log_evidence
from pathkernel_sampling.results import Samples
from pathkernel_sampling.sample_layout import labelled_block
from pathkernel_sampling.sample_store import SampleRun, group_name

DRAWS = 1000
_BLOCK_SECONDS = 3.0  # what a kill may cost
_LEAST_DRAWS = 100  # of a chain before an estimate of the effective sample size decides anything
_RECORDED_VERSIONS = ("pathkernel", "numpy", "jax", "jaxlib", "blackjax")


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
    executor: Executor | None = None,
    plugins: Plugins | None = None,
    report: Report | None = None,
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
        Temperature T, one of the study's; by default as for :class:`Selection`.
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
    executor : concurrent.futures.Executor, optional
        Workers that draw the chains, instead of threads, with the plugins installed there.
    plugins : Plugins, optional
        Where tasks and samplers are looked up; by default those installed.
    report : callable, optional
        Called with a Progress before every step; by default as for
        :func:`pathkernel_datasets.stored.compute_result`.

    Returns
    -------
    str
        Group of the run, for :func:`pathkernel_datasets.draws.open_run`.

    Raises
    ------
    StoreError
        If the store is damaged, lacks the point, was made from other data, holds draws at this
        point with other settings, or another process writes into it.
    UnknownNameError
        If no plugin provides that sampler or the study's task.
    ValueError
        If a number is out of range.
    """
    wanted = Samples(
        widths=(width,),
        temperature=temperature,
        seed=seed,
        sampler=sampler,
        draws=draws,
        chains=chains,
        warm_up=warm_up,
        target_ess=target_ess,
        thin=thin,
        jobs=jobs,
    )
    (at,) = wanted.wanted(
        compute_result(wanted, store, executor=executor, plugins=plugins, report=report)
    )
    return group_name(sampler, at)


def sample_point(
    study: StoredStudy, at: Point, wanted: Samples, report: Report, each: Callable[..., Any] = map
) -> None:
    """Sample a point of a study, see :func:`sample_study`; draws are left to be published.

    The settings are taken as checked, see :func:`check_settings`.

    Parameters
    ----------
    study : StoredStudy
    at : Point
    wanted : Samples
        Sampler, chains and draws.
    report : callable
    each : callable
        From :meth:`StoredStudy.parts`, if workers are to draw the chains.
    """
    group = group_name(wanted.sampler, at)
    settings = {
        "sampler": wanted.sampler,
        **dataclasses.asdict(at),
        "chains": wanted.chains,
        "warm_up": wanted.warm_up,
        "thin": wanted.thin,
    }
    draws, thin = wanted.draws, wanted.thin
    if draws is None and wanted.target_ess is None:
        draws = DRAWS
    goal = _Goal(None if draws is None else -(-draws // thin) * thin, wanted.target_ess)

    def tell(done: int, total: int | None, doing: str, **figures: float) -> None:
        report(Progress(done, total, f"N = {number(at.width)}: {doing}", figures))

    samples = SampleRun(study, group, settings)
    if samples.is_published and goal.reached(*_so_far(samples)):
        samples.remove_blocks()  # left by a process that was killed
        return
    tell(0, None, "data and attention")
    where = (study, at, wanted.sampler, thin)
    chains = chains_at(*where)
    with Ensemble(chains, wanted.chains, wanted.jobs, each, where) as ensemble:
        _draw(ensemble, samples, goal, tell, partial(_labelled, study, chains, settings))
    samples.finish(*_evidence(chains.model, samples, at.seed))


def check_settings(study: StoredStudy, at: Point, wanted: Samples) -> None:
    """Check that a point can be sampled as is wanted.

    Raises
    ------
    UnknownNameError
        If no plugin provides that sampler.
    ValueError
        If a number is out of range.
    """
    samplers = study.plugins.samplers
    for name in ("chains", "warm_up", "thin", "jobs", "draws"):
        value = getattr(wanted, name)
        if value is not None and value < 1:
            raise ValueError(f"{name.replace('_', '-')} must be at least 1, but is {value}")
    if wanted.target_ess is not None and not wanted.target_ess > 0:
        raise ValueError(f"target-ess must be positive, but is {wanted.target_ess}")
    if wanted.sampler not in samplers:
        raise UnknownNameError(unknown_name("sampler", wanted.sampler, samplers))
    if not at.width.is_integer():
        raise ValueError(f"only whole widths can be sampled, but width is {at.width:g}")


@dataclass(frozen=True)
class _Goal:
    """When a run is done: after so many draws, or at an effective sample size if that is first."""

    draws: int | None
    ess: float | None

    def reached(self, draws: int, ess: float) -> bool:
        if self.ess is not None and draws >= _LEAST_DRAWS and ess >= self.ess:
            return True
        return self.draws is not None and draws >= self.draws

    def total(self, draws: int, ess: float) -> int | None:
        """Draws after which it is expected to be reached; None if nothing tells yet."""
        expected = [] if self.draws is None else [self.draws]
        if self.ess is not None and ess > 0:
            expected.append(max(_LEAST_DRAWS, int(np.ceil(draws * self.ess / ess))))
        return max(min(expected), draws) if expected else None


def _labelled(
    study: StoredStudy,
    chains: Chains,
    settings: Mapping[str, Any],
    values: Mapping[str, Mapping[str, np.ndarray]],
    states: Sequence[Mapping[str, np.ndarray]],
    first: int,
    seconds: float,
) -> xr.DataTree:
    """A block of draws with its labels."""
    attributes = {
        "title": f"Posterior of {study.dataset.attrs['task']}, sampler {settings['sampler']}",
        "inference_library": "blackjax",
        "inference_library_version": blackjax.__version__,
        "creation_library": "pathkernel",
        "arviz_base_version": arviz_base.__version__,
        "max_tree_depth": nuts.MAX_TREE_DEPTH,
        "package_versions": json.dumps(versions(_RECORDED_VERSIONS)),
    }
    return labelled_block(
        values,
        states,
        first=first,
        seconds=seconds,
        settings=settings,
        attributes=attributes,
        study=study.dataset,
        labels=np.asarray(chains.point.data.labels),
    )


def _draw(
    ensemble: Ensemble,
    samples: SampleRun,
    goal: _Goal,
    tell: Callable[..., None],
    labelled: Callable[..., xr.DataTree],
) -> None:
    """Warm up unless there are draws; then draw and write blocks until the goal is reached."""
    done, thin = samples.draws_done, ensemble.chains.thin
    clock, looked, ess, rounds = time.monotonic(), 0, np.nan, 1
    if done:
        clock -= samples.seconds
        states = samples.states()
        matrices = [samples.read("posterior", "order_parameter")]
        divergences = int(samples.read("sample_stats", "diverging").sum())
    else:
        chains, steps = samples.settings["chains"], samples.settings["warm_up"]
        states = ensemble.warm_up(steps, lambda warm: tell(warm, chains * steps, "warm-up"))
        matrices, divergences = [], 0
    while True:
        if matrices and done >= 1.05 * looked:  # on average this costs little, however long the run
            matrices = [np.concatenate(matrices, axis=1)]
            ess, looked = minimum_bulk_ess(matrices[0]), done
        total = goal.total(done, ess)
        numbers = {"min ESS": ess, "divergences": divergences}
        if done and goal.reached(done, ess):
            tell(done, done, "complete", **numbers)
            return
        if done:
            tell(done, total, "drawing", **numbers)
        if goal.draws is not None and done:
            rounds = min(rounds, -(-(goal.draws - done) // thin))
        start = time.monotonic()
        states, values = ensemble.block(states, done // thin, rounds)
        took = time.monotonic() - start
        samples.append(labelled(values, states, done, time.monotonic() - clock))
        matrices.append(values["posterior"]["order_parameter"])
        divergences += int(values["sample_stats"]["diverging"].sum())
        done += rounds * thin
        # compilation makes the first block slow: grow from there, at most twofold
        rounds = max(1, min(2 * rounds, int(rounds * _BLOCK_SECONDS / took)))


def _evidence(model: Model, samples: SampleRun, seed: int) -> Evidence:
    """Log evidence, NaN where its estimate would not be cheap."""
    if model.dimension > LARGEST_DIMENSION:
        return Evidence(np.nan, np.nan)
    positions = samples.read("unconstrained_posterior", "position")
    return log_evidence(model, positions, samples.read("sample_stats", "lp"), seed)


def _so_far(samples: SampleRun) -> tuple[int, float]:
    return samples.draws_done, minimum_bulk_ess(samples.read("posterior", "order_parameter"))
