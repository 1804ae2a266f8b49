"""Sampling a point of a study, from its start or from where an earlier run stopped."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pathkernel_core.system.progress import Progress, Report
from pathkernel_core.system.text import number
from pathkernel_datasets.results.draws import ORDER_PARAMETER
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_sampling.chains.diagnostics import minimum_bulk_ess
from pathkernel_sampling.chains.ensemble import Ensemble
from pathkernel_sampling.chains.store import SampleRun
from pathkernel_sampling.results import Draws

DRAWS = 1000
_BLOCK_SECONDS = 3.0  # of draws that a kill may cost
_LEAST_DRAWS = 100  # of a chain before an estimated sample size ends a run


def sample_point(
    study: StoredStudy,
    point: Point,
    settings: Draws,
    report: Report,
    map_parts: Callable[..., Any] = map,
) -> None:
    """Sample a point of a study, or resume an earlier run; the draws are left to publish.

    Interrupted or not, the draws are the same bit for bit. Where a run with ``target_ess`` stops
    depends on the speed of the machine, since the sample size is estimated after whole blocks.
    Workers draw the chains if ``map_parts`` from :meth:`StoredStudy.mapping` has any.

    Raises
    ------
    StudyError
        If the study has draws of other settings there, or was made from other data.
    """
    draws = settings.draws
    if draws is None and settings.target_ess is None:
        draws = DRAWS
    if draws is not None:
        draws = math.ceil(draws / settings.thin) * settings.thin
    settings = dataclasses.replace(settings, draws=draws)
    run = SampleRun(study, point, settings)
    if run.is_published:
        ess = minimum_bulk_ess(run.read(ORDER_PARAMETER))
        if _total_draws(settings, run.draws, ess) == run.draws:
            run.remove_blocks()
            return

    def tell(steps: int, total: int | None, doing: str, **numbers: float) -> None:
        report(Progress(steps, total, f"N = {number(point.width)}: {doing}", numbers))

    tell(0, None, "data and attention")
    of_chains = settings.chains_of(study, point)
    with Ensemble(settings.chains, settings.jobs, map_parts, of_chains) as ensemble:
        _draw(ensemble, run, settings, tell)
    settings.finish(run, ensemble.chains)


def _total_draws(settings: Draws, draws: int, ess: float) -> int | None:
    """Estimate the draws of each chain in a complete run, at least those drawn so far.

    None if there are no draws to estimate an effective sample size from, and no other limit.
    """
    limits = [] if settings.draws is None else [settings.draws]
    if settings.target_ess is not None and ess > 0:
        limits.append(max(_LEAST_DRAWS, math.ceil(draws * settings.target_ess / ess)))
    return max(min(limits), draws) if limits else None


def _draw(ensemble: Ensemble, run: SampleRun, settings: Draws, tell: Callable[..., None]) -> None:
    """Warm up unless there are draws; then draw and write blocks until the run is complete."""
    started = time.monotonic() - run.seconds
    divergences = 0
    if run.draws:
        states = run.states()
        divergences = int(run.read("sample_stats/diverging").sum())
    else:
        steps = settings.chains * settings.warm_up
        states = ensemble.warm_up(settings.warm_up, lambda count: tell(count, steps, "warm-up"))
    ess, draws_of_ess, rounds = np.nan, 0, 1
    while True:
        draws = run.draws
        if draws and draws >= 1.05 * draws_of_ess:  # on average this costs little
            ess = minimum_bulk_ess(run.read(ORDER_PARAMETER))
            draws_of_ess = draws
        total = _total_draws(settings, draws, ess)
        if draws:
            doing = "complete" if draws == total else "drawing"
            tell(draws, total, doing, **{"min ESS": ess, "divergences": divergences})
        if draws == total:
            return
        if settings.draws is not None:
            rounds = min(rounds, math.ceil((settings.draws - draws) / settings.thin))
        block_started = time.monotonic()
        states, values = ensemble.block(states, draws // settings.thin, rounds)
        block_ended = time.monotonic()
        run.append(values, states, block_ended - started, ensemble.chains.point.data.labels)
        divergences += int(values["sample_stats"]["diverging"].sum())
        # the first block is slow because of compilation: then lengths at most double
        block_rounds = int(rounds * _BLOCK_SECONDS / (block_ended - block_started))
        rounds = max(1, min(2 * rounds, block_rounds))
