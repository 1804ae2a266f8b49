"""Scores of heads from a study's store: of the theory's order parameter, and of sampled ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.measures import choices_of
from pathkernel_datasets.point import Point
from pathkernel_datasets.selection import NOT_COMPUTED, number
from pathkernel_datasets.temperature_choice import default_choice

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

    By default they are of the study's first seed and of the width that the choice of temperature
    prefers, the paper's N = 10, and the widths of ``drawn``, points with draws; each at the
    temperature that is chosen over all seeds, as ``pathkernel sample`` does. Raises a StoreError if
    the study lacks a point.
    """
    chosen = dataset["width"].values if widths is None else widths
    points = [Point.find(dataset, width, temperature, seed) for width in chosen]
    if widths is None:
        points = _by_score(dataset, points, set(drawn))
    return points


def label(kind: str, at: Point) -> str:
    """Name of the order by the scores at a point, such as ``theory N=10``."""
    return f"{kind} N={number(at.width)}"


def theory_scores(dataset: xr.Dataset, at: Point) -> np.ndarray:
    """Scores of all heads from the theory's order parameter, the largest 1, (ΣH_ℓ,)."""
    return np.concatenate(head_scores(_network(dataset), theory_order_parameter(dataset, at)))


def theory_order_parameter(dataset: xr.Dataset, at: Point) -> np.ndarray:
    """The theory's order parameter (n, n) at a point, in path order; StoreError if it lacks it."""
    found = dataset.sel(seed=at.seed, temperature=at.temperature, width=at.width)
    matrix = _in_path_order(dataset, found["order_parameter"])
    if int(found["status"]) == NOT_COMPUTED or np.isnan(matrix).any():
        raise StoreError(
            f"the store holds no order parameter at N = {number(at.width)}, T = "
            f"{at.temperature:g}, seed {at.seed}; go on with: pathkernel run, or choose --widths"
        )
    return matrix


def score_grid(dataset: xr.Dataset, seed: int) -> np.ndarray:
    """Theory's scores at every point of a study's grid, (temperature, width, ΣH_ℓ).

    NaN where a point is not computed.
    """
    study = dataset.sel(seed=seed)
    matrices = study["order_parameter"].where(study["status"] != NOT_COMPUTED)
    matrices = _in_path_order(dataset, matrices.transpose("temperature", "width", ...))
    network = _network(dataset)
    return np.array(
        [[np.concatenate(head_scores(network, matrix)) for matrix in row] for row in matrices]
    )


def sampled_scores(dataset: xr.Dataset, draws: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all heads from the mean of draws of U, and their Monte-Carlo errors, (ΣH_ℓ,) each.

    Draws have the dimensions chain, draw, path and path_dual. Errors come from the jackknife: each
    chain is cut into ten stretches, which must be long against the draws' correlation, and the
    scores are computed without each of them in turn. They are NaN for a single draw.
    """
    network = _network(dataset)
    chains = _in_path_order(dataset, draws.transpose("chain", "draw", ...))
    parts = min(_STRETCHES, chains.shape[1])
    stretches = [part for chain in chains for part in np.array_split(chain, parts)]
    sums = np.array([part.sum(axis=0) for part in stretches])
    counts = np.array([len(part) for part in stretches])
    total, size = sums.sum(axis=0), counts.sum()
    scores = np.concatenate(head_scores(network, total / size))
    if len(sums) == 1:
        return scores, np.full_like(scores, np.nan)
    without = [
        np.concatenate(head_scores(network, (total - part) / (size - n)))
        for part, n in zip(sums, counts)
    ]
    return scores, np.sqrt(len(sums) - 1) * np.std(without, axis=0)


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
