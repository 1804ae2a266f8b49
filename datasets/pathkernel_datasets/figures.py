"""A result store as figures, after figures 2, 3, 5 and 7 of the paper."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from pathkernel_datasets.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    colour_bar,
    heading,
    label_axes,
    legend_below,
    line_across,
    panel_grid,
    path_axes,
    spread_over_seeds,
    thin_frame,
    width_axis,
)
from pathkernel_datasets.figure_files import NothingToPlot, write_figures
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.selection import Selection, count_test_examples, number
from pathkernel_datasets.temperature_figure import temperature_choice


def accuracy(dataset: xr.Dataset, temperature: float | str = "evidence") -> Figure:
    """Accuracy against width, one panel per test set.

    Points are medians over the seeds with their range, or, where a single seed is computed, its
    accuracy with the binomial standard error of the test set. Lines across are Gaussian process
    (GP) limits of the network and of its sub-networks.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        Temperature of the store; or the one with the largest log evidence, or validation accuracy,
        over the seeds, chosen for each width and for the GP limit.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If no accuracy is computed yet.
    ValueError
        If the store does not have that temperature, or no validation accuracy to choose it by.
    """
    selection = Selection(dataset, temperature)
    theory, limit = selection.point("accuracy"), selection.reference("accuracy_gp")
    if not theory.notnull().any() and not limit.notnull().any():
        raise NothingToPlot("no accuracy is computed yet")
    parts = []
    for index in range(dataset.sizes.get("sub_network", 0)):
        part = selection.reference("accuracy_sub_network").isel(sub_network=index)
        name = dataset["sub_network"].values[index]
        parts.append(part.assign_attrs(label=f"{name} (GP limit)"))
    counts = theory.notnull().all("test_set").sum("seed").values
    seeds = int(max(counts.max(), limit.notnull().any("test_set").sum()))
    stopped = selection.status.isin([STATUS_CODES["max_evaluations"], STATUS_CODES["stalled"]])
    stopped = stopped.any("seed").values
    widths = dataset["width"].values
    order = np.argsort(widths)
    names = [str(name) for name in dataset["test_set"].values]
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    size = (5.6 if columns == 1 else 3.1 * columns + 0.6, 3.1 * rows + 0.9)
    some = "" if (counts == seeds).all() else "up to "
    label = f"theory, median and range of {some}{seeds} seeds"
    if seeds == 1:
        label = "theory ± binomial standard error"
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(len(names), columns, size, sharey=True)
        for t, (axis, name) in enumerate(zip(axes, names)):
            examples = count_test_examples(dataset, t) if seeds == 1 else None
            axis.set_title(name)
            low, middle, high = spread_over_seeds(theory.isel(test_set=t).values, examples)
            known = order[~np.isnan(middle[order])]
            at = widths[known]
            axis.fill_between(at, low[known], high[known], color=BLUE, alpha=0.2, linewidth=0)
            axis.plot(at, middle[known], "o-", color=BLUE, markersize=4, label=label)
            if stopped[known].any():
                known = known[stopped[known]]
                axis.plot(
                    widths[known],
                    middle[known],
                    "o",
                    color=BLUE,
                    markerfacecolor="white",
                    markersize=4,
                    label="not converged" if seeds == 1 else "not converged in some seed",
                )
            low, middle, high = spread_over_seeds(limit.isel(test_set=t).values[:, None], examples)
            line_across(axis, middle[0], "GP limit", ORANGE, "--")
            if not np.isnan(middle[0]):
                axis.axhspan(low[0], high[0], color=ORANGE, alpha=0.13, linewidth=0)
            for index, part in enumerate(parts):
                _, middle, _ = spread_over_seeds(part.isel(test_set=t).values[:, None])
                colour = (GREEN, PURPLE, SKY, GREY)[index % 4]
                style = (0, (1, 1 + index // 4))
                line_across(axis, middle[0], part.attrs["label"], colour, style)
            width_axis(axis, widths, size[0] / columns)
        for axis in axes[::columns]:
            axis.set_ylabel("accuracy (fraction correct)")
        words = selection.describe()
        if seeds == 1:
            index = int(limit.notnull().any("test_set").values.argmax())
            words = f"{_seed_words(dataset, index)}, {words}"
        heading(figure, dataset, words)
        legend_below(figure, axes[0], 3 if columns > 1 else 2)
    return figure


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
        As for :func:`accuracy`.
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
    index = _seed(dataset, matrices, seed)
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
            title = _point_words(dataset, selection, w)
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
        heading(figure, dataset, f"order parameter U, {_at_seed(dataset, selection, index)}")
    return figure


def alignment(
    dataset: xr.Dataset,
    temperature: float | str = "evidence",
    seed: int | None = None,
    components: int | None = None,
) -> Figure:
    """Overlap of the kernel's principal components with the labels, smallest width against GP.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        As for :func:`accuracy`.
    seed : int, optional
        Seed of the store; by default the first that is computed.
    components : int, optional
        How many components to show; by default 30 per 100 training examples, and at most the 50
        that a store holds.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    NothingToPlot
        If the store holds no alignment, or none is computed yet.
    ValueError
        If the store does not have that temperature or seed.
    """
    _require(dataset, "alignment", "alignment_gp")
    if "output" in dataset.dims:
        raise NothingToPlot("the alignment is computed for networks with one output only")
    selection = Selection(dataset, temperature)
    finite, limit = selection.point("alignment"), selection.reference("alignment_gp")
    index = _seed(dataset, finite, seed)
    finite, limit = finite.isel(seed=index), limit.isel(seed=index)
    w = _smallest(dataset, finite.notnull().any("component").values)
    if components is None:
        components = max(10, 3 * int(dataset.attrs.get("training_examples", 100)) // 10)
    numbers = dataset["component"].values[:components]
    series = [
        (_point_words(dataset, selection, w), finite.isel(width=w).values, BLUE, "o"),
        ("GP limit", limit.values, ORANGE, "s"),
    ]
    if selection.chosen:
        series[1] = (f"GP limit, T = {selection.temperature_gp:g}", *series[1][1:])
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = panel_grid(1, 1, (5.6, 3.6))
        for offset, (label, values, colour, marker) in zip((-0.12, 0.12), series):
            if np.isnan(values).all():
                continue
            values = values[: len(numbers)]
            axis.vlines(numbers + offset, 0, values, color=colour, linewidth=1.2)
            axis.plot(numbers + offset, values, marker, color=colour, markersize=3.5, label=label)
        axis.set_xlim(0, len(numbers) + 1)
        axis.set_ylim(0, None)
        axis.set_xticks([1, *range(5, len(numbers) + 1, 5)])
        axis.set_xlabel("principal component i of the kernel, largest eigenvalue first")
        axis.set_ylabel("overlap with the labels, |vᵢ·Y| / ‖Y‖")
        heading(figure, dataset, _at_seed(dataset, selection, index))
        legend_below(figure, axis, 2)
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
    _require(dataset, "same_path_kernel", "train_label")
    done = dataset["data_done"].load() != 0
    kernels = dataset["same_path_kernel"].where(done)
    index = _seed(dataset, kernels, seed)
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
        heading(figure, dataset, f"same-path kernels, {_seed_words(dataset, index)}")
    return figure


def head_scores(dataset: xr.Dataset, temperature: float | str = "evidence") -> Figure:
    """Score of every head at the smallest and the largest width, one panel per layer.

    Bars are medians over the seeds; whiskers span the seeds.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float, "evidence" or "validation"
        As for :func:`accuracy`.

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
    _require(dataset, "head_score")
    selection = Selection(dataset, temperature)
    scores = selection.point("head_score")
    known = scores.notnull().any(("seed", "layer", "head")).values
    first = _smallest(dataset, known)
    last = _smallest(dataset, known, largest=True)
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
                    label=_point_words(dataset, selection, w),
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
            words = _seed_words(dataset, int(known.argmax()))
        heading(figure, dataset, f"{words}, {selection.describe(values=False)}")
        legend_below(figure, axes[0], 2)
    return figure


def save_figures(
    dataset: xr.Dataset,
    folder: str | os.PathLike,
    *,
    temperature: float | str = "evidence",
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write every figure that the store has data for, as PNG and SVG.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    folder : path
        Folder to write into; made if it does not exist. Files of the same names are replaced.
    temperature, seed
        As for the single figures.
    report : callable
        Called with a line of text for every figure that is skipped, and why.

    Returns
    -------
    list of pathlib.Path
        Files written: ``accuracy.png``, ``accuracy.svg``, …

    Raises
    ------
    ValueError
        If the store does not have that temperature or seed.
    OSError
        If the folder cannot be made or written.
    """
    figures: dict[str, Callable[[], Figure]] = {
        "accuracy": lambda: accuracy(dataset, temperature),
        "order_parameters": lambda: order_parameters(dataset, temperature, seed),
        "alignment": lambda: alignment(dataset, temperature, seed),
        "same_path_kernels": lambda: same_path_kernels(dataset, seed),
        "head_scores": lambda: head_scores(dataset, temperature),
    }
    if "choice" in dataset.dims:  # with one temperature there is nothing to miss
        figures["temperature_choice"] = lambda: temperature_choice(dataset)
    return write_figures(figures, folder, report)


def _require(dataset: xr.Dataset, *names: str) -> None:
    missing = [name for name in names if name not in dataset]
    if missing:
        raise NothingToPlot(f"the store holds no {' and no '.join(missing)}")


def _seed(dataset: xr.Dataset, values: xr.DataArray, seed: int | None) -> int:
    """Index of the seed asked for, or of the first that has values."""
    known = values.notnull().any([dim for dim in values.dims if dim != "seed"]).values
    if seed is None:
        if not known.any():
            raise NothingToPlot(f"{values.name} is not computed yet")
        return int(np.argmax(known))
    found = np.flatnonzero(dataset["seed"].values == seed)
    if not found.size:
        listed = ", ".join(map(str, dataset["seed"].values))
        raise ValueError(f"the store has no seed {seed}; it has {listed}")
    if not known[found[0]]:
        raise NothingToPlot(f"{values.name} of seed {seed} is not computed yet")
    return int(found[0])


def _smallest(dataset: xr.Dataset, known: np.ndarray, largest: bool = False) -> int:
    """Index of the smallest (or largest) width that is known; widths may come in any order."""
    if not known.any():
        raise NothingToPlot("no width is computed yet")
    widths = dataset["width"].values
    return int(
        np.argmax(np.where(known, widths, -np.inf))
        if largest
        else np.argmin(np.where(known, widths, np.inf))
    )


def _at_seed(dataset: xr.Dataset, selection: Selection, index: int) -> str:
    return f"{_seed_words(dataset, index)}, {selection.describe(values=False)}"


def _seed_words(dataset: xr.Dataset, index: int) -> str:
    return f"seed {dataset['seed'].values[index]}"


def _point_words(dataset: xr.Dataset, selection: Selection, w: int) -> str:
    """Width, and its temperature where that differs from width to width."""
    words = f"N = {number(dataset['width'].values[w])}"
    return f"{words}, T = {selection.temperatures[w]:g}" if selection.chosen else words
