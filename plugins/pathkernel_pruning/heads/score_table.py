"""The table of scores of different names: given ones and computed ones on common axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import xarray as xr

MEANINGS = {
    "theory": "weight of U on the paths through a head",
    "sampled": "the same of the mean of sampled U",
    "silenced": "rise of the theory's error where a head's rows and columns of U are 0 and the "
    "predictor is fitted again",
    "restricted": "rise of the theory's error where the mean predictor loses a head's paths",
    "re-equilibrated": "rise of the theory's error where the action is minimised again without "
    "a head",
    "trained": "weight of the trained network's U on the paths through a head",
    "gradient": "size of the loss's derivative by a factor before the head, in parts of its layer",
    "raw-gradient": "size of the loss's derivative by a factor before the head",
    "magnitude": "norm of a head's value weights",
    "curvature": "rise of the loss as a head's factor becomes 0, to second order",
    "renewed-curvature": "curvature, computed again as heads go",
    "ablation": "loss with one head off",
    "shapley": "Shapley value: gain of a head next to those present, averaged over orders",
    "greedy": "the head that costs least goes at every step",
    "best-of": "the best of some random sets of each size",
}
"""What a score of this project is, in a clause, by its name."""


def describe_orders(result: xr.Dataset, orders: Iterable[str]) -> str:
    """Return a caption's sentence on the scores of some orders, empty if none is known.

    Scores that a user gives, which have no ``needs``, may be anything, whatever their name.
    """
    needs = dict(zip(result["order"].values, result["needs"].values, strict=True))
    names = dict.fromkeys(score_name(order) for order in orders if needs[order] != "")
    clauses = [f"{name}, {MEANINGS[name]}" for name in names if name in MEANINGS]
    return f" Scores: {'; '.join(clauses)}." if clauses else ""


def score_name(order: str) -> str:
    """Name of the score of an order, such as ``theory`` of ``theory N=10``."""
    return order.partition(" ")[0]


def check_known(name: str, scores: xr.DataArray, needed: np.ndarray) -> None:
    """Raise a ValueError if a score is NaN among the ``needed`` ones, bool (ΣH_ℓ,)."""
    if np.isnan(scores.values[needed]).any():
        label = scores["head"].values[needed][np.isnan(scores.values[needed]).any(axis=1)][0]
        raise ValueError(
            f"scores[{name!r}] has NaN for head {label}, which cannot be ordered; score every head "
            "that may be removed"
        )


def check_finite(name: str, scores: xr.DataArray) -> None:
    """Raise a ValueError if a score is NaN or infinite."""
    if infinite := np.count_nonzero(~np.isfinite(scores.values)):
        raise ValueError(
            f"scores[{name!r}] must hold a finite number for every head, or one for each draw, but "
            f"has {infinite} of {scores.size} that are not finite"
        )


def score_table(scores: Mapping[str, xr.DataArray], draws: int) -> xr.Dataset:
    """Scores of all orders, ``score`` and ``score_error``, dims (order, draw, head).

    A score without draws counts for all of them; errors that are not known are NaN. Raises a
    ValueError if a score is neither of one nor of all draws of the measure.
    """
    tables = []
    for name, score in scores.items():
        if score.sizes["draw"] not in (1, draws):
            raise ValueError(
                f"scores[{name!r}] must hold a number for every head, or one for each of {draws} "
                f"draws of the measure, but has {score.sizes['draw']}"
            )
        shape = draws, score.sizes["head"]
        error = score.coords.get("standard_error", xr.full_like(score, np.nan, dtype=float))
        tables.append(
            xr.Dataset(
                {
                    "score": (("draw", "head"), np.broadcast_to(score.values.T, shape)),
                    "score_error": (("draw", "head"), np.broadcast_to(error.values.T, shape)),
                },
                # variables, as labelled ones would bring the errors along
                {name: score.coords[name].variable for name in ("head", "layer", "number")},
            )
        )
    joined = xr.concat(
        tables, xr.Variable("order", list(scores)), coords="minimal", compat="equals"
    )
    needs = [score.attrs.get("needs", "") for score in scores.values()]
    return joined.assign_coords(needs=("order", needs))
