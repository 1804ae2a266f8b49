"""The table of scores of different names: given ones and computed ones on common axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from pathkernel_core.heads import Head, head_label
from pathkernel_heads.heads import heads_named, scores_by_head

Scores: TypeAlias = xr.DataArray | Mapping[Any, Any]
"""Scores of all heads: an array with the dimension ``head``, and ``draw`` if each draw of the
measure has its own; or a mapping of (layer, head) to a number, or to an array of one per draw."""


def kind_of(order: str) -> str:
    """Name of the score of an order, such as ``theory`` of ``theory N=10``."""
    return order.partition(" ")[0]


def score_array(name: str, scores: Scores, heads: Sequence[Head]) -> xr.DataArray:
    """Scores of some heads in their order, dims (head, draw), from a labelled array or a mapping.

    ``name`` is that of the order, for messages. Scores of further heads are left out, such as that
    of the path through no head. Raises a ValueError if a head has no score.
    """
    if isinstance(scores, Mapping):
        scores = _from_mapping(name, scores)
    if not isinstance(scores, xr.DataArray) or {*scores.dims} - {"draw"} != {"head"}:
        is_labelled = isinstance(scores, xr.DataArray)
        has = f"of dims {scores.dims}" if is_labelled else f"a {type(scores).__name__}"
        raise ValueError(
            f"scores[{name!r}] must give the score of every (layer, head), as an array with the "
            f"dimension head, and draw if each draw has its own, or as a mapping, but is {has}; of "
            "the theory's take captured.by_head(solution.head_scores)"
        )
    labels = list(map(head_label, heads))
    given = scores["head"].values.tolist() if "head" in scores.coords else []
    if missing := [head for head, label in zip(heads, labels) if label not in given]:
        raise ValueError(f"scores[{name!r}] lacks (layer, head) = {missing[0]}; score every head")
    if twice := sorted({label for label in given if given.count(label) > 1}):
        raise ValueError(f"scores[{name!r}] has head {twice[0]} twice; give every head one score")
    ordered = scores.isel(head=[given.index(label) for label in labels])
    if "draw" not in ordered.dims:
        ordered = ordered.drop_vars("draw", errors="ignore").expand_dims(draw=1)
    # labelled anew: an array of the user's need not have the layers and numbers of its heads
    ordered = ordered.transpose("head", "draw")
    errors = ordered.coords.get("standard_error")
    if errors is not None:
        errors = errors.broadcast_like(ordered).transpose("head", "draw").values
    return scores_by_head(heads, ordered.values, errors, needs=scores.attrs.get("needs", ""))


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


def _from_mapping(name: str, scores: Mapping[Any, Any]) -> xr.DataArray:
    columns: list[np.ndarray] = []
    try:
        columns = [np.asarray(score, dtype=float) for score in scores.values()]
        table = np.array(np.broadcast_arrays(*columns))
    except (ValueError, TypeError):
        table = np.array(np.nan)
    if table.ndim not in (1, 2):
        shapes = sorted({column.shape for column in columns})
        has = f"shapes {', '.join(map(str, shapes))}" if columns else "others than numbers"
        raise ValueError(
            f"scores[{name!r}] must hold a number for every head, or one for each draw, but has "
            f"{has}"
        )
    return scores_by_head(heads_named(scores), table)
