"""Sampling a point of a study, from its start or from where an earlier run stopped."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pathkernel_core.progress import Progress, Report
from pathkernel_datasets.point import Point
from pathkernel_datasets.selection import number
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling.diagnostics import minimum_bulk_ess
from pathkernel_sampling.ensemble import Ensemble, chains_at
from pathkernel_sampling.evidence import LARGEST_DIMENSION, Evidence, log_evidence
from pathkernel_sampling.results import Samples
from pathkernel_sampling.sample_store import SampleRun

DRAWS = 1000
_BLOCK_SECONDS = 3.0  # the most that a kill should cost
_LEAST_DRAWS = 100  # of a chain before an estimate of the effective sample size decides anything


def sample_point(
    study: StoredStudy,
    point: Point,
    wanted: Samples,
    report: Report,
    map_parts: Callable[..., Any] = map,
) -> None:
    """Sample a point of a study, or resume an earlier run there; the draws are left to publish.

    Interrupted or not, the draws are the same bit for bit. Where a run with ``target_ess`` stops
    depends on the speed of the machine, since the sample size is estimated after whole blocks.

    Parameters
    ----------
    study : StoredStudy
    point : Point
    wanted : Samples
        Sampler, chains and draws.
    report : callable
    map_parts : callable
        From :meth:`StoredStudy.mapping`, if workers are to draw the chains.

    Raises
    ------
    StoreError
        If the store holds draws with other settings there, or was made from other data.
    """
    draws = wanted.draws
    if draws is None and wanted.target_ess is None:
        draws = DRAWS
    if draws is not None:
        draws = math.ceil(draws / wanted.thin) * wanted.thin
    wanted = dataclasses.replace(wanted, draws=draws)
    run = SampleRun(study, point, wanted)
    if run.is_published:
        ess = minimum_bulk_ess(run.read("posterior", "order_parameter"))
        if _expected_draws(wanted, run.draws_done, ess) == run.draws_done:
            run.remove_blocks()
            return

    def tell(done: int, total: int | None, doing: str, **numbers: float) -> None:
        report(Progress(done, total, f"N = {number(point.width)}: {doing}", numbers))

    tell(0, None, "data and attention")
    where = (study, point, wanted.sampler, wanted.thin)
    chains = chains_at(*where)
    with Ensemble(chains, wanted.chains, wanted.jobs, map_parts, where) as ensemble:
        _draw(ensemble, run, wanted, tell)
    evidence = Evidence(np.nan, np.nan)
    if chains.model.dimension <= LARGEST_DIMENSION:  # beyond, the positions are not stored
        positions = run.read("unconstrained_posterior", "position")
        log_densities = run.read("sample_stats", "lp")
        evidence = log_evidence(chains.model, positions, log_densities, point.seed)
    run.finish(evidence)


def _expected_draws(wanted: Samples, draws_done: int, ess: float) -> int | None:
    """Draws of each chain at which a run is complete, by an estimate; at least those done.

    None if no effective sample size is known yet and no number of draws is asked for.
    """
    expected = [] if wanted.draws is None else [wanted.draws]
    if wanted.target_ess is not None and ess > 0:
        expected.append(max(_LEAST_DRAWS, math.ceil(draws_done * wanted.target_ess / ess)))
    return max(min(expected), draws_done) if expected else None


def _draw(ensemble: Ensemble, run: SampleRun, wanted: Samples, tell: Callable[..., None]) -> None:
    """Warm up unless there are draws; then draw and write blocks until the run is complete."""
    started = time.monotonic() - run.seconds
    done, divergences = run.draws_done, 0
    if done:
        states = run.states()
        divergences = int(run.read("sample_stats", "diverging").sum())
    else:
        steps = wanted.chains * wanted.warm_up
        states = ensemble.warm_up(wanted.warm_up, lambda done: tell(done, steps, "warm-up"))
    ess, draws_of_ess, rounds = np.nan, 0, 1
    while True:
        if done and done >= 1.05 * draws_of_ess:  # on average this costs little
            ess = minimum_bulk_ess(run.read("posterior", "order_parameter"))
            draws_of_ess = done
        total = _expected_draws(wanted, done, ess)
        if done:
            doing = "complete" if done == total else "drawing"
            tell(done, total, doing, **{"min ESS": ess, "divergences": divergences})
        if done == total:
            return
        if wanted.draws is not None:
            rounds = min(rounds, math.ceil((wanted.draws - done) / wanted.thin))
        block_started = time.monotonic()
        states, values = ensemble.block(states, done // wanted.thin, rounds)
        block_seconds = time.monotonic() - block_started
        seconds = time.monotonic() - started
        run.append(values, states, seconds, ensemble.chains.point.data.labels)
        divergences += int(values["sample_stats"]["diverging"].sum())
        done += rounds * wanted.thin
        # the first block is slow because of compilation: then lengths at most double
        rounds = max(1, min(2 * rounds, int(rounds * _BLOCK_SECONDS / block_seconds)))
