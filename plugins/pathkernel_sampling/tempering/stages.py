"""Stages of tempering: a mixture is fitted, levels are chosen, draws are made, until all agree.

A first mixture, of a pilot, may give all modes and wrong masses, on which independent runs agree.
So the mixture is fitted again to the draws of a stage, until the evidence and the masses of two
stages with different mixtures agree. All chains share the mixture of a stage, fitted to the draws
of all, so that a mode which one of them saw is open to the others; and each has to agree with all
chains of the stage before. A mode that neither a pilot nor a stage saw stays unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    weigh_copies,
)

COMPONENTS = 8
LEAST_STAGES, MOST_STAGES = 3, 6

LOG_EVIDENCE = 0.1
MASS = 0.03
"""Differences that count as agreement, where three times the error is not larger."""

_ACCEPTED = 0.8  # share of trajectories, to which steps are adapted
_FIRST_STEP = 0.7  # times d^(−1/4), in units of the spread within components
_FITTED = 6000  # draws to which a mixture is fitted
_RELABELLINGS = 4  # fits; after each, a draw becomes its likeliest copy
_ROUNDS = 5  # of adaptation in the first stage, of an eighth of the sweeps of a stage
_LATER_ROUNDS = 3  # in further stages


class Estimates(NamedTuple):
    """What draws say of the posterior, with errors.

    Attributes
    ----------
    log_evidence, error : float
        On the target's domain, in nats.
    masses, mass_errors : arrays, shape (COMPONENTS,)
        Mean responsibilities of the components of a mixture, summed over copies.
    """

    log_evidence: float
    error: float
    masses: np.ndarray
    mass_errors: np.ndarray


class Plan(NamedTuple):
    """What all chains of a stage share.

    Attributes
    ----------
    number : int
        Of the stage, from 1.
    mixture : Mixture
    within : array, shape (d, d)
        Pooled covariance within its components.
    before : Estimates
        Of all chains of the stage before, by the components of this mixture; NaN in the first.
    """

    number: int
    mixture: Mixture
    within: np.ndarray
    before: Estimates


class Stage(NamedTuple):
    """A chain after a stage: all that its next sweep depends on besides its keys, and its plan.

    Attributes
    ----------
    ladder : Ladder
    replicas : Replicas
    share : float
        Share of the mixture that is in the target's domain.
    number : int
        Stages so far.
    before, after : Estimates
        Of all chains of the stage before, and of this chain in this stage.
    """

    ladder: Ladder
    replicas: Replicas
    share: float
    number: int
    before: Estimates
    after: Estimates

    @property
    def agrees(self) -> bool:
        """Whether this chain agrees with the stage before."""
        return agree(self.before, self.after)


StageRun = Callable[[Plan], Sequence[tuple[Stage, np.ndarray]]]
"""Takes all chains through a stage: gives the stage of each, and its draws (sweep, d)."""


def temper(
    target: Target,
    pilot: np.ndarray,
    run: StageRun,
    generator: np.random.Generator,
    report: Callable[[int], None] = lambda stages_done: None,
) -> list[Stage]:
    """Fit mixtures and draw in stages, until all chains agree with the stage before.

    Parameters
    ----------
    target : Target
    pilot : array, shape (n, d)
        Draws in the domain that have seen every mode, whatever their weights.
    run : callable
        Takes all chains through a stage, each by :func:`run_stage`.
    generator : numpy.random.Generator
        For the first clusters of each fit.
    report : callable
        Called with the number of stages so far.
    """
    # the pilot, whose rare modes a stage may not have visited, and all stages so far: a mixture is
    # as good as its draws are many
    draws, stages, positions = [pilot], [], []
    for number in range(1, MOST_STAGES + 1):
        fitted = _thin(np.concatenate(draws))
        mixture, within = _fit(target, fitted, int(generator.integers(2**31)))
        before = _estimates_of_all(target, mixture, stages, positions)
        stages, positions = zip(*run(Plan(number, mixture, within, before)))
        report(number)
        if number >= LEAST_STAGES and all(stage.agrees for stage in stages):
            break
        draws.extend(positions)
    return list(stages)


def temper_chains(
    target: Target, pilot: np.ndarray, keys: Sequence[jax.Array], sweeps: int
) -> list[Stage]:
    """Take chains through their stages, one chain a key, one after the other."""
    ladders: list[Ladder | None] = [None] * len(keys)

    def run(plan: Plan) -> list[tuple[Stage, np.ndarray]]:
        results = [
            run_stage(target, plan, ladder, key, sweeps) for key, ladder in zip(keys, ladders)
        ]
        ladders[:] = [stage.ladder for stage, _ in results]
        return results

    return temper(target, pilot, run, generator_of(keys[0]))


def run_stage(
    target: Target, plan: Plan, before: Ladder | None, key: jax.Array, sweeps: int
) -> tuple[Stage, np.ndarray]:
    """Take one chain through a stage: its state after it, and its draws (sweeps, d).

    Parameters
    ----------
    target : Target
    plan : Plan
    before : Ladder, optional
        Of the chain in the stage before, whose levels and steps it takes up.
    key : jax.random key
        Of the chain, the same in all stages.
    sweeps : int
        Sweeps of the stage, after its adaptation.
    """
    key = jax.random.fold_in(key, int(plan.number))
    generator = generator_of(key)
    ladder = _with_mixture(before, plan.mixture, plan.within)
    replicas = place_replicas(
        target, plan.mixture, draw_inside(target, plan.mixture, generator, MOST_LEVELS)
    )
    rounds = _ROUNDS if before is None else _LATER_ROUNDS
    for number in range(rounds):
        replicas, rows = sweep(
            target,
            ladder,
            replicas,
            jax.random.fold_in(key, number),
            generator,
            max(4, sweeps // 8),
        )
        ladder, replicas = _adapt(ladder, replicas, rows, number)
    replicas, rows = sweep(
        target, ladder, replicas, jax.random.fold_in(key, rounds), generator, sweeps
    )
    share = share_inside(target, plan.mixture, generator)
    after = estimate(target, ladder, share, rows["log_ratio"], rows["position"])
    return Stage(ladder, replicas, share, plan.number, plan.before, after), rows["position"]


def generator_of(key: jax.Array) -> np.random.Generator:
    """Generator of the host's random numbers, from a key of JAX."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def estimate(
    target: Target, ladder: Ladder, share: float, log_ratio: np.ndarray, positions: np.ndarray
) -> Estimates:
    """Estimate evidence and masses from ln p − ln q (draw, level) and positions (draw, d)."""
    return Estimates(
        *stage_evidence(ladder, share, log_ratio),
        *component_masses(target, ladder.mixture, positions),
    )


def stage_evidence(ladder: Ladder, share: float, log_ratio: np.ndarray) -> Evidence:
    """Log evidence ∫ p over the target's domain, and its error, from ln p − ln q (draw, level)."""
    count = int(ladder.count)
    value, error = log_ratio_of_evidence(log_ratio[:, :count], np.asarray(ladder.levels)[:count])
    return Evidence(value + np.log(share), error)


def component_masses(
    target: Target, mixture: Mixture, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean responsibilities of components (k,) at draws (n, d) of one chain, and their errors."""
    shares = np.asarray(_responsibilities(target, mixture, positions))
    sizes = [float(array_stats.ess(column[None], method="mean")) for column in shares.T]
    sizes = np.where(np.isfinite(sizes), sizes, len(shares))
    return shares.mean(0), shares.std(0) / np.sqrt(np.maximum(sizes, 1.0))


def agree(before: Estimates, after: Estimates) -> bool:
    """Whether two estimates agree, in the evidence and in all masses."""
    allowed = np.maximum(LOG_EVIDENCE, 3 * np.hypot(before.error, after.error))
    allowed_masses = np.maximum(MASS, 3 * np.hypot(before.mass_errors, after.mass_errors))
    return bool(
        np.abs(after.log_evidence - before.log_evidence) <= allowed
        and (np.abs(after.masses - before.masses) <= allowed_masses).all()
    )


def _estimates_of_all(
    target: Target, mixture: Mixture, stages: Sequence[Stage], positions: Sequence[np.ndarray]
) -> Estimates:
    """Means over all chains of a stage, with masses by another mixture; NaN without any."""
    if not stages:
        unknown = np.full(COMPONENTS, np.nan)
        return Estimates(np.nan, np.nan, unknown, unknown)
    values, errors = np.array([stage.after[:2] for stage in stages]).T
    masses, mass_errors = np.swapaxes(
        [component_masses(target, mixture, x) for x in positions], 0, 1
    )
    # errors as the chains state them: with their spread a chain that is far off would excuse itself
    root_count = np.sqrt(len(stages))
    return Estimates(
        values.mean(),
        np.sqrt(np.mean(errors**2)) / root_count,
        masses.mean(0),
        np.sqrt(np.mean(mass_errors**2, axis=0)) / root_count,
    )


@jax.jit
def _responsibilities(target: Any, mixture: Mixture, positions: jax.Array) -> jax.Array:
    return jax.lax.map(lambda x: mixture.responsibilities(*target.copies(x)), positions)


def _fit(target: Target, draws: np.ndarray, seed: int) -> tuple[Mixture, np.ndarray]:
    """Fit a mixture to draws, each in the copy that the mixture describes best."""
    for _ in range(_RELABELLINGS):
        mixture, within = fit_mixture(draws, COMPONENTS, seed)
        chosen = np.asarray(_best_copies(target, mixture, draws))
        if np.array_equal(chosen, draws):
            break
        draws = chosen
    return mixture, within


@jax.jit
def _best_copies(target: Any, mixture: Mixture, positions: jax.Array) -> jax.Array:
    def best(x: jax.Array) -> jax.Array:
        copies, logs = weigh_copies(target, mixture, x)
        return copies[jnp.argmax(logs)]

    return jax.lax.map(best, positions)


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
    moved = [array[nearest] for array in replicas[:-1]]
    padded_levels, padded_steps, new_count = _padded(chosen, steps)
    ladder = ladder._replace(levels=padded_levels, steps=padded_steps, count=new_count)
    return ladder, Replicas(*moved, replicas.parity)
