"""Orders of removal compared on one network: accuracies, single heads, rank correlations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr

from pathkernel_datasets.labelling import padded_rows
from pathkernel_trained.correlation import (
    COEFFICIENTS,
    RESAMPLED,
    interval,
    rank_correlations,
    resampled_episodes,
    resampled_heads,
)
from pathkernel_trained.head_games import AccuracyGame, Removals, best_accuracies
from pathkernel_trained.heads import (
    Head,
    RemovalOrder,
    Scores,
    are_removable,
    every_head,
    random_orders,
    removable_heads,
    removal_order,
)
from pathkernel_trained.network import NetworkShape
from pathkernel_trained.networks import network_cost
from pathkernel_trained.outputs import PathOutputs
from pathkernel_trained.pruning_layout import labelled_orders
from pathkernel_trained.scores import lost_without, per_layer

RANDOM = "random"
"""Label of the mean over orders that are drawn at random."""

RANDOM_ORDERS = 200
RESAMPLES = 2000
FIRST = "first order"
"""Reference of paired differences of accuracy, beside the random orders."""

_COUNTS = 2**22  # how often resamples hold episodes, that are held at once


def compare_orders(
    scores: Mapping[str, Scores],
    tests: Mapping[str, PathOutputs],
    shape: NetworkShape,
    token_width: int,
    tokens: int,
    *,
    removals: Mapping[str, Removals] | None = None,
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
    removals : mapping of str to sequence of tuples of (layer, head), optional
        Orders that go by no score: which heads are gone after 0, 1, … removals.
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
    orders = {name: _steps(removal_order(values)) for name, values in scores.items()}
    orders |= removals or {}
    drawn = random_orders(heads, random, seed)
    values = {
        "score": _filled([padded_rows(each) for each in scores.values()], len(orders) + 1),
        "gone": _filled([_gone(order, heads) for order in orders.values()], len(orders) + 1),
        **_curves(tests, list(orders.values()), drawn, resamples, seed),
        **_single_heads(tests, heads),
        **_correlations(scores, tests, resamples, seed, len(orders) + 1),
        **_costs(shape, drawn[0], token_width, tokens),
    }
    coordinates = {
        "order": (*orders, RANDOM),
        "reference": (FIRST, RANDOM),
        "removed": range(len(drawn[0].removed) + 1),
        "test_set": tuple(tests),
        "layer": range(1, len(heads) + 1),
        "head": range(1, max(heads) + 1),
        "coefficient": COEFFICIENTS,
        "resampled": RESAMPLED,
        "bound": ("lower", "upper"),
    }
    return labelled_orders(values, coordinates)


def removed_heads(result: xr.Dataset, name: str, count: int | None = None) -> list[Head]:
    """Heads that are gone, as (layer, head); those that go first, or stay away longest, first.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    name : str
        Label of the order.
    count : int, optional
        Number of removals; by default as many as there are.

    Raises
    ------
    ValueError
        If there are not so many.
    """
    gone = result["gone"].sel(order=name)
    most = result.sizes["removed"] - 1
    if count is not None and not 0 <= count <= most:
        raise ValueError(
            f"{count} heads cannot be removed: between 0 and {most} can, as every layer keeps one"
        )
    heads = every_head(result.attrs["heads_per_layer"])
    sets = {head: gone.sel(layer=head[0], head=head[1]).values for head in heads}
    removed = [head for head in heads if sets[head][most if count is None else count]]
    return sorted(removed, key=lambda head: -sets[head].sum())


def are_nested(result: xr.Dataset, name: str) -> bool:
    """Whether an order removes one head after the other, none of which comes back."""
    return bool((result["gone"].sel(order=name).diff("removed").fillna(0) >= 0).all())


def scores_of(result: xr.Dataset, name: str) -> list[np.ndarray]:
    """Scores of all heads by an order of a comparison, one array per layer.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    name : str
        Label of the order.
    """
    table = result["score"].sel(order=name).values
    return [row[:count] for row, count in zip(table, result.attrs["heads_per_layer"])]


def _steps(order: RemovalOrder) -> Removals:
    return [order.first(count) for count in range(len(order.removed) + 1)]


def _filled(tables: Sequence[np.ndarray], orders: int) -> np.ndarray:
    """Tables of the first orders as one array (order, …), NaN for the others."""
    found = np.full((orders, *tables[0].shape), np.nan)
    found[: len(tables)] = tables
    return found


def _gone(order: Removals, heads: Sequence[int]) -> np.ndarray:
    """1 where a head is gone, 0 where it is left, else NaN, (removed, layer, head)."""
    known = every_head(heads)
    return np.array(
        [padded_rows(per_layer([float(head in gone) for head in known], heads)) for gone in order]
    )


def _curves(
    tests: Mapping[str, PathOutputs],
    orders: Sequence[Removals],
    drawn: Sequence[RemovalOrder],
    resamples: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Accuracies as heads are removed, (order, removed, test_set, …) or (removed, test_set)."""
    curves = {"accuracy": [], "accuracy_error": [], "accuracy_drop_error": []}
    differences, ends, deviations, quantiles, best = [], [], [], [], []
    for outputs in tests.values():
        right = [_classified(outputs, order) for order in orders]
        each = [_classified(outputs, _steps(order)) for order in drawn]
        right.append(np.mean(each, axis=0, dtype=np.float64))
        curves["accuracy"].append([values.mean(axis=0) for values in right])
        curves["accuracy_error"].append([_error(values) for values in right])
        curves["accuracy_drop_error"].append([_error(values[:, :1] - values) for values in right])
        differences.append(_paired(np.array(curves["accuracy"][-1])))
        ends.append(interval(_paired(_resampled_means(right, resamples, seed))))
        at_random = np.array([values.mean(axis=0) for values in each])
        deviations.append(np.std(at_random, axis=0, ddof=1))
        quantiles.append(interval(at_random.T))
        best.append(best_accuracies(AccuracyGame(outputs)))
    curves |= {"accuracy_difference": differences, "accuracy_difference_interval": ends}
    return {
        **{name: np.moveaxis(np.array(values), 0, 2) for name, values in curves.items()},
        "random_deviation": np.array(deviations).T,
        "random_interval": np.moveaxis(np.array(quantiles), 0, 1),
        "best_accuracy": np.array(best).T,
    }


def _classified(outputs: PathOutputs, order: Removals) -> np.ndarray:
    """1 where episodes are right after 0, 1, … removals, else 0, (P, removals + 1)."""
    return outputs.correct(order).astype(np.int8)


def _paired(accuracies: np.ndarray) -> np.ndarray:
    """Accuracies (order, removed, …) less those of the first and of the last, (…, reference, …)."""
    return np.stack([accuracies - accuracies[:1], accuracies - accuracies[-1:]], axis=2)


def _resampled_means(right: Sequence[np.ndarray], resamples: int, seed: int) -> np.ndarray:
    """Means over episodes that are drawn anew, the same for all, (order, removed, resamples)."""
    values = np.concatenate(right, axis=1, dtype=np.float64)
    episodes, generator = len(values), np.random.default_rng(seed)
    means = []
    for part in np.array_split(range(resamples), -(-resamples * episodes // _COUNTS)):
        drawn = generator.integers(episodes, size=(len(part), episodes))
        counts = np.array([np.bincount(row, minlength=episodes) for row in drawn])
        means.append(counts.astype(np.float64) @ values / episodes)
    return np.concatenate(means).T.reshape(len(right), -1, resamples)


def _error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over episodes; binomial where values are 0 and 1."""
    return np.std(values, axis=0, dtype=np.float64) / np.sqrt(len(values))


def _single_heads(tests: Mapping[str, PathOutputs], heads: Sequence[int]) -> dict[str, np.ndarray]:
    """What is lost with every single head, (test_set, layer, head)."""
    lost = [lost_without(outputs) for outputs in tests.values()]

    def table(of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.array([padded_rows(per_layer(of(values), heads)) for values in lost])

    return {
        "ablation_drop": table(lambda values: values.mean(axis=0)),
        "ablation_drop_error": table(_error),
    }


def _correlations(
    scores: Mapping[str, Scores],
    tests: Mapping[str, PathOutputs],
    resamples: int,
    seed: int,
    orders: int,
) -> dict[str, np.ndarray]:
    """Rank correlations (order, test_set, coefficient), the first order's less each, intervals."""
    free = are_removable(next(iter(tests.values())).heads)
    flat = np.array([np.concatenate(list(values)) for values in scores.values()])[:, free]
    found, ends = [], []
    for outputs in tests.values():
        lost = lost_without(outputs)[:, free]
        loss = lost.mean(axis=0)
        found.append(_with_differences(rank_correlations(flat, loss)))
        generator = np.random.default_rng(seed)
        drawn = (
            resampled_episodes(flat, lost, resamples, generator),
            resampled_heads(flat, loss, resamples, generator),
        )
        ends.append([interval(_with_differences(values)) for values in drawn])
    # (test_set, 2, coefficient, order) and (test_set, resampled, 2, coefficient, order, bound)
    points, intervals = np.transpose(found, (1, 3, 0, 2)), np.transpose(ends, (2, 4, 0, 3, 1, 5))
    return {
        name + suffix: _filled(values, orders)  # of no score: NaN
        for suffix, both in (("", points), ("_interval", intervals))
        for name, values in zip(("rank_correlation", "correlation_difference"), both)
    }


def _with_differences(correlations: np.ndarray) -> np.ndarray:
    """Correlations (coefficient, order, …), and the first order's less each, (2, …)."""
    return np.stack([correlations, correlations[:, :1] - correlations])


def _costs(
    shape: NetworkShape, order: RemovalOrder, token_width: int, tokens: int
) -> dict[str, np.ndarray]:
    """Cost after every removal; every head costs the same, so that any order will do."""
    heads = list(shape.heads_per_layer)
    costs = []
    for removed in (None, *order.removed):
        if removed is not None:
            heads[removed[0] - 1] -= 1
        left = NetworkShape(shape.layers, tuple(heads), shape.width, shape.qk_width)
        costs.append(network_cost(left, token_width, tokens))
    return {
        "parameters": np.array([cost.parameters for cost in costs]),
        "flops": np.array([cost.flops for cost in costs]),
    }
