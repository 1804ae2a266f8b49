"""Scores of heads from a study's store: of the theory's order parameter, and of sampled ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_datasets.selection import NOT_COMPUTED, number
from pathkernel_datasets.store import StoreError
from pathkernel_sampling.point import GridPoint
from pathkernel_sampling.sample_store import group_name, open_samples, runs

PAPER_WIDTH = 10.0
"""Width at which the paper scores heads (Fig. 3e, f)."""

_SAMPLERS = ("order-parameter", "collapsed", "weights")  # by how well they mix


def theory_points(
    dataset: xr.Dataset,
    widths: Sequence[float] | None = None,
    temperature: float | None = None,
    seed: int | None = None,
) -> list[GridPoint]:
    """Points of a study whose order parameters score heads; the first is the one to go by.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study, from :func:`pathkernel_datasets.store.open_store`.
    widths : sequence of float, optional
        By default the width of largest log evidence, and the paper's N = 10 if the study has it.
    temperature : float, optional
        By default that of largest log evidence, at every width.
    seed : int, optional
        By default the study's first.

    Raises
    ------
    StoreError
        If the study lacks a point, or it is not computed.
    """
    if seed is None:
        seed = int(dataset["seed"].values[0])
    if widths is None:
        best = _most_evident(dataset, temperature, seed)
        held = dataset["width"].values
        widths = [best.width]
        if best.width != PAPER_WIDTH and PAPER_WIDTH in held:
            widths.append(PAPER_WIDTH)
        points = [best] + [
            GridPoint.find(dataset, width, temperature, seed) for width in widths[1:]
        ]
    else:
        points = [GridPoint.find(dataset, width, temperature, seed) for width in widths]
    for at in points:
        theory_scores(dataset, at)  # raises where they are not computed
    return points


def theory_scores(dataset: xr.Dataset, at: GridPoint) -> list[np.ndarray]:
    """Scores of all heads from the theory's order parameter, the largest 1; one array per layer.

    Raises
    ------
    StoreError
        If the point is not computed, or its minimisation failed.
    """
    found = dataset.sel(seed=at.seed, temperature=at.temperature, width=at.width)
    order_parameter = found["order_parameter"].values
    if int(found["status"]) == NOT_COMPUTED or np.isnan(order_parameter).any():
        raise StoreError(
            f"the store holds no order parameter at N = {number(at.width)}, T = "
            f"{at.temperature:g}, seed {at.seed}; go on with: pathkernel run, or choose --widths"
        )
    return head_scores(_network(dataset), order_parameter)


def score_grid(dataset: xr.Dataset, seed: int) -> np.ndarray:
    """Theory's scores at every point of a study's grid.

    Returns
    -------
    array, shape (temperature, width, ΣH_ℓ)
        Heads layer by layer; NaN where a point is not computed.
    """
    study = dataset[["order_parameter", "status"]].sel(seed=seed)
    matrices = study["order_parameter"].transpose("temperature", "width", ...).values
    known = study["status"].transpose("temperature", "width").values != NOT_COMPUTED
    network = _network(dataset)
    grid = np.full((*known.shape, sum(network.heads)), np.nan)
    for place in zip(*np.nonzero(known)):
        if not np.isnan(matrices[place]).any():
            grid[place] = np.concatenate(head_scores(network, matrices[place]))
    return grid


def sampled_scores(store: str | os.PathLike, at: GridPoint) -> list[np.ndarray] | None:
    """Scores from the mean of the draws that a store holds at a point; None if it holds none.

    Of several samplers the order-parameter sampler's draws are taken first, then collapsed, then
    others.
    """
    present = runs(store)
    samplers = sorted(
        {group.split("/")[1] for group in present},
        key=lambda name: _SAMPLERS.index(name) if name in _SAMPLERS else len(_SAMPLERS),
    )
    for sampler in samplers:
        if (group := group_name(sampler, at)) in present:
            draws = open_samples(store, group)["posterior"]["order_parameter"]
            if draws.sizes["draw"]:
                labels = [str(path) for path in draws["path"].values]
                heads = np.array([label.split("-") for label in labels], dtype=int).max(axis=0)
                mean = draws.mean(("chain", "draw")).transpose("path", "path_dual")
                return head_scores(Network(heads, at.width), mean.values)
    return None


def _network(dataset: xr.Dataset) -> Network:
    return Network(dataset.attrs["heads_per_layer"], float(dataset["width"].values.max()))


def _most_evident(dataset: xr.Dataset, temperature: float | None, seed: int) -> GridPoint:
    """Point of largest log evidence of a seed, over the grid or at one temperature."""
    if seed not in dataset["seed"].values:
        GridPoint.find(dataset, float(dataset["width"].values[0]), temperature, seed)  # raises
    evidence = dataset["log_evidence"].sel(seed=seed).transpose("temperature", "width")
    known = dataset["status"].sel(seed=seed).transpose("temperature", "width") != NOT_COMPUTED
    values = np.where(known, evidence, np.nan)
    if temperature is not None:
        at = GridPoint.find(dataset, float(dataset["width"].values[0]), temperature, seed)
        values[dataset["temperature"].values != at.temperature] = np.nan
    if np.isnan(values).all():
        raise StoreError("no point of the study is computed yet; go on with: pathkernel run")
    t, w = np.unravel_index(np.nanargmax(values), values.shape)
    return GridPoint(
        float(dataset["width"].values[w]), float(dataset["temperature"].values[t]), seed
    )
