"""Figures of paths and heads: order parameters, kernels of single paths, scores of heads."""

from __future__ import annotations

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import Selection
from pathkernel_views.drawing import (
    BLUE,
    ORANGE,
    STYLE,
    colour_bar,
    heading,
    label_axes,
    legend_below,
    panel_grid,
    path_axes,
    spread_over_seeds,
    thin_frame,
)
from pathkernel_views.figure_parts import (
    at_seed,
    point_words,
    require,
    seed_index,
    seed_words,
    smallest_width,
)


def order_parameters(
    dataset: xr.Dataset, temperature: float | str = "evidence", seed: int | None = None
) -> Figure:
    """Order parameter U at every width, one heat map each with a scale of its own.

    With C outputs every path is a block of C rows and columns.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        As for :func:`pathkernel_views.figures.accuracy`.
    seed : int, optional
        Seed of the store; by default the first that is computed.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If no order parameter is computed yet.
    ValueError
        If the store does not have that temperature or seed.
    """
    selection = Selection(dataset, temperature)
    matrices = selection.point("order_parameter")
    index = seed_index(dataset, matrices, seed)
    matrices = matrices.isel(seed=index)
    known = np.flatnonzero(matrices.notnull().any(matrices.dims[1:]).values)
    known = known[np.argsort(dataset["width"].values[known])]
    outputs = dataset.sizes.get("output", 1)
    size = dataset.sizes["path"] * outputs
    columns = -(-len(known) // -(-len(known) // 5))
    rows = -(-len(known) // columns)
    with matplotlib.rc_context(STYLE):
        shape = (max(2.0 * columns + 0.4, 3.4), 1.75 * rows + 0.9)
        figure, axes = panel_grid(len(known), columns, shape)
        for place, (axis, w) in enumerate(zip(axes, known)):
            matrix = matrices.isel(width=w).values.reshape(size, size)
            scale = np.abs(matrix).max() or 1.0
            image = axis.imshow(matrix, cmap="RdBu_r", vmin=-scale, vmax=scale)
            colour_bar(figure, image, axis)
            title = point_words(dataset, selection, w)
            if selection.status.values[index, w] != STATUS_CODES["converged"]:
                title += "\n(not converged)"
            axis.set_title(title)
            path_axes(
                axis,
                dataset["path"].values,
                outputs,
                bottom=place + columns >= len(known),
                left=place % columns == 0,
            )
        blocks = f", in blocks of {outputs} outputs" if outputs > 1 else ""
        figure.supxlabel(f"path (head of each layer){blocks}", fontsize=9)
        figure.supylabel("path", fontsize=9)
        heading(figure, dataset, f"order parameter U, {at_seed(dataset, selection, index)}")
    return figure


def same_path_kernels(dataset: xr.Dataset, seed: int | None = None) -> Figure:
    """Kernel of each path with itself on training examples sorted by label.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    seed : int, optional
        Seed of the store; by default the first that is computed.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If the store holds no kernels, or none is computed yet.
    ValueError
        If the store does not have that seed.
    """
    require(dataset, "same_path_kernel", "train_label")
    done = dataset["data_done"].load() != 0
    kernels = dataset["same_path_kernel"].where(done)
    index = seed_index(dataset, kernels, seed)
    kernels = kernels.isel(seed=index).transpose("path", ...).values
    labels = dataset["train_label"].isel(seed=index).values
    paths = [str(path) for path in dataset["path"].values]
    columns = min(len(paths), 4 if len(paths) <= 16 else 8)
    rows = -(-len(paths) // columns)
    with matplotlib.rc_context(STYLE):
        shape = (max(2.1 * columns + 0.6, 4.0), 1.77 * rows + 0.6)
        figure, axes = panel_grid(len(paths), columns, shape)
        for place, (axis, path, kernel) in enumerate(zip(axes, paths, kernels)):
            # a few large entries, such as the diagonal of a noisy path, would hide all the rest
            low, high = np.percentile(kernel, [1, 99])
            image = axis.imshow(kernel, cmap="cividis", vmin=low, vmax=high)
            colour_bar(figure, image, axis, symmetric=False)
            axis.set_title(f"path {path}")
            thin_frame(axis)
            label_axes(axis, labels, place + columns >= len(paths), place % columns == 0)
        label = "label of output 0" if "output" in dataset.dims else "label y"
        figure.supxlabel(f"training example, by {label}", fontsize=9)
        figure.supylabel(f"example, by {label}", fontsize=9)
        heading(figure, dataset, f"same-path kernels, {seed_words(dataset, index)}")
    return figure


def head_scores(dataset: xr.Dataset, temperature: float | str = "evidence") -> Figure:
    """Score of every head at the smallest and the largest width, one panel per layer.

    Bars are medians over the seeds; whiskers span the seeds.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        As for :func:`pathkernel_views.figures.accuracy`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If the store holds no head scores, or none is computed yet.
    ValueError
        If the store does not have that temperature, or no validation accuracy to choose it by.
    """
    require(dataset, "head_score")
    selection = Selection(dataset, temperature)
    scores = selection.point("head_score")
    known = scores.notnull().any(("seed", "layer", "head")).values
    first = smallest_width(dataset, known)
    last = smallest_width(dataset, known, largest=True)
    shown = [(first, BLUE)] + ([(last, ORANGE)] if last != first else [])
    seeds = int(scores.notnull().any(("width", "layer", "head")).sum())
    heads = scores.notnull().any(("seed", "width")).values.sum(axis=-1)
    with matplotlib.rc_context(STYLE):
        shape = (max(4.6, 0.45 * heads.sum() + 0.9 * len(heads) + 1.0), 3.3)
        figure, axes = panel_grid(
            len(heads), len(heads), shape, sharey=True, width_ratios=[count + 1 for count in heads]
        )
        for layer, (axis, count) in enumerate(zip(axes, heads)):
            values = scores.isel(layer=layer).transpose("seed", "width", "head").values
            places = np.arange(1, count + 1)
            bar_width = 0.8 / len(shown)
            for bar, (w, colour) in enumerate(shown):
                low, middle, high = spread_over_seeds(values[:, w, :count])
                where = places + (bar - (len(shown) - 1) / 2) * bar_width
                axis.bar(
                    where,
                    middle,
                    bar_width * 0.95,
                    color=colour,
                    label=point_words(dataset, selection, w),
                )
                if seeds > 1:
                    reach = np.stack([middle - low, high - middle])
                    axis.errorbar(
                        where, middle, reach, fmt="none", color="black", linewidth=0.9, capsize=2
                    )
            axis.set_title(f"layer {dataset['layer'].values[layer]}")
            axis.set_xlabel("head")
            axis.set_xticks(places)
            axis.set_xlim(0.4, count + 0.6)
        axes[0].set_ylabel("head score (largest 1)")
        words = f"median and range of {seeds} seeds"
        if seeds == 1:
            known = scores.notnull().any(("width", "layer", "head")).values
            words = seed_words(dataset, int(known.argmax()))
        heading(figure, dataset, f"{words}, {selection.describe(values=False)}")
        legend_below(figure, axes[0], 2)
    return figure
