"""Rank correlations, and how sure they are, by the bootstrap."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

COEFFICIENTS = ("spearman", "kendall")
RESAMPLED = ("episodes", "heads")
_LEVEL = 0.95  # share of the resamples that intervals hold


def rank_correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's ρ and Kendall's τ_b along the last axis.

    Both are cosines: of the ranks less their mean, and of the signs of all differences.

    Parameters
    ----------
    one, other : array, shape (…, H)
        Broadcast against each other.

    Returns
    -------
    array, shape (2, …)
        NaN where all values of one side are equal.
    """
    sides = np.asarray(one, float), np.asarray(other, float)
    pairs = np.triu_indices(sides[0].shape[-1], 1)
    signs = [np.sign(values[..., pairs[0]] - values[..., pairs[1]]) for values in sides]
    return np.stack([spearman(*sides), _cosine(*signs)])


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's ρ along the last axis; parameters as for :func:`rank_correlations`, shape (…)."""
    ranks = [rankdata(values, axis=-1) - (np.shape(values)[-1] + 1) / 2 for values in (one, other)]
    return _cosine(*ranks)


def resampled_episodes(
    score: np.ndarray, lost: np.ndarray, resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """Rank correlations of scores with mean losses, as episodes are drawn anew.

    Parameters
    ----------
    score : array, shape (…, H)
        Fixed scores of the heads.
    lost : array, shape (P, H)
        What every episode loses with each head.
    resamples : int
    generator : numpy.random.Generator

    Returns
    -------
    array, shape (2, …, resamples)
        Coefficients; all scores see the same resamples.
    """
    # episodes come in few kinds; drawing how many there are of each is the same as drawing them
    kinds, counts = np.unique(lost, axis=0, return_counts=True)
    drawn = generator.multinomial(len(lost), counts / len(lost), size=resamples)
    return rank_correlations(score[..., None, :], drawn @ kinds)


def resampled_heads(
    score: np.ndarray, loss: np.ndarray, resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """Rank correlations of scores with losses, as heads are drawn anew.

    Parameters
    ----------
    score : array, shape (…, H)
    loss : array, shape (H,)
    resamples : int
    generator : numpy.random.Generator

    Returns
    -------
    array, shape (2, …, resamples)
        Coefficients; all scores see the same resamples. NaN for draws without two heads that
        differ.
    """
    drawn = generator.integers(len(loss), size=(resamples, len(loss)))
    return rank_correlations(score[..., drawn], loss[drawn])


def interval(resampled: np.ndarray) -> np.ndarray:
    """Ends of the central 95 % of the resamples, those of NaN left out.

    Resampled episodes carry the noise of the losses twice, which lowers the correlations: their
    interval holds the true value less often than in 95 cases of 100.

    Parameters
    ----------
    resampled : array, shape (…, resamples)

    Returns
    -------
    array, shape (…, 2)
        NaN where all resamples are.
    """
    tail = (1 - _LEVEL) / 2
    known = ~np.isnan(resampled).all(axis=-1, keepdims=True)
    filled = np.where(known, resampled, 0.0)  # no warning where nothing is known
    ends = np.nanquantile(filled, [tail, 1 - tail], axis=-1)
    return np.moveaxis(np.where(known[..., 0], ends, np.nan), 0, -1)


def _cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    lengths = np.sqrt(np.sum(one**2, axis=-1) * np.sum(other**2, axis=-1))
    with np.errstate(invalid="ignore"):
        return np.sum(one * other, axis=-1) / lengths
