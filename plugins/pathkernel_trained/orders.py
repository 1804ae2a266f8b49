"""Orders of heads compared on one network: losses as heads are removed, and rank correlations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Literal

import numpy as np
import xarray as xr

from pathkernel_trained.correlation import Bootstrap, interval, spearman
from pathkernel_trained.evaluator import Evaluator
from pathkernel_trained.head_game import HeadGame, evaluated_scores, standard_error
from pathkernel_trained.heads import (
    Head,
    by_layer,
    every_head,
    from_layers,
    per_layer,
    random_orders,
    removal_order,
)
from pathkernel_trained.layout import labelled_orders
from pathkernel_trained.removal_games import best_of as best_of_sizes
from pathkernel_trained.removal_games import left_after
from pathkernel_trained.scores import NEEDS, HeadScores, kind_of

RANDOM = "random"
"""Label of the mean over random orders."""

RANDOM_ORDERS, RESAMPLES = 200, 2000
FIRST = "first order"
"""Reference of paired differences, next to the random orders."""


def compare_orders(
    evaluator: Evaluator,
    scores: Mapping[str, HeadScores],
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
) -> xr.Dataset:
    """Remove heads of a network in the order of every score and in random orders.

    Further scores are computed from the evaluator, on validation examples: ``ablation``, the loss
    without each head, and on request Shapley values, a greedy order and the best of some random
    sets. They use the evaluator's first quantity. Losses are measured on test examples.

    Parameters
    ----------
    evaluator : Evaluator
    scores : mapping of str to HeadScores
        By the name of the order; heads of low scores are removed first. The first is compared with
        all others.
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
    best_name = f"best-of {best_of}"
    for name in scores:
        if name in ("ablation", "shapley", "greedy", best_name, RANDOM):
            raise ValueError(f"scores holds {name!r}, which is computed here; rename it")
    game = HeadGame(evaluator, validation)
    computed = evaluated_scores(game, counts[-1], shapley, greedy, seed)
    table = {
        name: _of_draws(name, score, game.draws) for name, score in (*scores.items(), *computed)
    }
    drawn = random_orders(heads, max(random, best_of), seed, keeps_layers=keeps_layers)
    random_sets = left_after(drawn, sum(heads))[:, counts]
    present = {}  # (removed, draw, head) by order
    for name, score in table.items():
        orders = [removal_order(row, heads, keeps_layers=keeps_layers) for row in score.values]
        present[name] = left_after(orders, sum(heads))[:, counts].swapaxes(0, 1)
    if best_of:
        chosen = best_of_sizes(game.worth, random_sets[:best_of].reshape(-1, sum(heads)))
        present[best_name] = np.repeat(chosen[:, None], game.draws, axis=1)
    unscored = len(present) - len(table) + 1  # orders without scores, with the random one
    values = np.array([score.values for score in table.values()])
    errors = np.array([score.errors for score in table.values()])
    bootstrap = Bootstrap(resamples, seed)
    parts = []
    for test in tests:
        lost = game.lost_without(test)
        parts.append(
            {
                "lost": by_layer(lost.mean(axis=-1), heads),
                "lost_error": by_layer(standard_error(lost), heads),
                **_correlations(values, lost, game, bootstrap, unscored),
                **_measured(game, test, [*present.values()], random_sets[:random], bootstrap),
            }
        )
        if best:
            parts[-1]["best_measured"] = game.best(test, counts)
    is_removed = by_layer(~np.array([*present.values()]), heads)
    variables = {
        "score": _extended(by_layer(values, heads), unscored),
        "score_error": _extended(by_layer(errors, heads), unscored),
        "is_removed": _extended(is_removed, 1),
        **{name: np.array([part[name] for part in parts]) for name in parts[0]},
    }
    labels = {
        "order": (*present, RANDOM),
        "needs": [NEEDS.get(kind_of(name), "") for name in (*present, RANDOM)],
        "removed": counts,
        "quantity": tuple(evaluator.quantities),
        "better": tuple(evaluator.quantities.values()),
        "draw": range(1, game.draws + 1),
        "reference": (FIRST, RANDOM),
        "test_set": tuple(tests),
        "examples": [game.examples(test) for test in tests],
        "layer": range(1, len(heads) + 1),
        "head": range(1, max(heads) + 1),
        "resampled": ("examples", "heads"),
        "bound": ("lower", "upper"),
        "random_order": range(1, random + 1),
    }
    attributes = {"heads_per_layer": list(heads), "resamples": resamples}
    return labelled_orders(variables, labels).assign_attrs(attributes)


def orders_of(result: xr.Dataset) -> list[str]:
    """Labels of all orders but the random ones."""
    return [str(name) for name in result["order"].values if name != RANDOM]


def removed_heads(result: xr.Dataset, name: str, count: int | None = None) -> list[Head]:
    """Heads that an order of a comparison of one draw removes, (layer, head), the first one first.

    ``count`` is the number of removals, by default the largest in the comparison.
    """
    heads = result.attrs["heads_per_layer"]
    table = result["is_removed"].sel(order=name).isel(draw=0)
    is_removed = from_layers(table.transpose("removed", "layer", "head"), heads)
    step = -1 if count is None else result["removed"].values.tolist().index(count)
    first_ones = np.argsort(-is_removed.sum(axis=0), kind="stable")
    return [every_head(heads)[head] for head in first_ones if is_removed[step, head]]


def _measured(
    game: HeadGame,
    test: str,
    present: Sequence[np.ndarray],
    random_sets: np.ndarray,
    bootstrap: Bootstrap,
) -> dict[str, np.ndarray]:
    """Values on a test set with the heads (removed, draw, head) that every order leaves."""
    evaluate = game.evaluator.evaluate
    values = [
        np.stack([evaluate(test, sets[:, c])[..., c] for c in range(game.draws)], axis=-1)
        for sets in present
    ]
    total, random = 0.0, []
    for sets in random_sets:
        drawn = evaluate(test, sets)
        total = total + drawn
        random.append(drawn.mean(axis=2))
    values.append(total / len(random))
    measured = np.array([order.mean(axis=2) for order in values])
    mean = np.array([order.mean(axis=-1) for order in values])
    resampled = bootstrap.means(mean)
    as_good = game.signs[:, None] * (np.array(random)[:, None] - measured[:-1]) >= -1e-12

    def less_references(table: np.ndarray) -> np.ndarray:
        """A table (order, removed, quantity, …) less its first and last, (…, reference, …)."""
        return np.stack([table - table[:1], table - table[-1:]], axis=3)

    return {
        "measured": measured,
        "measured_error": standard_error(mean),
        "change_error": standard_error(mean - mean[:, :1]),
        "difference": less_references(mean.mean(axis=-1)),
        "difference_interval": interval(less_references(resampled)),
        "random_measured": np.array(random),
        "random_as_good": _extended(as_good.mean(axis=0), 1),
    }


def _correlations(
    scores: np.ndarray, lost: np.ndarray, game: HeadGame, bootstrap: Bootstrap, unscored: int
) -> dict[str, np.ndarray]:
    """Spearman's ρ of scores (order, C, ΣH_ℓ) with the mean of losses (C, ΣH_ℓ, P)."""
    mean = lost.mean(axis=-1)
    layers = per_layer(np.arange(game.players), game.layers)
    within = [
        spearman(scores[..., layer], mean[:, layer])
        for layer in (layer[game.removable[layer]] for layer in layers)
    ]
    removable = game.removable
    scores, lost, mean = scores[..., removable], lost[:, removable], mean[:, removable]
    drawn = bootstrap.drawn_heads(scores.shape[-1])
    by_draw = [
        [
            spearman(scores[:, draw, None], bootstrap.means(losses).T),  # (order, resamples)
            spearman(scores[:, draw, drawn], mean[draw, drawn]),
        ]
        for draw, losses in enumerate(lost)
    ]
    resampled = np.mean(by_draw, axis=0).swapaxes(0, 1)  # (order, resampled, resamples)
    correlation = spearman(scores, mean)
    values = {
        "rank_correlation": correlation,
        "rank_correlation_interval": interval(resampled),
        "layer_correlation": np.stack(within, axis=-1),
        "correlation_difference": (correlation - correlation[0]).mean(axis=-1),
        "correlation_difference_interval": interval(resampled - resampled[0]),
    }
    return {name: _extended(table, unscored) for name, table in values.items()}


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


def _of_draws(name: str, score: HeadScores, draws: int) -> HeadScores:
    """Scores and their errors for each draw, (C, ΣH_ℓ)."""
    values = np.atleast_2d(score.values)
    if len(values) not in (1, draws):
        raise ValueError(
            f"scores[{name!r}] must hold a number for every head, or one for each of {draws} "
            f"draws of the measure, but has {len(values)}"
        )
    shape = draws, values.shape[1]
    errors = np.nan if score.errors is None else np.atleast_2d(score.errors)
    return HeadScores(np.broadcast_to(values, shape), np.broadcast_to(errors, shape))


def _extended(values: np.ndarray, missing: int) -> np.ndarray:
    """Values (order, …) with NaN for ``missing`` further orders."""
    return np.concatenate([values, np.full((missing, *values.shape[1:]), np.nan)])
