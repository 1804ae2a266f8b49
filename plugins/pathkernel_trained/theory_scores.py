"""Scores of heads from a study's store: of the theory's order parameter, and of sampled ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_datasets.choice import default_choice
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.measures import choices_of
from pathkernel_datasets.point import Point
from pathkernel_datasets.selection import NOT_COMPUTED, number

PAPER_WIDTH = 10.0
"""Width at which the paper scores heads (Fig. 3e, f)."""

_STRETCHES = 10  # that each chain is cut into


def theory_points(
    dataset: xr.Dataset,
    widths: Sequence[float] | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    drawn: Iterable[Point] = (),
) -> list[Point]:
    """Points of a study whose order parameters score heads; the first is the one to go by.

    Temperatures are chosen over all seeds, as :class:`pathkernel_datasets.selection.Selection`
    does, so that the points and the draws of ``pathkernel sample`` are at the same ones.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study, from :func:`pathkernel_datasets.store.open_store`.
    widths : sequence of float, optional
        By default the width that the choice of temperature prefers, the paper's N = 10, and those
        of ``drawn``.
    temperature : float, optional
        By default, at every width, the one that is chosen there.
    seed : int, optional
        By default the study's first.
    drawn : iterable of Point
        Points with draws; those of other seeds and temperatures are not looked at.

    Raises
    ------
    StoreError
        If the study lacks a point.
    """
    chosen = dataset["width"].values if widths is None else widths
    points = [Point.find(dataset, width, temperature, seed) for width in chosen]
    if widths is None:
        points = _by_score(dataset, points, set(drawn))
    return points


def theory_scores(dataset: xr.Dataset, at: Point) -> list[np.ndarray]:
    """Scores of all heads from the theory's order parameter, the largest 1; one array per layer.

    Raises
    ------
    StoreError
        If the point is not computed, or its minimisation failed.
    """
    return head_scores(_network(dataset), theory_order_parameter(dataset, at))


def theory_order_parameter(dataset: xr.Dataset, at: Point) -> np.ndarray:
    """The theory's order parameter (n, n) at a point, in path order; raises as the scores do."""
    found = dataset.sel(seed=at.seed, temperature=at.temperature, width=at.width)
    matrix = _in_path_order(dataset, found["order_parameter"])
    if int(found["status"]) == NOT_COMPUTED or np.isnan(matrix).any():
        raise StoreError(
            f"the store holds no order parameter at N = {number(at.width)}, T = "
            f"{at.temperature:g}, seed {at.seed}; go on with: pathkernel run, or choose --widths"
        )
    return matrix


def score_grid(dataset: xr.Dataset, seed: int) -> np.ndarray:
    """Theory's scores at every point of a study's grid.

    Returns
    -------
    array, shape (temperature, width, ΣH_ℓ)
        Heads layer by layer; NaN where a point is not computed.
    """
    study = dataset.sel(seed=seed)
    matrices = study["order_parameter"].where(study["status"] != NOT_COMPUTED)
    matrices = _in_path_order(dataset, matrices.transpose("temperature", "width", ...))
    network = _network(dataset)
    return np.array(
        [[np.concatenate(head_scores(network, matrix)) for matrix in row] for row in matrices]
    )


def sampled_scores(
    dataset: xr.Dataset, draws: xr.DataArray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores of all heads from the mean of draws of U, and their Monte-Carlo errors.

    Errors come from the jackknife: each chain is cut into ten stretches, and the scores are
    computed without each of them in turn. Stretches must be long against the draws' correlation.

    Parameters
    ----------
    dataset : xarray.Dataset
        The study.
    draws : xarray.DataArray, dims (chain, draw, path, path_dual)
        From :func:`pathkernel_datasets.draws.order_parameter_draws`.

    Returns
    -------
    scores, errors : list of L arrays, shape (H_ℓ,)
        Errors are NaN for a single draw.
    """
    network = _network(dataset)
    chains = _in_path_order(dataset, draws.transpose("chain", "draw", ...))
    parts = min(_STRETCHES, chains.shape[1])
    stretches = [part for chain in chains for part in np.array_split(chain, parts)]
    sums = np.array([part.sum(axis=0) for part in stretches])
    counts = np.array([len(part) for part in stretches])
    total, size = sums.sum(axis=0), counts.sum()
    scores = head_scores(network, total / size)
    if len(sums) == 1:
        return scores, [np.full_like(layer, np.nan) for layer in scores]
    without = [head_scores(network, (total - part) / (size - n)) for part, n in zip(sums, counts)]
    errors = [np.sqrt(len(sums) - 1) * np.std(layer, axis=0) for layer in zip(*without)]
    return scores, errors


def _network(dataset: xr.Dataset) -> Network:
    return Network(dataset.attrs["heads_per_layer"], float(dataset["width"].values.max()))


def _in_path_order(dataset: xr.Dataset, matrices: xr.DataArray) -> np.ndarray:
    """Order parameters (…, path, path_dual), by the labels of the paths, in the core's order."""
    labels = _network(dataset).path_labels
    matrices = matrices.transpose(..., "path", "path_dual")
    return matrices.sel(path=list(labels), path_dual=list(labels)).values


def _by_score(
    dataset: xr.Dataset, points: Sequence[Point], drawn: Collection[Point]
) -> list[Point]:
    """Of points at all widths: that of the best score, the paper's, those with draws.

    The score is what the default choice of a temperature goes by.
    """
    wanted = {
        name: xr.DataArray([getattr(at, name) for at in points], dims="point")
        for name in ("temperature", "width")
    }
    choice = choices_of(dataset)[default_choice(dataset)]
    at_points = dataset[[choice.score, "status"]].sel(wanted)
    score = choice.sign * at_points[choice.score].where(at_points["status"] != NOT_COMPUTED)
    known = score.notnull()
    computed = known.sel(seed=points[0].seed)
    if not computed.any():
        raise StoreError("no point of the study is computed yet; go on with: pathkernel run")
    seeds = known.sum("seed").where(computed, 0)  # sums over fewer seeds are not comparable
    total = score.sum("seed").where(seeds == seeds.max())
    best = points[int(total.argmax("point"))]
    held = [at for at, there in zip(points, computed.values) if there]
    paper = [at for at in held if at.width == PAPER_WIDTH]
    return list(dict.fromkeys([best, *paper, *(at for at in held if at in drawn)]))
