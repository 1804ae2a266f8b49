"""Orders of removal compared on one network: accuracies, single heads, rank correlations."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from pathkernel_trained.heads import (
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
_NETWORKS = 100_000  # that are searched for the best one; 2 layers of 8 heads have 65,025
_SUMS = 2**22  # outputs of them that are held at once


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
    orders = {name: removal_order(values) for name, values in scores.items()}
    drawn = random_orders(heads, random, seed)
    values = {
        "score": _tables(scores.values(), heads),
        "removal": _tables((_removals(order, heads) for order in orders.values()), heads),
        **_curves(tests, list(orders.values()), drawn),
        **_single_heads(tests, heads),
        **_correlations(scores, tests, resamples, seed),
        **_costs(shape, drawn[0], token_width, tokens),
    }
    coordinates = {
        "order": (*orders, RANDOM),
        "removed": range(len(drawn[0].removed) + 1),
        "test_set": tuple(tests),
        "layer": range(1, len(heads) + 1),
        "head": range(1, max(heads) + 1),
        "coefficient": COEFFICIENTS,
        "resampled": RESAMPLED,
        "bound": ("lower", "upper"),
    }
    return labelled_orders(values, coordinates)


def removed_heads(result: xr.Dataset, name: str) -> list[tuple[int, int]]:
    """Heads in the order in which they are removed, as (layer, head).

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    name : str
        Label of the order.
    """
    removals = result["removal"].sel(order=name)
    numbers = {
        head: removals.sel(layer=head[0], head=head[1]).item()
        for head in every_head(result.attrs["heads_per_layer"])
    }
    return sorted((head for head in numbers if numbers[head] > 0), key=lambda head: numbers[head])


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


def _tables(values: Iterable[Scores], heads: Sequence[int]) -> np.ndarray:
    """Tables of all orders (order, layer, head); NaN for the random ones, which come last."""
    tables = [padded_rows(each) for each in values]
    return np.array([*tables, np.full_like(tables[0], np.nan)])


def _removals(order: RemovalOrder, heads: Sequence[int]) -> list[np.ndarray]:
    numbers = [np.zeros(count) for count in heads]
    for count, (layer, head) in enumerate(order.removed, start=1):
        numbers[layer - 1][head - 1] = count
    return numbers


def _curves(
    tests: Mapping[str, PathOutputs], orders: Sequence[RemovalOrder], drawn: Sequence[RemovalOrder]
) -> dict[str, np.ndarray]:
    """Accuracies as heads are removed, (order, removed, test_set) or (removed, test_set)."""
    curves = {"accuracy": [], "accuracy_error": [], "accuracy_drop_error": []}
    deviations, best = [], []
    for outputs in tests.values():
        right = [_classified(outputs, order) for order in orders]
        each = [_classified(outputs, order) for order in drawn]
        right.append(np.mean(each, axis=0, dtype=np.float64))
        curves["accuracy"].append([values.mean(axis=0) for values in right])
        curves["accuracy_error"].append([_error(values) for values in right])
        curves["accuracy_drop_error"].append([_error(values[:, :1] - values) for values in right])
        deviations.append(np.std([values.mean(axis=0) for values in each], axis=0, ddof=1))
        best.append(_best(outputs))
    return {
        **{name: np.moveaxis(np.array(values), 0, 2) for name, values in curves.items()},
        "random_deviation": np.array(deviations).T,
        "best_accuracy": np.array(best).T,
    }


def _classified(outputs: PathOutputs, order: RemovalOrder) -> np.ndarray:
    """1 where episodes are right after 0, 1, … removals, else 0, (P, removals + 1)."""
    steps = range(len(order.removed) + 1)
    return outputs.correct([order.first(count) for count in steps]).astype(np.int8)


def _best(outputs: PathOutputs) -> np.ndarray:
    """Largest accuracy with 0, 1, … heads removed, in whatever way; NaN if there are too many."""
    heads = outputs.heads
    steps = sum(heads) - len(heads) + 1
    # all sets of heads that a layer may keep, (2^H_ℓ − 1, H_ℓ)
    kept = [np.array(list(itertools.product((0.0, 1.0), repeat=count))[1:]) for count in heads]
    networks = math.prod(map(len, kept))
    if networks > _NETWORKS:
        return np.full(steps, np.nan)
    right = np.zeros(networks, dtype=int)
    step = max(1, _SUMS // networks)
    for start in range(0, len(outputs.labels), step):
        part = slice(start, start + step)
        sums = outputs.values[part].reshape(-1, *heads)
        for layer in kept:  # sums over the first layer's heads that is left become the last axis
            sums = np.tensordot(sums, layer, axes=(1, 1))
        sums = sums.reshape(-1, networks)
        right += np.count_nonzero(sums * outputs.labels[part, None] > 0, axis=0)
    left = functools.reduce(np.add.outer, (layer.sum(axis=1) for layer in kept)).ravel()
    best = [right[left == sum(heads) - removed].max() for removed in range(steps)]
    return np.array(best) / len(outputs.labels)


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
    scores: Mapping[str, Scores], tests: Mapping[str, PathOutputs], resamples: int, seed: int
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
        name + suffix: np.concatenate([values, np.full_like(values[:1], np.nan)])  # of random
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
