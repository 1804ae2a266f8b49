"""Levels between a mixture and a posterior: where they stand, and the evidence along them."""

from __future__ import annotations

import math

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import expit

_REJECTED = 0.4  # share of swaps that neighbours may reject
_FEWEST = 3
_BLOCKS = 10  # of draws, one of which the jackknife leaves out


def first_levels(count: int = 8) -> np.ndarray:
    """Levels to begin with, closer to each other at the mixture."""
    return np.linspace(0, 1, count) ** 1.6


def swap_rates(log_ratio: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Mean probability (K − 1,) that neighbours swap, from ln p − ln q (draw, K) at K levels."""
    change = -np.diff(levels) * np.diff(log_ratio, axis=1)
    return np.exp(np.minimum(0.0, change)).mean(0)


def choose_levels(log_ratio: np.ndarray, levels: np.ndarray, most: int) -> np.ndarray:
    """Choose levels whose neighbours swap equally often, in at least three of five sweeps.

    The rejections of neighbours add up to a barrier along λ, which does not depend on the levels
    (Syed et al. 2022). New levels divide it into equal parts.

    Parameters
    ----------
    log_ratio : array, shape (draw, K)
        ln p − ln q of the replicas.
    levels : array, shape (K,)
        Their levels, from 0 to 1.
    most : int
        Largest number of levels.
    """
    rejected = 1 - swap_rates(log_ratio, levels)
    # at least a little between any two, so that the barrier has an inverse
    barrier = np.concatenate([[0.0], np.cumsum(np.maximum(rejected, 1e-3))])
    count = int(np.clip(math.ceil(barrier[-1] / _REJECTED) + 1, _FEWEST, most))
    inside = PchipInterpolator(barrier, levels)(np.linspace(0, barrier[-1], count))[1:-1]
    return np.concatenate([[0.0], inside, [1.0]])


def log_ratio_of_evidence(log_ratio: np.ndarray, levels: np.ndarray) -> tuple[float, float]:
    """Estimate ln ∫p − ln ∫q from ln p − ln q (draw, K) at K levels, and its standard error.

    The steps between neighbours are Bennett's (1976), from the draws of both. The error is that of
    a jackknife over ten blocks of draws.
    """
    value = _sum_of_steps(log_ratio, levels)
    blocks = np.array_split(np.arange(len(log_ratio)), min(_BLOCKS, len(log_ratio)))
    if len(blocks) < 2:
        return value, math.nan
    without = np.array(
        [_sum_of_steps(np.delete(log_ratio, block, axis=0), levels) for block in blocks]
    )
    count = len(blocks)
    return value, float(np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))


def _sum_of_steps(log_ratio: np.ndarray, levels: np.ndarray) -> float:
    gaps = np.diff(levels)
    return sum(
        _step(gap * lower, gap * upper)
        for gap, lower, upper in zip(gaps, log_ratio.T[:-1], log_ratio.T[1:])
    )


def _step(lower: np.ndarray, upper: np.ndarray) -> float:
    """Log ratio of two integrals, from the log ratio of their integrands at draws of each."""

    def excess(value: float) -> float:
        return float(expit(lower - value).mean() - expit(value - upper).mean())

    ends = np.concatenate([lower, upper])
    # the excess falls from 1 to −1
    return float(brentq(excess, ends.min() - 50, ends.max() + 50, xtol=1e-10))
