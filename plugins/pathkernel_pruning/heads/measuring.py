"""Values of a network as orders remove its heads, with errors, differences and intervals."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_pruning.heads.correlation import Bootstrap, interval, spearman
from pathkernel_pruning.heads.evaluator import Evaluator
from pathkernel_pruning.heads.head_game import HeadGame, standard_error

RANDOM = "random"
"""Label of the mean over random orders."""

_ORDER = ("order", "removed", "quantity")


def measure_orders(
    game: HeadGame,
    test: str,
    is_removed: xr.DataArray,
    random: xr.DataArray,
    bootstrap: Bootstrap,
    refitted: Evaluator | None = None,
) -> xr.Dataset:
    """Values on a test set without the heads that every order removes, and in random orders.

    Parameters
    ----------
    game : HeadGame
    test : str
        Name of the test set.
    is_removed : xarray.DataArray of bool, dims (order, removed, draw, head)
        The first order is a reference of differences.
    random : xarray.DataArray of bool, dims (random_order, removed, head)
        The mean over these orders is the other reference.
    bootstrap : Bootstrap
    refitted : Evaluator, optional
        The network with the gains of the heads that are left refitted; the same orders are measured
        with it, too, and follow those without, see :func:`refitted_order`.

    Returns
    -------
    xarray.Dataset
        ``measured`` to ``random_as_good`` of docs/pruning.md, without test_set; the last order is
        the mean of the random ones.
    """
    names = is_removed["order"].values.tolist()
    left = ~is_removed.transpose("order", "draw", "removed", "head").values
    random_left = ~random.transpose("random_order", "removed", "head").values
    evaluators = [game.evaluator] if refitted is None else [game.evaluator, refitted]
    # a draw is measured with the heads that its own scores leave: column c of the sets of draw c
    values = [
        np.stack(
            [evaluator.evaluate(test, sets)[..., draw] for draw, sets in enumerate(of_order)],
            axis=-1,
        )
        for evaluator in evaluators
        for of_order in left
    ]
    # the random orders' values of all examples are summed one by one, as they would fill memory
    total, means = 0.0, []
    for sets in random_left:
        drawn = game.evaluator.evaluate(test, sets)
        total = total + drawn
        means.append(drawn.mean(axis=2))
    values.append(total / len(means))
    random_measured = np.array(means)
    measured = np.array([order.mean(axis=2) for order in values])
    by_example = np.array([order.mean(axis=-1) for order in values])
    resampled = bootstrap.means(by_example)
    # equal up to rounding is as good
    as_good = game.signs[:, None] * (random_measured[:, None] - measured[:-1]) >= -1e-12

    def less_references(table: np.ndarray) -> np.ndarray:
        """A table (order, removed, quantity, …) less its first and last, (…, reference, …)."""
        return np.stack([table - table[:1], table - table[-1:]], axis=3)

    return xr.Dataset(
        {
            "measured": ((*_ORDER, "draw"), measured),
            "measured_error": (_ORDER, standard_error(by_example)),
            "change_error": (_ORDER, standard_error(by_example - by_example[:, :1])),
            "difference": (
                (*_ORDER, "reference"),
                less_references(by_example.mean(axis=-1)),
            ),
            "difference_interval": (
                (*_ORDER, "reference", "bound"),
                interval(less_references(resampled)),
            ),
            "random_measured": (
                ("random_order", "removed", "quantity", "draw"),
                random_measured,
            ),
            "random_as_good": (
                (*_ORDER, "draw"),
                np.concatenate([as_good.mean(axis=0), np.full((1, *measured.shape[1:]), np.nan)]),
            ),
        },
        {"order": [*names, *map(refitted_order, names if refitted else ()), RANDOM]},
    )


def refitted_order(name: str) -> str:
    """Label of an order whose remaining heads have refitted gains."""
    return f"{name} refitted"


def correlate_scores(
    game: HeadGame, scores: xr.DataArray, lost: xr.DataArray, bootstrap: Bootstrap
) -> xr.Dataset:
    """Rank correlations of scores with the losses with one head off, and their intervals.

    Parameters
    ----------
    game : HeadGame
    scores : xarray.DataArray, dims (order, draw, head)
        The first order is the reference of differences.
    lost : xarray.DataArray, dims (draw, head, example)
        Loss of every example without the head, from :meth:`HeadGame.lost_without`.
    bootstrap : Bootstrap

    Returns
    -------
    xarray.Dataset
        ``rank_correlation`` to ``correlation_difference_interval`` of docs/pruning.md, without
        test_set.
    """
    layers, by_order = scores["layer"].values, scores.transpose("order", "draw", "head").values
    losses_of_examples = lost.transpose("draw", "head", "example").values
    mean = losses_of_examples.mean(axis=-1)
    within = [
        spearman(by_order[..., of_layer], mean[:, of_layer])
        for of_layer in (
            np.flatnonzero((layers == layer) & game.removable)
            for layer in range(1, len(game.layers) + 1)
        )
    ]
    removable = game.removable
    by_order, mean = by_order[..., removable], mean[:, removable]
    # two questions, two resamplings: other examples for the same heads, or other heads
    drawn = bootstrap.drawn_heads(by_order.shape[-1])
    by_draw = [
        [
            spearman(by_order[:, draw, None], bootstrap.means(losses).T),  # (order, resamples)
            spearman(by_order[:, draw, drawn], mean[draw, drawn]),
        ]
        for draw, losses in enumerate(losses_of_examples[:, removable])
    ]
    resampled = np.mean(by_draw, axis=0).swapaxes(0, 1)  # (order, resampled, resamples)
    correlation = spearman(by_order, mean)
    ends = ("order", "resampled", "bound")
    return xr.Dataset(
        {
            "rank_correlation": (("order", "draw"), correlation),
            "rank_correlation_interval": (ends, interval(resampled)),
            "layer_correlation": (("order", "draw", "within_layer"), np.stack(within, axis=-1)),
            "correlation_difference": ("order", (correlation - correlation[0]).mean(axis=-1)),
            # paired: both orders meet the same examples or heads in every resample
            "correlation_difference_interval": (ends, interval(resampled - resampled[0])),
        },
        {"order": scores["order"]},
    )
