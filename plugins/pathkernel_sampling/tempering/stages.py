"""Stages of tempering: a mixture is fitted, levels are chosen, draws are made, until two agree.

A first mixture, of a pilot, may give all modes and wrong masses, on which independent runs agree.
So the mixture is fitted again to the draws of a stage, until the evidence and the masses of two
stages with different mixtures agree. A mode that neither the pilot nor a stage saw stays unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from arviz_stats.base import array_stats

from pathkernel_sampling.chains.evidence import Evidence
from pathkernel_sampling.tempering.levels import (
    choose_levels,
    first_levels,
    log_ratio_of_evidence,
)
from pathkernel_sampling.tempering.mixture import Mixture, fit_mixture
from pathkernel_sampling.tempering.replicas import (
    MOST_LEVELS,
    Ladder,
    Replicas,
    Target,
    draw_inside,
    place_replicas,
    share_inside,
    sweep,
)

COMPONENTS = 8
MOST_STAGES = 6

LOG_EVIDENCE = 0.1
MASS = 0.03
"""Differences of two stages that count as agreement, where twice the error is not larger."""

_ACCEPTED = 0.8  # share of trajectories, to which steps are adapted
_FIRST_STEP = 0.7  # times d^(−1/4), in units of the spread within components
_FITTED = 3000  # draws to which a mixture is fitted
_ROUNDS = 5  # of adaptation in the first stage, of an eighth of the sweeps of a stage
_LATER_ROUNDS = 3  # in further stages


class Tempered(NamedTuple):
    """All that the next sweep depends on besides its keys, and what the stages gave.

    Attributes
    ----------
    ladder : Ladder
    replicas : Replicas
    share : float
        Share of the mixture that is in the target's domain.
    stages : int
    agreed : bool
        Whether the last two agreed.
    log_evidence, error : arrays, shape (2,)
        Of the last two stages, on the target's domain, in nats; NaN if there was one.
    masses, mass_errors : arrays, shape (2, COMPONENTS)
        Mean responsibilities of the components of the last mixture, in the last two stages.
    """

    ladder: Ladder
    replicas: Replicas
    share: float
    stages: int
    agreed: bool
    log_evidence: np.ndarray
    error: np.ndarray
    masses: np.ndarray
    mass_errors: np.ndarray


def temper(
    target: Target,
    pilot: np.ndarray,
    key: jax.Array,
    sweeps: int,
    report: Callable[[int], None] = lambda stages_done: None,
) -> Tempered:
    """Fit mixtures and choose levels in stages, until two agree.

    Parameters
    ----------
    target : Target
    pilot : array, shape (n, d)
        Draws in the domain that have seen every mode, whatever their weights.
    key : jax.random key
    sweeps : int
        Sweeps of a stage, after its adaptation.
    report : callable
        Called with the number of stages so far.
    """
    sets, ladder, estimates = [pilot], None, [Evidence(np.nan, np.nan)]
    for stage in range(1, MOST_STAGES + 1):
        stage_key = jax.random.fold_in(key, stage)
        generator = np.random.default_rng(np.asarray(jax.random.key_data(stage_key)))
        # the pilot, whose rare modes a stage may not have visited, and all stages so far: a mixture
        # is as good as its draws are many
        draws = _thin(np.concatenate(sets))
        mixture, within = fit_mixture(draws, COMPONENTS, int(generator.integers(2**31)))
        ladder = _with_mixture(ladder, mixture, within)
        replicas = place_replicas(
            target, mixture, draw_inside(target, mixture, generator, MOST_LEVELS)
        )
        rounds = _ROUNDS if stage == 1 else _LATER_ROUNDS
        for number in range(rounds):
            adapt_key = jax.random.fold_in(stage_key, number)
            replicas, rows = sweep(
                target, ladder, replicas, adapt_key, generator, max(4, sweeps // 8)
            )
            ladder, replicas = _adapt(ladder, replicas, rows, number)
        replicas, rows = sweep(
            target, ladder, replicas, jax.random.fold_in(stage_key, rounds), generator, sweeps
        )
        share = share_inside(target, mixture, generator)
        estimates.append(stage_evidence(ladder, share, rows["log_ratio"]))
        sets.append(rows["position"])
        masses = [component_masses(mixture, positions) for positions in sets[-2:]]
        values, errors = np.array(masses).swapaxes(0, 1)
        log_evidence, error = np.array(estimates[-2:]).T
        agreed = stage > 1 and agree(log_evidence, error, values, errors)
        report(stage)
        if agreed:
            break
    return Tempered(ladder, replicas, share, stage, agreed, log_evidence, error, values, errors)


def stage_evidence(ladder: Ladder, share: float, log_ratio: np.ndarray) -> Evidence:
    """Log evidence ∫ p over the target's domain, and its error, from ln p − ln q (draw, level)."""
    count = int(ladder.count)
    value, error = log_ratio_of_evidence(log_ratio[:, :count], np.asarray(ladder.levels)[:count])
    return Evidence(value + np.log(share), error)


def component_masses(mixture: Mixture, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean responsibilities of components (k,) at draws (n, d) of one chain, and their errors."""
    shares = np.asarray(_responsibilities(mixture, positions))
    sizes = [float(array_stats.ess(column[None], method="mean")) for column in shares.T]
    sizes = np.where(np.isfinite(sizes), sizes, len(shares))
    return shares.mean(0), shares.std(0) / np.sqrt(np.maximum(sizes, 1.0))


def agree(
    log_evidence: np.ndarray, error: np.ndarray, masses: np.ndarray, mass_errors: np.ndarray
) -> bool:
    """Whether two stages agree, in evidence (2,) and in all masses (2, k)."""
    allowed = max(LOG_EVIDENCE, 2 * float(np.hypot(*error)))
    allowed_masses = np.maximum(MASS, 2 * np.hypot(*mass_errors))
    return bool(
        abs(log_evidence[1] - log_evidence[0]) <= allowed
        and (np.abs(masses[1] - masses[0]) <= allowed_masses).all()
    )


@jax.jit
def _responsibilities(mixture: Mixture, positions: jax.Array) -> jax.Array:
    return jax.lax.map(mixture.responsibilities, positions)


def _thin(draws: np.ndarray) -> np.ndarray:
    """At most so many draws (n, d) as a fit takes, evenly."""
    return draws[:: math.ceil(len(draws) / _FITTED)]


def _with_mixture(ladder: Ladder | None, mixture: Mixture, within: np.ndarray) -> Ladder:
    """Ladder from another mixture, with the levels and steps of the one before."""
    root = np.linalg.cholesky(np.linalg.inv(within))
    if ladder is not None:
        return ladder._replace(mixture=mixture, inverse_mass=within, momentum_root=root)
    levels, step = first_levels(), _FIRST_STEP * len(within) ** -0.25
    return Ladder(mixture, *_padded(levels, np.full(len(levels), step)), within, root)


def _padded(levels: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
    missing = (0, MOST_LEVELS - len(levels))
    count = np.array(len(levels))
    return np.pad(levels, missing, constant_values=1.0), np.pad(steps, missing, mode="edge"), count


def _adapt(
    ladder: Ladder, replicas: Replicas, rows: dict[str, np.ndarray], number: int
) -> tuple[Ladder, Replicas]:
    """Adapt steps to the acceptance, and but for the first round levels to the swaps."""
    count = int(ladder.count)
    levels, steps = np.asarray(ladder.levels)[:count], np.asarray(ladder.steps)[:count]
    accepted = rows["accepted"][:, :count].mean(0)
    steps = steps * np.exp((accepted - _ACCEPTED) * np.where(np.arange(count) > 0, 1.0, 0.0))
    if number == 0:  # replicas were far from their levels
        return ladder._replace(steps=_padded(levels, steps)[1]), replicas
    chosen = choose_levels(rows["log_ratio"][:, :count], levels, MOST_LEVELS)
    steps = np.exp(np.interp(chosen, levels[1:], np.log(steps[1:])))
    # each new level begins with the replica of the nearest old one
    nearest = np.abs(chosen[:, None] - levels).argmin(1)
    nearest = np.pad(nearest, (0, MOST_LEVELS - len(chosen)), mode="edge")
    moved = [array[nearest] for array in replicas[:5]]
    padded_levels, padded_steps, new_count = _padded(chosen, steps)
    ladder = ladder._replace(levels=padded_levels, steps=padded_steps, count=new_count)
    return ladder, Replicas(*moved, replicas.parity)
