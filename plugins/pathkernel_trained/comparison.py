"""Agreement of two order parameters, and its significance.

A statistic compares U of a trained network with U of the theory. Its p-value comes from a
permutation test: the trained network's heads are relabelled within each layer, rows and columns of
U together, and the p-value is the fraction of relabellings that agree at least as well. The null
hypothesis is that all heads of a layer are exchangeable.

No sign or order must be matched beforehand: U is quadratic in the weights, so that it does not
change under rotations of a hidden layer or under sign flips that leave the network's output as it
is, the flip of one head's values gives another function, and heads have the same numbers because
theory and network share queries and keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import head_scores
from pathkernel_pruning.heads.correlation import ranks

_ROUNDING = 1e-10  # larger than differences by the order of summation
_BATCH_ENTRIES = 2**22  # of relabelled order parameters that are in memory at once


class Statistic(NamedTuple):
    """Measure of the agreement of two order parameters; larger is better.

    ``features`` takes (k, n, n) order parameters to the numbers that are compared, (k, m), and
    ``compare`` such numbers of k and of r order parameters to the statistic, (k, r).
    """

    name: str
    long_name: str
    features: Callable[[np.ndarray], np.ndarray]
    compare: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """Statistics of agreement and their p-values, NaN where they are not defined.

    Attributes
    ----------
    statistics : tuple of Statistic
        Along the last axis of the arrays.
    values, p_values : array, shape (..., s)
        The statistics, and fractions of the relabellings of heads that agree at least as well.
    relabellings : int
        Number of relabellings, the identity among them.
    exact : bool
        Whether these are all relabellings; otherwise they were drawn at random.
    """

    statistics: tuple[Statistic, ...]
    values: np.ndarray
    p_values: np.ndarray
    relabellings: int
    exact: bool


def compare_order_parameters(
    network: Network,
    order_parameters: np.ndarray,
    trained: np.ndarray,
    *,
    relabellings: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Compare order parameters of the theory, or sampled ones, with that of a trained network.

    Parameters
    ----------
    network : Network
        Heads of each layer; one output.
    order_parameters : array, shape (..., n, n)
        Order parameters U, such as those of all widths and temperatures; NaN where unknown.
    trained : array, shape (n, n)
        Order parameter of the trained network, at any scale: no statistic depends on it.
    relabellings : int
        Largest number of relabellings of heads: all of them if there are no more than that,
        otherwise the identity and random ones drawn with the ``seed``.

    Raises
    ------
    ValueError
        If the network has several outputs, or a shape does not fit it.
    """
    if network.outputs != 1:
        raise ValueError(f"network must have one output, but has {network.outputs}")
    if relabellings < 1:
        raise ValueError(f"relabellings must be at least 1, but is {relabellings}")
    shape = (network.n_paths,) * 2
    if trained.shape != shape or order_parameters.shape[-2:] != shape:
        raise ValueError(
            f"order parameters of {network.n_paths} paths must have shape {shape}, but trained has "
            f"{trained.shape} and order_parameters {order_parameters.shape}"
        )
    grid = order_parameters.shape[:-2]
    theory = order_parameters.reshape(-1, *shape)
    orders, exact = relabelled_paths(network, relabellings, seed)
    # the identity is among the relabellings, so that no p value is 0
    batches = np.array_split(orders, -(-orders.size * shape[0] // _BATCH_ENTRIES))
    compared = statistics(network)
    values, p_values = np.full((2, len(theory), len(compared)), np.nan)
    for column, statistic in enumerate(compared):
        features = statistic.features(theory)
        value = statistic.compare(features, statistic.features(trained[None]))[:, 0]
        # a relabelling of the trained U costs one gather, and leaves the theory's features alone
        reached = np.zeros(len(value))
        for batch in batches:
            relabelled = trained[batch[:, :, None], batch[:, None, :]]
            by_chance = statistic.compare(features, statistic.features(relabelled))
            reached += (by_chance >= value[:, None] - _ROUNDING).sum(axis=1)
        values[:, column] = value
        p_values[:, column] = np.where(np.isnan(value), np.nan, reached / len(orders))
    shape = *grid, len(compared)
    return Agreement(compared, values.reshape(shape), p_values.reshape(shape), len(orders), exact)


def statistics(network: Network) -> tuple[Statistic, ...]:
    """Statistics that compare order parameters of a network."""
    upper = np.triu_indices(network.n_paths)
    above = np.triu_indices(network.n_paths, k=1)

    def entries(matrices: np.ndarray) -> np.ndarray:
        return matrices[:, *upper]

    def off_diagonal(matrices: np.ndarray) -> np.ndarray:
        return matrices[:, *above]

    def scores(matrices: np.ndarray) -> np.ndarray:
        return np.stack([head_scores(network, matrix) for matrix in matrices])

    def blocks(matrices: np.ndarray, layer: int) -> np.ndarray:
        """Mean of |U| over pairs of paths, (k, H(H+1)/2), by their heads in one layer."""
        heads = np.arange(1, network.heads[layer - 1] + 1)
        through = np.array(network.paths)[:, layer - 1] == heads[:, None]
        average = through / through.sum(axis=1, keepdims=True)  # (H, n)
        return (average @ np.abs(matrices) @ average.T)[:, *np.triu_indices(len(heads))]

    all_, off = "all entries", "off-diagonal entries"
    ranks, signs = "Spearman's rank correlation of", "fraction of equal signs among"
    weighted = "weighted by the product of their magnitudes"
    return (
        Statistic("correlation", f"correlation of {all_}", entries, _correlation),
        Statistic("correlation_off_diagonal", f"correlation of {off}", off_diagonal, _correlation),
        Statistic("rank_correlation", f"{ranks} {all_}", entries, _rank_correlation),
        Statistic(
            "rank_correlation_off_diagonal", f"{ranks} {off}", off_diagonal, _rank_correlation
        ),
        Statistic("equal_signs", f"{signs} {off}; a zero counts half", off_diagonal, _equal_signs),
        Statistic(
            "equal_signs_weighted",
            f"{signs} {off}, {weighted}",
            off_diagonal,
            _equal_signs_weighted,
        ),
        *(
            Statistic(
                f"blocks_layer_{layer}",
                "correlation of the mean of |U| over pairs of paths through heads h and h' of "
                f"layer {layer}",
                partial(blocks, layer=layer),
                _correlation,
            )
            for layer in range(1, network.n_layers + 1)
        ),
        Statistic("head_scores", f"{ranks} the scores of all heads", scores, _rank_correlation),
    )


def relabelled_paths(network: Network, largest: int, seed: int) -> tuple[np.ndarray, bool]:
    """Orders (r, n) of the paths after relabelling heads within each layer, and if they are all.

    Orders are indices of paths, the first the identity. If there are more than ``largest``, so many
    are drawn at random with the seed.
    """
    exact = math.prod(math.factorial(count) for count in network.heads) <= largest
    if exact:
        labels = itertools.product(*(itertools.permutations(range(h)) for h in network.heads))
    else:
        generator = np.random.default_rng(seed)
        drawn = ([generator.permutation(h) for h in network.heads] for _ in range(largest - 1))
        labels = itertools.chain([[range(h) for h in network.heads]], drawn)
    paths = np.arange(network.n_paths).reshape(network.heads)
    return np.array([paths[np.ix_(*layers)].ravel() for layers in labels]), exact


def _correlation(theory: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Pearson correlation of all pairs of rows, NaN for a row of equal numbers."""
    if theory.shape[1] < 2:
        return np.full((len(theory), len(trained)), np.nan)
    return np.clip(_standardise(theory) @ _standardise(trained).T, -1, 1)


def _rank_correlation(theory: np.ndarray, trained: np.ndarray) -> np.ndarray:
    return _correlation(*(ranks(_round_rows(rows)) for rows in (theory, trained)))


def _equal_signs(theory: np.ndarray, trained: np.ndarray) -> np.ndarray:
    if not theory.shape[1]:
        return np.full((len(theory), len(trained)), np.nan)
    return (1 + np.sign(theory) @ np.sign(trained).T / theory.shape[1]) / 2


def _equal_signs_weighted(theory: np.ndarray, trained: np.ndarray) -> np.ndarray:
    weight = np.abs(theory) @ np.abs(trained).T
    return (1 + theory @ trained.T / np.where(weight > 0, weight, np.nan)) / 2


def _standardise(rows: np.ndarray) -> np.ndarray:
    """Rows of mean 0 and norm 1; NaN where all numbers of a row are equal."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    norm, size = (np.linalg.norm(array, axis=1, keepdims=True) for array in (centred, rows))
    return centred / np.where(norm > _ROUNDING * size, norm, np.nan)


def _round_rows(rows: np.ndarray) -> np.ndarray:
    """Rows in parts of their largest number, to 11 digits."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    return np.round(rows / np.where(largest == 0, 1, largest), 11)
