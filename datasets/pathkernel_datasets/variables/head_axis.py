"""The labelled axis of heads: heads as users name them, and scores along it.

Labelled arrays have the dimension ``head``, with labels such as ``2-1`` and the coordinates
``layer`` and ``number``, in the order of :func:`pathkernel_core.paths.heads.every_head`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import xarray as xr

from pathkernel_core.paths.heads import Head, head_label
from pathkernel_datasets.variables.labelling import coordinate

HEAD_MEANINGS = {
    "head": "head: its layer and its number, such as 2-1",
    "layer": "attention layer of the head, from the input",
    "number": "number of the head within its layer",
}
"""Meanings of the coordinates along the dimension of heads."""


@runtime_checkable
class ChosenHeads(Protocol):
    """Heads that were chosen to be off, with gains of all, such as ``pathkernel.HeadChoice``."""

    @property
    def heads(self) -> Sequence[Head]:
        """The chosen heads, as (layer, number)."""

    @property
    def gains(self) -> xr.DataArray:
        """Factors of the outputs of all heads, dims (head,), 0 of the chosen ones."""


Heads: TypeAlias = Iterable[Head] | Iterable[str] | xr.DataArray | ChosenHeads
"""Heads as a user names them: pairs, labels, the coordinate ``head`` of labelled scores, or a
choice of heads."""


def scores_by_head(
    heads: Iterable[Head], values: Any, errors: Any = None, *, needs: str = ""
) -> xr.DataArray:
    """Scores along the labelled axis of heads.

    Parameters
    ----------
    heads : iterable of (layer, number)
        Heads that the scores belong to, both numbers from 1.
    values : array, shape (H,) or (H, C)
        A score of every head, or one for each of C draws.
    errors : array of the same shape, optional
        Standard errors, the coordinate ``standard_error``.
    needs : str
        Requirement of the score, its attribute: ``theory``, ``weights`` or ``examples``.

    Returns
    -------
    xarray.DataArray, dims (head,) or (head, draw)
    """
    dims = ("head", "draw")[: np.ndim(values)]
    coordinates: dict[str, Any] = dict(head_coordinates(heads))
    if errors is not None:
        coordinates["standard_error"] = dims, np.asarray(errors)
    return xr.DataArray(values, coordinates, dims, "score", {"needs": needs} if needs else {})


def heads_named(heads: Heads) -> list[Head]:
    """Heads as (layer, number), from such pairs or from labels such as ``2-1``.

    Labels may come from the coordinate ``head`` of a labelled array, pairs from a choice of heads.
    Raises a TypeError for anything else.
    """
    if isinstance(heads, ChosenHeads):
        heads = heads.heads
    named: Any = heads
    try:
        named = heads.values.tolist() if isinstance(heads, xr.DataArray) else list(heads)
        pairs = [head.split("-") if isinstance(head, str) else head for head in named]
        return [(_to_integer(layer), _to_integer(number)) for layer, number in pairs]
    except (TypeError, ValueError):
        given = reprlib.repr(named).partition("\n")[0]
        raise TypeError(
            "heads must be pairs of layer and head, such as [(2, 3)], or labels, such as "
            f'["2-3"] or those of scores, scores["head"], not {given}'
        ) from None


def check_chosen(choice: ChosenHeads, heads: Sequence[Head]) -> None:
    """Raise a ValueError unless a choice is one among ``heads``, those of the model."""
    labels = choice.gains["head"].values.tolist()
    if labels != list(map(head_label, heads)):
        raise ValueError(
            f"the choice is among the {len(labels)} heads of another model, and this one has "
            f"{len(heads)}; heads are numbered again when some are taken out: choose among those "
            "that the model has now"
        )


def _to_integer(number: Any) -> int:
    if isinstance(number, str):
        return int(number)
    return int(np.asarray(number).__index__())


Scores: TypeAlias = xr.DataArray | Mapping[Any, Any]
"""Scores of all heads: an array with the dimension ``head``, and ``draw`` if each draw of the
measure has its own; or a mapping of (layer, head) to a number, or to an array of one per draw."""


THEORY = "of the theory's take captured.by_head(solution.head_scores)"
"""Advice on scores that are no labelled array."""


def score_array(
    name: str, scores: Scores, heads: Sequence[Head], *, advice: str = THEORY
) -> xr.DataArray:
    """Scores of some heads in their order, dims (head, draw), from a labelled array or a mapping.

    ``name`` is that of the argument, such as ``scores['gradient']``, for messages. Scores of
    further heads are left out, such as that of the path through no head. Raises a ValueError if a
    head has no score, or other than a real number.
    """
    if isinstance(scores, Mapping):
        scores = _from_mapping(name, scores)
    if not isinstance(scores, xr.DataArray) or {*scores.dims} - {"draw"} != {"head"}:
        is_labelled = isinstance(scores, xr.DataArray)
        has = f"of dims {scores.dims}" if is_labelled else f"a {type(scores).__name__}"
        raise ValueError(
            f"{name} must give a number for every (layer, head), as an array with the dimension "
            f"head, and draw if each draw has its own, or as a mapping, but is {has}; {advice}"
        )
    labels = list(map(head_label, heads))
    given = scores["head"].values.tolist() if "head" in scores.coords else []
    if missing := [head for head, label in zip(heads, labels) if label not in given]:
        raise ValueError(f"{name} lacks (layer, head) = {missing[0]}; give every head a number")
    if twice := sorted({label for label in given if given.count(label) > 1}):
        raise ValueError(f"{name} has head {twice[0]} twice; give every head one number")
    if scores.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the type {scores.dtype}; give real numbers")
    ordered = scores.isel(head=[given.index(label) for label in labels])
    if "draw" not in ordered.dims:
        ordered = ordered.drop_vars("draw", errors="ignore").expand_dims(draw=1)
    # labelled anew: an array of the user's need not have the layers and numbers of its heads
    ordered = ordered.transpose("head", "draw")
    errors = ordered.coords.get("standard_error")
    if errors is not None:
        errors = errors.broadcast_like(ordered).transpose("head", "draw").values
    return scores_by_head(heads, ordered.values, errors, needs=scores.attrs.get("needs", ""))


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
            f"{name} must hold a number for every head, or one for each draw, but has {has}"
        )
    return scores_by_head(heads_named(scores), table)


def head_coordinates(heads: Iterable[Head]) -> dict[str, xr.Variable]:
    """Coordinates along the dimension ``head``, of heads as (layer, number)."""
    heads = list(heads)
    labels = {
        "head": map(head_label, heads),
        "layer": (layer for layer, _ in heads),
        "number": (number for _, number in heads),
    }
    return {
        name: coordinate("head", entries, HEAD_MEANINGS[name]) for name, entries in labels.items()
    }
