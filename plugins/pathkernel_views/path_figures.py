"""Figures of paths and heads: order parameters, kernels of single paths, scores of heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from pathkernel_datasets.selection import CONVERGED, Selection, few
from pathkernel_views.drawing import THEORY, spread_over_seeds
from pathkernel_views.figure_parts import (
    at_seed,
    known_widths,
    point_words,
    require,
    seed_index,
    seed_words,
)
from pathkernel_views.panels import Bars, HeatMap, Ticks, head_bars, heatmaps, path_ticks

_DIAGONAL = 200  # rows of U beyond which its diagonal is all that can be seen
_KERNELS = 30  # of single paths, at most, that can be looked at beside each other


def order_parameters(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> Figure:
    """Order parameter U at every width, one heat map each, all on one scale.

    With C outputs every path is a block of C rows and columns. Of many paths, U less that of the
    Gaussian process limit, whose diagonal would hide all else; the scale leaves out the 1 in 100
    largest entries.

    Parameters and errors as for :func:`pathkernel_views.figures.measured`, and ``seed``: by default
    the first that is computed.
    """
    selection = Selection(dataset, temperature)
    matrices = selection.point("order_parameter")
    index = seed_index(dataset, matrices, seed)
    matrices = matrices.isel(seed=index)
    outputs = dataset.sizes.get("output", 1)
    size = dataset.sizes["path"] * outputs
    many = size > _DIAGONAL
    limit = np.diag(np.repeat(limit_diagonal(dataset), outputs)) if many else 0.0
    maps = []
    for w in known_widths(matrices):
        title = point_words(dataset, selection, w)
        if selection.status.values[index, w] != CONVERGED:
            title += "\n(not converged)"
        matrix = matrices.isel(width=w).values.reshape(size, size) - limit
        maps.append(HeatMap(title, matrix, "U − limit" if many else "U"))
    if many:
        reach = max(float(np.percentile(np.abs(shown.matrix), 99)) for shown in maps) or 1.0
        maps = [replace(shown, limits=(-reach, reach)) for shown in maps]
    words = f"order parameter U{' less its limit' * many}, {at_seed(dataset, selection, index)}"
    return heatmaps(dataset, words, maps, path_ticks(dataset["path"].values, outputs))


def limit_diagonal(dataset: xr.Dataset) -> np.ndarray:
    """U(π, π) in the Gaussian process limit: variances of readout and heads, shape (path,)."""
    _, *values, readout = dataset.attrs["variances"]
    heads = (dataset[f"path_layer_{layer}"].values for layer in dataset["layer"].values)
    strengths = [np.where(head > 0, variance, 1.0) for head, variance in zip(heads, values)]
    return readout * np.prod(strengths, axis=0)


def kernels(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> Figure:
    """Kernel of each path with itself on training examples sorted by label, and of all in one.

    Of many paths a few are shown, spread evenly. The total kernel is that of the Gaussian process
    limit and that of the smallest width, which U renormalises. Each has a scale of its own, as
    kernels differ by orders of magnitude.

    Parameters and errors as for :func:`order_parameters`; they go for the total kernels, which are
    left out where they are not computed.
    """
    require(dataset, "same_path_kernel", "train_label")
    done = dataset["data_done"].load() != 0
    of_paths = dataset["same_path_kernel"].where(done)
    index = seed_index(dataset, of_paths, seed)
    paths = dataset.sizes["path"]
    some = few(paths, _KERNELS)
    of_paths = of_paths.isel(seed=index, path=some).transpose("path", ...)
    shown = {f"path {kernel['path'].item()}": kernel for kernel in of_paths}
    if "total_kernel" in dataset:
        selection = Selection(dataset, temperature)
        shown["total, GP limit"] = selection.reference("total_kernel_gp").isel(seed=index)
        finite = selection.point("total_kernel").isel(seed=index)
        w = int(dataset["width"].values.argmin())
        shown[f"total, {point_words(dataset, selection, w)}"] = finite.isel(width=w)
    maps = []
    for title, kernel in shown.items():
        if kernel.notnull().all():
            # a few large entries, such as the diagonal of a noisy path, would hide all the rest
            limits = tuple(np.percentile(kernel.values, [1, 99]))
            maps.append(HeatMap(title, kernel.values, limits=limits, colours="cividis"))
    words = f"kernels, each on a scale of its own, {seed_words(dataset, index)}"
    if len(some) < paths:
        words += f", {len(some)} of {paths} paths"
    label = "label of output 0" if "output" in dataset.dims else "label y"
    labels = dataset["train_label"].isel(seed=index).values
    return heatmaps(dataset, words, maps, _by_label(labels, f"training example, by {label}"))


def _by_label(labels: np.ndarray, name: str) -> Ticks:
    """Lines where the label changes, and the labels at the middle of their examples."""
    values, counts = (found[::-1] for found in np.unique(labels, return_counts=True))
    if len(values) > 10:  # not classes
        return Ticks(name, (), ())
    ends = np.cumsum(counts)
    names = [f"{value:+g}" if values.min() < 0 else f"{value:g}" for value in values]
    names = [name.replace("-", "−") for name in names]
    return Ticks(name, ends - counts / 2 - 0.5, names, ends[:-1] - 0.5)


def head_scores(dataset: xr.Dataset, temperature: float | str | None = None) -> Figure:
    """Score of every head, one panel per layer, from the smallest to the largest width.

    Of many widths a few are shown. Bars are medians over the seeds; whiskers span the seeds.
    Parameters and errors as for :func:`pathkernel_views.figures.measured`.
    """
    require(dataset, "head_score")
    selection = Selection(dataset, temperature)
    scores = selection.point("head_score").transpose("seed", "width", "layer", "head")
    known = known_widths(scores)
    shown = [known[place] for place in few(len(known))]
    heads = scores.notnull().any(("seed", "width")).values.sum(axis=-1)
    seeds = np.flatnonzero(scores.notnull().any(("width", "layer", "head")))
    series = []
    for w, look in zip(shown, THEORY.at_widths(len(shown))):
        layers = [scores.values[:, w, layer, :count] for layer, count in enumerate(heads)]
        middles, reaches = zip(*map(spread_over_seeds, layers))
        title = point_words(dataset, selection, w)
        series.append(Bars(title, look.colour, middles, reaches if len(seeds) > 1 else None))
    words = f"median and range of {len(seeds)} seeds"
    if len(seeds) == 1:
        words = seed_words(dataset, seeds[0])
    if len(shown) < len(known):
        words += f", {len(shown)} of {len(known)} widths"
    return head_bars(dataset, f"head scores, {words}, {selection.describe(values=False)}", series)
