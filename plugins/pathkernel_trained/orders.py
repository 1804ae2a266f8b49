"""Orders of heads compared on one network: the losses as heads go, single heads, correlations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np
import xarray as xr

from pathkernel_trained.correlation import Bootstrap, interval, spearman
from pathkernel_trained.evaluator import Evaluator
from pathkernel_trained.head_game import HeadGame, own_scores, standard_error
from pathkernel_trained.heads import (
    Head,
    by_layer,
    every_head,
    per_layer,
    random_orders,
    removal_order,
)
from pathkernel_trained.layout import labelled_orders
from pathkernel_trained.removal_games import best_of as best_of_sizes
from pathkernel_trained.removal_games import left_after
from pathkernel_trained.scores import NEEDS, HeadScores, kind_of

RANDOM = "random"
"""Label of the mean over orders that are drawn at random."""

RANDOM_ORDERS, RESAMPLES = 200, 2000
FIRST = "first order"
"""Reference of paired differences, beside the random orders."""


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
    """Remove heads of a network in the order of every score, and at random, and see what is lost.

    Beside the scores that are given there are those that ask the network itself, on validation
    examples: ``ablation``, the loss without each head, and on request Shapley values, a greedy
    order and the best of some random sets. What is lost is measured on test examples. Heads go by
    the evaluator's first quantity.

    Parameters
    ----------
    evaluator : Evaluator
    scores : mapping of str to HeadScores
        By the name of the order; low ones go first. The first is compared with all others.
    validation : str
        Name of the set of examples that heads are scored on.
    tests : sequence of str
        Names of the test sets.
    removed : sequence of int, optional
        Numbers of heads to remove; by default all, from 1 until nothing may be removed.
    random : int
        Orders drawn at random, at least 2.
    shapley : int or "exact"
        Orders of arrival from which Shapley values are estimated, even and at least 4; "exact" for
        all, with at most 16 heads; 0 for none. Every order is taken backwards too.
    greedy : int
        Heads that the greedy order takes at a time, those without which least is lost when each is
        removed beside all before; 0 for no such order.
    best_of : int
        Number of random sets of each size of which the best is taken: those that the first random
        orders begin with; 0 for none.
    best : bool
        Whether to find the best of all sets on the test examples, with at most 16 heads.
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
        If there is no test set, no head may be removed, a score has another number of heads or of
        draws or the name of one that is computed here, or a number is out of range.
    """
    heads, keeps = evaluator.heads, evaluator.keeps_layers
    most = sum(heads) - len(heads) * keeps
    if not tests or not most:
        raise ValueError("every layer has one head only" if tests else "tests names no test set")
    counts = [0, *_counts(removed, most)]
    _check_numbers(
        random=random,
        resamples=resamples,
        shapley=0 if shapley == "exact" else shapley,
        greedy=greedy,
        best_of=best_of,
        seed=seed,
    )
    best_name = f"best-of {best_of}"
    for name in scores:
        if name in ("ablation", "shapley", "greedy", best_name, RANDOM):
            raise ValueError(f"scores holds {name!r}, which is computed here; rename it")
    game = HeadGame(evaluator, validation)
    table = {name: _of_draws(name, given, game.draws) for name, given in scores.items()}
    table |= {
        name: _of_draws(name, score, game.draws)
        for name, score in own_scores(game, counts[-1], shapley, greedy, seed)
    }
    drawn = random_orders(heads, max(random, best_of), seed, keeps_layers=keeps)
    at_random = left_after(drawn, sum(heads))[:, counts]
    orders = {
        name: np.array([removal_order(row, heads, keeps_layers=keeps) for row in score.values])
        for name, score in table.items()
    }  # (draw, removal)
    left = {
        name: left_after(order, sum(heads))[:, counts].swapaxes(0, 1)
        for name, order in orders.items()
    }  # (removed, draw, head)
    if best_of:
        chosen = best_of_sizes(game.worth, at_random[:best_of].reshape(-1, sum(heads)))
        left[best_name] = np.repeat(chosen[:, None], game.draws, axis=1)
    unscored = len(left) - len(table) + 1  # orders that have no scores, with the random one
    values = np.array([score.values for score in table.values()])
    bootstrap = Bootstrap(resamples, seed)
    parts = []
    for test in tests:
        lost = game.lost_without(test)
        parts.append(
            {
                "lost": by_layer(lost.mean(axis=-1), heads),
                "lost_error": by_layer(standard_error(lost), heads),
                **_correlations(values, lost, game, bootstrap, unscored),
                **_measured(game, test, [*left.values()], at_random[:random], bootstrap),
            }
        )
        if best:
            parts[-1]["best_measured"] = game.best(test, counts)
    is_removed = np.array([by_layer(~np.moveaxis(sets, 0, -2), heads) for sets in left.values()])
    variables = {
        "score": _extended(by_layer(values, heads), unscored),
        "score_error": _extended(
            by_layer(np.array([score.errors for score in table.values()]), heads), unscored
        ),
        "is_removed": _extended(np.moveaxis(is_removed, 1, 2), 1),
        **{name: np.array([part[name] for part in parts]) for name in parts[0]},
    }
    labels = {
        "order": (*left, RANDOM),
        "needs": [NEEDS.get(kind_of(name), "") for name in (*left, RANDOM)],
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

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`compare_orders`.
    name : str
        Label of the order.
    count : int, optional
        Number of removals; by default as many as there are.
    """
    table = result["is_removed"].sel(order=name).isel(draw=0)
    heads = every_head(result.attrs["heads_per_layer"])
    steps = {head: table.sel(layer=head[0], head=head[1]) for head in heads}
    last = {"removed": result["removed"].values[-1] if count is None else count}
    gone = [head for head in heads if steps[head].sel(last)]
    return sorted(gone, key=lambda head: -int(steps[head].sum()))


def _measured(
    game: HeadGame,
    test: str,
    left: Sequence[np.ndarray],
    at_random: np.ndarray,
    bootstrap: Bootstrap,
) -> dict[str, np.ndarray]:
    """Values on a test set with the heads (removed, draw, head) that every order leaves."""
    evaluate = game.evaluator.evaluate
    values = [
        np.stack([evaluate(test, sets[:, c])[..., c] for c in range(game.draws)], axis=-1)
        for sets in left
    ]
    total, random = 0.0, []
    for sets in at_random:
        drawn = evaluate(test, sets)
        total = total + drawn
        random.append(drawn.mean(axis=2))
    values.append(total / len(random))
    measured = np.array([of_order.mean(axis=2) for of_order in values])
    mean = np.array([of_order.mean(axis=-1) for of_order in values])
    resampled = bootstrap.means(mean)
    as_good = game.signs[:, None] * (np.array(random)[:, None] - measured[:-1]) >= -1e-12

    def less(table: np.ndarray) -> np.ndarray:
        """A table (order, removed, quantity, …) less its first and last, (…, reference, …)."""
        return np.stack([table - table[:1], table - table[-1:]], axis=3)

    return {
        "measured": measured,
        "measured_error": standard_error(mean),
        "change_error": standard_error(mean - mean[:, :1]),
        "difference": less(mean.mean(axis=-1)),
        "difference_interval": interval(less(resampled)),
        "random_measured": np.array(random),
        "random_as_good": _extended(as_good.mean(axis=0), 1),
    }


def _correlations(
    scores: np.ndarray, lost: np.ndarray, game: HeadGame, bootstrap: Bootstrap, unscored: int
) -> dict[str, np.ndarray]:
    """Spearman's ρ of scores (order, C, ΣH_ℓ) with the mean of what is lost (C, ΣH_ℓ, P)."""
    mean = lost.mean(axis=-1)
    masks = per_layer(np.eye(game.players, dtype=bool), game.layers)
    within = [
        spearman(scores[..., mask], mean[:, mask])
        for mask in (layer.any(axis=0) & game.removable for layer in masks)
    ]
    scores, lost, mean = (
        scores[..., game.removable],
        lost[:, game.removable],
        mean[:, game.removable],
    )
    places = bootstrap.places(scores.shape[-1])
    by_draw = [
        [
            spearman(scores[:, draw, None], bootstrap.means(losses).T),  # (order, resamples)
            spearman(scores[:, draw, places], mean[draw, places]),
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


def _counts(removed: Sequence[int] | None, most: int) -> list[int]:
    counts = range(1, most + 1) if removed is None else removed
    listed = list(counts) if isinstance(counts, Iterable) else []
    whole = all(isinstance(count, Integral) for count in listed)
    if not (listed and whole and sorted({0, *listed, most + 1}) == [0, *listed, most + 1]):
        raise ValueError(
            f"removed must be growing numbers of the {most} heads that can be removed, but is "
            f"{removed}"
        )
    return listed


def _check_numbers(**given: Any) -> None:
    """Check whole numbers against the least values allowed."""
    least = {"random": 2, "resamples": 1}
    for name, number in given.items():
        if not isinstance(number, Integral) or number < least.get(name, 0):
            raise ValueError(
                f"{name} must be a whole number of at least {least.get(name, 0)}, but is {number!r}"
            )
    if 0 < given["shapley"] < 4 or given["shapley"] % 2:
        raise ValueError(
            f"shapley must be 0, 'exact', or even and at least 4, but is {given['shapley']}"
        )


def _of_draws(name: str, given: HeadScores, draws: int) -> HeadScores:
    """Scores and their errors for each draw, (C, ΣH_ℓ)."""
    values = np.atleast_2d(given.values)
    if len(values) not in (1, draws):
        raise ValueError(
            f"scores[{name!r}] must hold a number for every head, or one for each of {draws} "
            f"draws of the measure, but has {len(values)}"
        )
    shape = draws, values.shape[1]
    errors = np.nan if given.errors is None else np.atleast_2d(given.errors)
    return HeadScores(np.broadcast_to(values, shape), np.broadcast_to(errors, shape))


def _extended(values: np.ndarray, missing: int) -> np.ndarray:
    """Values (order, …) with NaN for orders that have none."""
    return np.concatenate([values, np.full((missing, *values.shape[1:]), np.nan)])
