"""Orders of removal compared on one network: accuracies, single heads, rank correlations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_datasets.store import coordinate_values
from pathkernel_pruning.correlation import (
    COEFFICIENTS,
    RESAMPLED,
    episode_intervals,
    head_intervals,
    rank_correlations,
)
from pathkernel_pruning.heads import (
    RemovalOrder,
    Scores,
    are_removable,
    every_head,
    random_orders,
    removable_heads,
    removal_order,
)
from pathkernel_pruning.networks import network_cost
from pathkernel_pruning.outputs import PathOutputs
from pathkernel_pruning.scores import lost_without, per_layer
from pathkernel_training.network import NetworkShape

RANDOM = "random"
"""Label of the mean over orders that are drawn at random."""

RANDOM_ORDERS = 200
RESAMPLES = 2000
_SETS = 5000  # of heads that are searched for the best one; 8 heads have 70 at most


def compare_orders(
    scores: Mapping[str, Scores],
    tests: Mapping[str, PathOutputs],
    shape: NetworkShape,
    token_width: int,
    tokens: int,
    *,
    random: int = RANDOM_ORDERS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> xr.Dataset:
    """Accuracy as heads are removed in every order, and what the orders have to do with the truth.

    Parameters
    ----------
    scores : mapping of str to sequence of L arrays (H_ℓ,)
        Scores of all heads by the name of the order; low ones go first.
    tests : mapping of str to PathOutputs
        Path outputs of the network on each test set.
    shape : NetworkShape
        Sizes of the network, for its cost.
    token_width, tokens : int
        Width N_0 and number M of tokens, for its cost.
    random : int
        Orders drawn at random, at least 2.
    resamples : int
        Resamples of the bootstrap.
    seed : int
        Of random orders and resamples.

    Returns
    -------
    xarray.Dataset
        Variables and dimensions as docs/pruning.md lists them.

    Raises
    ------
    ValueError
        If there is no order or no test set, every layer has one head only, or a number is too
        small.
    """
    if not scores or not tests:
        raise ValueError("scores and tests must hold at least one order and one test set")
    if random < 2 or resamples < 1:
        raise ValueError(
            f"random must be at least 2 and resamples at least 1, but are {random} and {resamples}"
        )
    heads = shape.heads_per_layer
    if not removable_heads(heads):
        raise ValueError("every layer has one head only, so that none can be removed")
    steps = sum(heads) - len(heads) + 1
    orders = {name: removal_order(values) for name, values in scores.items()}
    names = (*orders, RANDOM)
    drawn = random_orders(heads, random, seed)
    table = np.array([padded(values, heads) for values in scores.values()])
    nothing = np.full((1, *table.shape[1:]), np.nan)
    removals = [padded(_removals(order, heads), heads) for order in orders.values()]

    curves = {"accuracy": [], "accuracy_error": [], "accuracy_drop_error": []}
    deviations, best, drops, errors = [], [], [], []
    for outputs in tests.values():
        right = [_classified(outputs, order, steps) for order in orders.values()]
        each = [_classified(outputs, order, steps) for order in drawn]
        right.append(np.mean(each, axis=0, dtype=np.float64))
        deviations.append(np.std([values.mean(axis=0) for values in each], axis=0, ddof=1))
        best.append([_best(outputs, count) for count in range(steps)])
        curves["accuracy"].append([values.mean(axis=0) for values in right])
        curves["accuracy_error"].append([_error(values) for values in right])
        curves["accuracy_drop_error"].append([_error(values[:, :1] - values) for values in right])
        lost = lost_without(outputs)
        drops.append(padded(per_layer(lost.mean(axis=0), heads), heads))
        errors.append(padded(per_layer(_error(lost), heads), heads))

    costs = [
        network_cost(_smaller(shape, drawn[0], count), token_width, tokens)
        for count in range(steps)
    ]
    head_dims, curve_dims = ("layer", "head"), ("order", "removed", "test_set")
    by_test = {name: np.moveaxis(np.array(values), 0, 2) for name, values in curves.items()}
    correlations, intervals = _correlations(scores, tests, resamples, seed)
    variables: dict[str, tuple] = {
        "score": (
            ("order", *head_dims),
            np.concatenate([table, nothing]),
            "score of the head; heads of low scores are removed first",
        ),
        "removal": (
            ("order", *head_dims),
            np.concatenate([removals, nothing]),
            "removal that takes the head, from 1; 0 if it stays",
        ),
        "accuracy": (
            curve_dims,
            by_test["accuracy"],
            "fraction of test episodes classified correctly; mean over the random orders",
        ),
        "accuracy_error": (
            curve_dims,
            by_test["accuracy_error"],
            "standard error of the accuracy over test episodes",
        ),
        "accuracy_drop_error": (
            curve_dims,
            by_test["accuracy_drop_error"],
            "standard error of the accuracy lost, over the same test episodes",
        ),
        "random_deviation": (
            ("removed", "test_set"),
            np.array(deviations).T,
            "standard deviation of the accuracy over random orders",
        ),
        "best_accuracy": (
            ("removed", "test_set"),
            np.array(best).T,
            "largest accuracy of any network with so many heads removed, chosen on the same "
            "episodes; NaN where there are too many",
        ),
        "ablation_drop": (
            ("test_set", *head_dims),
            np.array(drops),
            "accuracy lost on test episodes when the head alone is removed",
        ),
        "ablation_drop_error": (
            ("test_set", *head_dims),
            np.array(errors),
            "standard error of the accuracy lost when the head alone is removed",
        ),
        "rank_correlation": (
            ("order", "test_set", "coefficient"),
            correlations,
            "rank correlation of scores with the accuracy lost on test episodes, over the heads that "
            "can be removed alone",
        ),
        "rank_correlation_interval": (
            ("order", "test_set", "coefficient", "resampled", "bound"),
            intervals,
            "95 % interval of the rank correlation, by the bootstrap",
        ),
        "parameters": (
            ("removed",),
            np.array([cost.parameters for cost in costs]),
            "trained numbers of the network that is left",
        ),
        "flops": (
            ("removed",),
            np.array([cost.flops for cost in costs]),
            "floating-point operations of the network that is left, per episode, layer by layer",
        ),
    }
    coordinates = {
        "order": (names, "order in which heads are removed, by its score"),
        "removed": (range(steps), "number of heads removed"),
        "test_set": (tuple(tests), "name of the set of test episodes"),
        "layer": (range(1, len(heads) + 1), "attention layer, from the input"),
        "head": (range(1, max(heads) + 1), "head within its layer"),
        "coefficient": (COEFFICIENTS, "Spearman's ρ or Kendall's τ_b"),
        "resampled": (RESAMPLED, "what the bootstrap draws anew"),
        "bound": (("lower", "upper"), "end of the interval"),
    }
    return labelled(variables, coordinates)


def labelled(
    variables: Mapping[str, tuple], coordinates: Mapping[str, tuple[Sequence[Any], str]]
) -> xr.Dataset:
    """Dataset from name → (dims, values, meaning) and name → (values, meaning).

    Everything has the unit 1.
    """
    return xr.Dataset(
        {
            name: (dims, values, {"long_name": meaning, "units": "1"})
            for name, (dims, values, meaning) in variables.items()
        },
        {
            name: (name, coordinate_values(values), {"long_name": meaning})
            for name, (values, meaning) in coordinates.items()
        },
    )


def padded(values: Scores, heads: Sequence[int]) -> np.ndarray:
    """Values of all heads as a table (layer, head), NaN where a layer has fewer heads."""
    table = np.full((len(heads), max(heads)), np.nan)
    for row, layer in zip(table, values):
        row[: len(layer)] = layer
    return table


def _classified(outputs: PathOutputs, order: RemovalOrder, steps: int) -> np.ndarray:
    """1 where episodes are right after 0, 1, … removals, else 0, (P, steps)."""
    return outputs.correct([order.first(count) for count in range(steps)]).astype(np.int8)


def _best(outputs: PathOutputs, count: int) -> float:
    """Largest accuracy with so many heads removed, in whatever way; NaN if there are too many."""
    if math.comb(sum(outputs.heads), count) > _SETS:
        return np.nan
    sets = [
        chosen
        for chosen in itertools.combinations(every_head(outputs.heads), count)
        if all(
            sum(layer == number for layer, _ in chosen) < heads
            for number, heads in enumerate(outputs.heads, start=1)
        )
    ]
    return float(outputs.correct(sets).mean(axis=0).max())


def _error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over episodes; binomial where values are 0 and 1."""
    return np.std(values, axis=0, dtype=np.float64) / np.sqrt(len(values))


def _removals(order: RemovalOrder, heads: Sequence[int]) -> list[np.ndarray]:
    numbers = [np.zeros(count) for count in heads]
    for count, (layer, head) in enumerate(order.removed, start=1):
        numbers[layer - 1][head - 1] = count
    return numbers


def _smaller(shape: NetworkShape, order: RemovalOrder, count: int) -> NetworkShape:
    """Shape after so many removals; every head costs the same, so that any order will do."""
    heads = list(shape.heads_per_layer)
    for layer, _ in order.first(count):
        heads[layer - 1] -= 1
    return NetworkShape(shape.layers, tuple(heads), shape.width, shape.qk_width)


def _correlations(
    scores: Mapping[str, Scores], tests: Mapping[str, PathOutputs], resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rank correlations (order, test_set, coefficient), and their intervals; NaN for random."""
    heads = next(iter(tests.values())).heads
    free = are_removable(heads)
    flat = np.array([np.concatenate(list(values)) for values in scores.values()])[:, free]
    found, intervals = [], []
    for outputs in tests.values():
        lost = lost_without(outputs)[:, free]
        loss = lost.mean(axis=0)
        found.append(rank_correlations(flat, loss))
        generator = np.random.default_rng(seed)
        intervals.append(
            [
                episode_intervals(flat, lost, resamples, generator),
                head_intervals(flat, loss, resamples, generator),
            ]
        )
    # (test_set, coefficient, order) and (test_set, resampled, coefficient, order, bound)
    point = np.transpose(found, (2, 0, 1))
    ends = np.transpose(intervals, (3, 0, 2, 1, 4))
    unknown = [np.full((1, *values.shape[1:]), np.nan) for values in (point, ends)]
    return np.concatenate([point, unknown[0]]), np.concatenate([ends, unknown[1]])
