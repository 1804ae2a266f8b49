"""The axis of heads: scores by head, sets of heads that may be removed, and orders of removal.

Labelled arrays have the dimension ``head``, with labels such as ``2-1`` and the coordinates
``layer`` and ``number``. Arrays without labels have the same heads in the same order, that of
:func:`pathkernel_core.paths.heads.every_head`; a set of heads is a row of bool along that axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr


def heads_per_layer(labelled: xr.DataArray | xr.Dataset) -> tuple[int, ...]:
    """Numbers of heads H_1 … H_L of each layer, of an array with all of them in their order."""
    return tuple(np.bincount(labelled["layer"].values)[1:].tolist())


def are_removable(heads: Sequence[int]) -> np.ndarray:
    """Which heads can be removed alone, as their layer has another, array of bool (ΣH_ℓ,)."""
    return np.repeat(np.array(heads) > 1, heads)


def keep_every_layer(present: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Which sets of heads, bool (k, ΣH_ℓ), have one in every layer, (k,)."""
    starts = np.cumsum([0, *heads[:-1]])
    return np.logical_or.reduceat(present, starts, axis=1).all(axis=1)


def normalised_in_layers(scores: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Scores (ΣH_ℓ, …) divided by their ℓ2 norm over the heads of each layer, where it is not 0."""
    of_layers = np.split(scores, np.cumsum(heads)[:-1])
    norms = [np.linalg.norm(of_layer, axis=0) for of_layer in of_layers]
    return np.concatenate(
        [of_layer / np.where(norm > 0, norm, 1.0) for of_layer, norm in zip(of_layers, norms)]
    )


def removal_order(
    scores: np.ndarray, heads: Sequence[int], *, keeps_layers: bool = True
) -> np.ndarray:
    """Positions of heads on their axis in increasing score; equal ones by layer and number.

    Parameters
    ----------
    scores : array, shape (ΣH_ℓ,)
    heads : sequence of int
        Heads H_1 … H_L of each layer.
    keeps_layers : bool
        Whether every layer keeps a head: one whose removal would empty its layer is passed over,
        and the score of a layer's only head has no effect, and may be NaN.

    Raises
    ------
    ValueError
        If the score of another head is NaN.
    """
    scores = np.asarray(scores, dtype=float)
    if np.isnan(scores[are_removable(heads) | (not keeps_layers)]).any():
        raise ValueError(
            "scores hold NaN, which cannot be ordered; score every head that may be removed"
        )
    layers, left, order = np.repeat(range(len(heads)), heads), list(heads), []
    # a stable sort, so that equal scores give the same order on every machine
    for head in np.argsort(scores, kind="stable"):
        if left[layers[head]] > keeps_layers:
            left[layers[head]] -= 1
            order.append(head)
    return np.array(order, dtype=int)


def random_orders(
    heads: Sequence[int], count: int, seed: int, *, keeps_layers: bool = True
) -> np.ndarray:
    """Random removal orders, (count, removals); parameters as for :func:`removal_order`."""
    generator = np.random.default_rng(seed)
    drawn = (np.argsort(generator.permutation(sum(heads))) for _ in range(count))
    return np.array([removal_order(rank, heads, keeps_layers=keeps_layers) for rank in drawn])
