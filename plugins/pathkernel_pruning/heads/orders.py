"""Orders of heads compared on one network: losses as heads are removed, and rank correlations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Literal

import numpy as np
import xarray as xr

from pathkernel_core.paths.heads import Head, every_head
from pathkernel_datasets.variables.head_axis import Scores, score_array
from pathkernel_pruning.heads.correlation import Bootstrap
from pathkernel_pruning.heads.evaluated_scores import score_by_evaluation
from pathkernel_pruning.heads.evaluator import Evaluator
from pathkernel_pruning.heads.head_game import HeadGame, standard_error
from pathkernel_pruning.heads.measuring import (
    RANDOM,
    correlate_scores,
    measure_orders,
    refitted_order,
)
from pathkernel_pruning.heads.order_variables import ORDER_VARIABLES
from pathkernel_pruning.heads.removals import best_removed, removed_at_random, removed_by_score
from pathkernel_pruning.heads.score_table import check_known, score_table

RANDOM_ORDERS, RESAMPLES = 200, 2000
FIRST = "first order"
"""Reference of paired differences, next to the random orders."""


def compare_orders(
    evaluator: Evaluator,
    scores: Mapping[str, Scores],
    validation: str,
    tests: Sequence[str],
    *,
    removed: Sequence[int] | None = None,
    random: int = RANDOM_ORDERS,
    shapley: int | Literal["exact"] = 0,
    greedy: int = 0,
    best_of: int = 0,
    best: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
    refitted: Evaluator | None = None,
) -> xr.Dataset:
    """Remove heads of a network in the order of every score and in random orders.

    Further scores are computed from the evaluator, on validation examples: ``ablation``, the loss
    without each head, and on request Shapley values, a greedy order and the best of some random
    sets. They use the evaluator's first quantity. Losses are measured on test examples.

    Parameters
    ----------
    evaluator : Evaluator
    scores : mapping of str to xarray.DataArray, dims (head[, draw]), or to a mapping
        By the name of the order; heads of low scores are removed first. The first is compared with
        all others. A mapping gives the number, or numbers of all draws, of every (layer, head).
    validation : str
        Name of the set of examples that heads are scored on.
    tests : sequence of str
        Names of the test sets.
    removed : sequence of int, optional
        Numbers of heads to remove; by default all, from 1 until no more may be removed.
    random : int
        Number of random orders, at least 2.
    shapley : int or "exact"
        Number of orders of arrival from which Shapley values are estimated, even and at least 4;
        "exact" for all, with at most 16 heads; 0 for none. Half of the orders reverse the others.
    greedy : int
        Number of heads that each step of the greedy order removes; 0 for no such order.
    best_of : int
        Number of random head sets tried at each size: those that the first random orders begin
        with; 0 for none.
    best : bool
        Whether to find the best of all sets on the test examples, with at most 16 heads.
    resamples : int
        Number of bootstrap resamples.
    seed : int
        Seed of random orders and resamples.
    refitted : Evaluator, optional
        The same network with the gains of the heads that are left refitted. Every order but the
        random ones is measured with it, too, as ``… refitted``.

    Returns
    -------
    xarray.Dataset
        Variables and dimensions as docs/pruning.md lists them. Intervals of differences are too
        narrow on few test examples: on 50, of which 2.5 % differ, that of a difference in accuracy
        contains the true one in 72 of 100 cases.

    Raises
    ------
    ValueError
        If there is no test set, no head may be removed, a score has another number of heads or of
        draws or the name of one that is computed here, or a number is out of range.
    """
    heads, keeps_layers = evaluator.heads, evaluator.keeps_layers
    largest = sum(heads) - len(heads) * keeps_layers
    if not tests or not largest:
        raise ValueError("every layer has one head only" if tests else "tests names no test set")
    counts = [0, *_counts(removed, largest)]
    best_name = f"best-of {best_of}"
    _check_numbers(random, shapley, greedy, best_of, resamples, seed)
    for name in scores:
        if name in ("ablation", "shapley", "greedy", best_name, RANDOM):
            raise ValueError(f"scores holds {name!r}, which is computed here; rename it")
    game = HeadGame(evaluator, validation)
    given = {
        name: score_array(f"scores[{name!r}]", score, every_head(heads))
        for name, score in scores.items()
    }
    for name, score in given.items():
        check_known(name, score, game.removable)
    computed = score_by_evaluation(
        game, shapley=shapley, greedy=greedy, removals=counts[-1], seed=seed
    )
    table = score_table(given | computed, game.draws)
    is_removed = removed_by_score(table["score"], counts, keeps_layers=keeps_layers)
    sets = removed_at_random(heads, counts, max(random, best_of), seed, keeps_layers=keeps_layers)
    if best_of:
        best_sets = best_removed(game, sets[:best_of]).expand_dims(order=[best_name])
        is_removed = xr.concat([is_removed, best_sets], "order", coords="minimal", compat="equals")
    names = is_removed["order"].values.tolist()
    orders = [*names, RANDOM]
    if refitted is not None:
        orders[-1:-1] = map(refitted_order, names)
    bootstrap = Bootstrap(resamples, seed)
    tested = []
    for test in tests:
        lost = game.lost_without(test)
        losses = xr.Dataset(
            {
                "lost": lost.mean("example", skipna=False),
                "lost_error": xr.apply_ufunc(standard_error, lost, input_core_dims=[["example"]]),
            }
        )
        if best:
            losses["best_measured"] = ("removed", "quantity", "draw"), game.best(test, counts)
        measured = measure_orders(game, test, is_removed, sets[:random], bootstrap, refitted)
        correlated = correlate_scores(game, table["score"], lost, bootstrap)
        tested.append(xr.merge([losses, measured, correlated.reindex(order=orders)], join="exact"))
    needs = dict(zip(table["order"].values, table["needs"].values)) | {best_name: "examples"}
    if refitted is not None:
        is_removed = is_removed.reset_coords(drop=True)
        again = is_removed.assign_coords(order=list(map(refitted_order, names)))
        is_removed = xr.concat([is_removed, again], "order", coords="minimal", compat="equals")
        needs |= {refitted_order(name): "examples" for name in names}
    of_orders = [table.drop_vars("needs"), is_removed.astype(float).to_dataset(name="is_removed")]
    compared = xr.merge(
        [
            *(dataset.reindex(order=orders) for dataset in of_orders),
            xr.concat(tested, "test_set", coords="minimal", compat="equals"),
        ],
        join="exact",
        compat="equals",
    )
    labels = {
        "order": orders,
        "needs": [needs.get(order, "") for order in orders],
        "removed": counts,
        "quantity": tuple(evaluator.quantities),
        "better": tuple(evaluator.quantities.values()),
        "draw": range(1, game.draws + 1),
        "reference": (FIRST, RANDOM),
        "test_set": tuple(tests),
        "examples": [game.examples(test) for test in tests],
        "within_layer": range(1, len(heads) + 1),
        "resampled": ("examples", "heads"),
        "bound": ("lower", "upper"),
        "random_order": range(1, random + 1),
    }
    attributes = {"heads_per_layer": list(heads), "resamples": resamples}
    return ORDER_VARIABLES.dataset(compared, labels, heads).assign_attrs(attributes)


def orders_of(result: xr.Dataset) -> list[str]:
    """Labels of all orders but the random ones."""
    return [str(name) for name in result["order"].values if name != RANDOM]


def removed_heads(result: xr.Dataset, name: str, count: int | None = None) -> list[Head]:
    """Heads that an order of a comparison of one draw removes, (layer, number).

    ``count`` is the number of removals, by default the largest in the comparison. Heads that a step
    removes together come by layer and number. Raises a ValueError if there is no such order or
    number in the comparison.
    """
    counts = result["removed"].values.tolist()
    if name not in orders_of(result) or (count is not None and count not in counts):
        raise ValueError(
            f"the comparison has the orders {', '.join(orders_of(result))} and the numbers "
            f"{', '.join(map(str, counts))} of removals, but not {name!r} with {count}"
        )
    return removed_sets(result, name)[-1 if count is None else counts.index(count)]


def removed_sets(result: xr.Dataset, name: str) -> list[list[Head]]:
    """Heads that an order of a comparison removes, as for :func:`removed_heads`, by the number."""
    is_removed = result["is_removed"].sel(order=name).isel(draw=0).transpose("removed", "head")
    steps = is_removed.values
    first_ones = np.argsort(-steps.sum(axis=0), kind="stable")
    heads = list(zip(result["layer"].values.tolist(), result["number"].values.tolist()))
    return [[heads[head] for head in first_ones if step[head]] for step in steps]


def _check_numbers(
    random: int,
    shapley: int | Literal["exact"],
    greedy: int,
    best_of: int,
    resamples: int,
    seed: int,
) -> None:
    orders_of_arrival = 0 if shapley == "exact" else shapley
    for name, number, lowest in (
        ("random", random, 2),
        ("resamples", resamples, 1),
        ("shapley", orders_of_arrival, 0),
        ("greedy", greedy, 0),
        ("best_of", best_of, 0),
        ("seed", seed, 0),
    ):
        if not isinstance(number, Integral) or number < lowest:
            raise ValueError(
                f"{name} must be a whole number of at least {lowest}, but is {number!r}"
            )
    if 0 < orders_of_arrival < 4 or orders_of_arrival % 2:
        raise ValueError(f"shapley must be 0, 'exact', or even and at least 4, but is {shapley}")


def _counts(removed: Sequence[int] | None, largest: int) -> list[int]:
    counts = range(1, largest + 1) if removed is None else removed
    counts = list(counts) if isinstance(counts, Iterable) else []
    are_whole = all(isinstance(count, Integral) for count in counts)
    limits = [0, *counts, largest + 1]
    if not counts or not are_whole or sorted({*limits}) != limits:
        raise ValueError(
            f"removed must be growing numbers of the {largest} heads that can be removed, but is "
            f"{removed}"
        )
    return counts
