"""Head scores from a study, of the theory's order parameter and of sampled ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xarray as xr

from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import head_scores
from pathkernel_core.system.text import number
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.selection.selection import NOT_COMPUTED
from pathkernel_datasets.selection.temperature_choice import default_choice
from pathkernel_datasets.variables.measures import choices_of

PAPER_WIDTH = 10.0
"""Width at which the paper scores heads (Fig. 3e, f)."""

_BLOCKS = 10  # of every chain, for the jackknife


def theory_points(
    dataset: xr.Dataset,
    widths: Sequence[float] | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    drawn: Iterable[Point] = (),
) -> list[Point]:
    """Points of a study whose order parameters score heads; the default order uses the first.

    By default they are of the study's first seed and of the width that the choice of temperature
    prefers, the paper's N = 10, and the widths of ``drawn``, points with draws; each at the
    temperature that is chosen over all seeds, as ``pathkernel sample`` does. Raises a StudyError if
    the study lacks a point.
    """
    chosen = dataset["width"].values if widths is None else widths
    points = [Point.find(dataset, width, temperature, seed) for width in chosen]
    if widths is not None:
        return points
    indexers = {
        name: xr.DataArray([getattr(point, name) for point in points], dims="point")
        for name in ("temperature", "width")
    }
    choice = choices_of(dataset)[default_choice(dataset)]
    grid = dataset[[choice.score, "status"]].sel(indexers)
    score = choice.sign * grid[choice.score].where(grid["status"] != NOT_COMPUTED)
    is_computed = score.notnull().sel(seed=points[0].seed)
    if not is_computed.any():
        raise StudyError("no point of the study is computed yet; resume it with: pathkernel run")
    seeds = score.notnull().sum("seed").where(is_computed, 0)
    # the choice of temperature is one for all seeds, and so is that of the width
    total = score.sum("seed").where(seeds == seeds.max())  # sums over fewer seeds do not compare
    best = points[int(total.argmax("point"))]
    computed = [point for point, is_there in zip(points, is_computed.values) if is_there]
    paper = [point for point in computed if point.width == PAPER_WIDTH]
    drawn = set(drawn)
    return list(dict.fromkeys([best, *paper, *(point for point in computed if point in drawn)]))


def order_label(kind: str, point: Point) -> str:
    """Name of the order by the scores at a point, such as ``theory N=10``."""
    return f"{kind} N={number(point.width)}"


def theory_scores(dataset: xr.Dataset, point: Point) -> np.ndarray:
    """Scores of all heads at a point of a study, the largest 1, (ΣH_ℓ,).

    Raises a StudyError if the point is not computed.
    """
    return _select_computed(dataset, point)["head_score"].values


def theory_order_parameter(dataset: xr.Dataset, point: Point) -> np.ndarray:
    """Order parameter (n, n) at a point of a study; StudyError if the point is not computed."""
    return _select_computed(dataset, point)["order_parameter"].transpose("path", "path_dual").values


def score_grid(dataset: xr.Dataset, seed: int) -> np.ndarray:
    """Scores of all heads over a study's grid, (temperature, width, ΣH_ℓ), NaN if not computed."""
    study = dataset[["head_score", "status"]].sel(seed=seed)
    scores = study["head_score"].where(study["status"] != NOT_COMPUTED)
    return scores.transpose("temperature", "width", "head").values


def sampled_head_scores(dataset: xr.Dataset, draws: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all heads from the mean of draws of U, and their Monte-Carlo errors, (ΣH_ℓ,) each.

    Draws have the dimensions chain, draw, path and path_dual. Errors come from the jackknife over
    ten blocks of each chain, which must be long against the draws' correlation; they are NaN for a
    single draw.
    """
    network = Network(dataset.attrs["heads_per_layer"], 1)
    chains = draws.transpose("chain", "draw", "path", "path_dual").values
    # blocks must be long against the autocorrelation of the draws: leaving one out then changes the
    # mean as much as a chain of other draws would. The scores are no means, hence the jackknife.
    count = min(_BLOCKS, chains.shape[1])
    blocks = [block for chain in chains for block in np.array_split(chain, count)]
    sums = np.array([block.sum(axis=0) for block in blocks])
    sizes = np.array([len(block) for block in blocks])
    total, size = sums.sum(axis=0), sizes.sum()
    scores = head_scores(network, total / size)
    if len(blocks) == 1:
        return scores, np.full_like(scores, np.nan)
    jackknife = [
        head_scores(network, (total - block) / (size - length))
        for block, length in zip(sums, sizes)
    ]
    return scores, np.sqrt(len(blocks) - 1) * np.std(jackknife, axis=0)


def _select_computed(dataset: xr.Dataset, point: Point) -> xr.Dataset:
    study = dataset.sel(seed=point.seed, temperature=point.temperature, width=point.width)
    if int(study["status"]) == NOT_COMPUTED or study["order_parameter"].isnull().any():
        raise StudyError(
            f"the study has no order parameter at {point.description}; resume it with: "
            "pathkernel run, or choose --widths"
        )
    return study
