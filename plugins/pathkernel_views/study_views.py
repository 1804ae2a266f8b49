"""A study as views: its tables, sentences about it, and its charts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_datasets.measures import Measure, choices_of, measures_of
from pathkernel_datasets.selection import Selection, count_test_examples, few, index_of, number
from pathkernel_datasets.swept import by_value, described, swept_option
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.paths import (
    NUMBERS,
    ROWS,
    limit_diagonal,
    matrix_frame,
    of_paths,
    path_diagonal,
    row_names,
    strongest,
)
from pathkernel_views.study_tables import (
    choice_frame,
    of_every_value,
    study_details,
    study_frame,
    study_summary,
)
from pathkernel_views.table import Table, frame_of

if TYPE_CHECKING:
    import altair as alt

_KERNELS = 4  # of single paths that a chart shows
_WIDTHS = 3  # beside each other
_TITLES = {
    "seed": "seed",
    "width": "width N",
    "temperature": "temperature T",
    "shown": "temperature",
    "path_dual": "path′",
    "test_set": "test set",
    "strength": "U(π, π) / limit",
    "score": "head score (largest 1)",
    "component": "principal component i",
    "overlap": "overlap with the labels",
    "example_dual": "example′",
    "kernel": "K / 99th percentile",
}


def study_views(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> Iterator[Table | Chart | str]:
    """Tables, sentences and charts of a study, in the order in which they are read.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not; of several values of an
        option, charts have a switch for them.
    temperature : float or str, optional
        Temperature of the store, or how it is chosen for each width and for the limits, as for
        :class:`pathkernel_datasets.selection.Selection`.
    seed : int, optional
        Seed that charts of one seed show first; by default the first that is computed.

    Raises
    ------
    ValueError
        If the store does not have that temperature or seed, or the scores of the choice.
    """
    if seed is not None:
        index_of(dataset, "seed", seed)
    yield from study_summary(dataset, temperature)
    yield from study_charts(dataset, temperature, seed)
    yield from study_details(dataset, temperature)


def still_charts(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> list[Chart]:
    """The charts of a study for files, where no switch can be turned.

    Of several values of an option, the charts against it, and those of each value in a folder.
    """
    option, charts = swept_option(dataset), list(study_charts(dataset, temperature, seed))
    if option is None:
        return charts
    charts = [chart for chart in charts if chart.name.endswith(f"_against_{option}")]
    for value, part in by_value(dataset).items():
        folder = described(option, value).replace(" ", "-").replace("/", "-")
        charts += [
            replace(chart, name=f"{folder}/{chart.name}")
            for chart in study_charts(part, temperature, seed)
        ]
    return charts


def study_charts(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> Iterator[Chart]:
    """The charts of a study; parameters as for :func:`study_views`."""
    pictures, sizes = _Pictures(dataset, temperature, seed), dataset.sizes
    ranges = "Points are medians over the seeds; ranges span the seeds"
    if sizes["seed"] == 1:
        ranges = "Ranges of an accuracy are one binomial standard error of the test set"
    axes = [*pictures.option, "width"] + ["temperature"] * (sizes["temperature"] > 1)
    for x, measure in itertools.product(axes, measures_of(dataset)):
        heading = measure.axis.partition(" (")[0].capitalize()
        yield Chart(
            measure.name if x == "width" else f"{measure.name}_against_{x}",
            f"{heading} against {described(x)}",
            f"{heading} on test examples against {_TITLES.get(x, described(x))}. Dashed lines are "
            f"Gaussian process (GP) limits. {ranges}.",
            partial(pictures.against, measure, x),
        )
    shown = min(sizes["path"], max(1, ROWS // sizes.get("output", 1)))
    yield Chart(
        "order_parameters",
        "Order parameter U",
        "The weight U(π, π′) of the kernel of the paths π and π′ in a network of finite width; a "
        "path is named by its head in each layer, such as 1-2. In the Gaussian process (GP) limit "
        f"U is diagonal. All panels have one scale.{of_paths(shown, sizes['path'])}",
        pictures.order_parameters,
    )
    yield Chart(
        "strongest_paths",
        "The network and its strongest paths",
        "Attention paths through the heads of the layers, from the input below to the output "
        "above. A line is as thick as the weight U(π, π) of its path, in units of its weight in "
        "the Gaussian process limit; the strongest eight are drawn.",
        pictures.strongest_paths,
    )
    if "head_score" in dataset:
        yield Chart(
            "head_scores",
            "Scores of heads",
            "Weight of U on the paths through a head, or past the heads by a skip connection, "
            "where that of the strongest head is 1. Medians over the seeds; whiskers span them.",
            pictures.head_scores,
        )
    if "alignment" in dataset and "output" not in dataset.dims:
        yield Chart(
            "alignment",
            "Alignment of the kernel with the task",
            "Overlap of the kernel's principal components, largest eigenvalue first, with the "
            "labels. The more the labels lie in the first components, the better they are learned.",
            pictures.alignment,
        )
    if "same_path_kernel" in dataset and "train_label" in dataset:
        yield Chart(
            "kernels",
            "Kernels",
            f"Kernels of {min(sizes['path'], _KERNELS)} of {sizes['path']} paths with themselves, "
            f"and of all paths in one, on {sizes['train_example']} training examples, sorted by "
            "label; lines divide the classes. Headings name the 99th percentile, the unit.",
            pictures.kernels,
        )
    if sizes["temperature"] > 1:
        yield Chart(
            "temperature_choice",
            "Choices of the temperature",
            "Scores at the temperatures that each way to choose them takes, medians over all "
            "seeds, and these temperatures.",
            pictures.temperature_choice,
        )


@dataclass(frozen=True)
class _Pictures:
    """Altair charts of a study; switches turn its option, temperature and seed."""

    dataset: xr.Dataset
    temperature: float | str | None
    seed: int | None

    @property
    def option(self) -> list[str]:
        option = swept_option(self.dataset)
        return [option] if option else []

    def temperatures(self, part: xr.Dataset) -> dict[str, float | str | None]:
        """The temperature, or choice, shown first, and all of the store, by their labels."""
        first = Selection(part, self.temperature)
        label = f"T = {first.temperature_gp:g}"
        if first.chosen:
            label = f"T of {choices_of(part)[first.chosen].words}"
        grid = {f"T = {value:g}": float(value) for value in part["temperature"].values}
        return {label: self.temperature} | grid

    def seeds(self, part: xr.Dataset) -> list[int]:
        """Indices of the seeds that are computed, the one that is asked for first."""
        computed = (part["status"] != 0).any(["temperature", "width"])
        indices = np.flatnonzero(computed.values).tolist()
        if self.seed is not None:
            first = index_of(part, "seed", self.seed)
            if first not in indices:
                raise NothingToPlot(f"seed {self.seed} is not computed yet")
            indices.sort(key=lambda index: index != first)
        if not indices:
            raise NothingToPlot("no seed is computed yet")
        return indices

    def of_settings(
        self, size: int, build: Callable[[xr.Dataset, Selection, list[int]], pd.DataFrame]
    ) -> pd.DataFrame:
        """Frames at every temperature, each of some seeds, while a chart has room for them.

        ``size`` is the number of values at one temperature and seed.
        """
        room = max(1, NUMBERS // (size * len(by_value(self.dataset))))

        def frames(part: xr.Dataset) -> pd.DataFrame:
            temperatures = list(self.temperatures(part).items())[:room]
            seeds = self.seeds(part)[: max(1, room // len(temperatures))]
            return pd.concat(
                build(part, Selection(part, temperature), seeds).assign(shown=label)
                for label, temperature in temperatures
            )

        return of_every_value(self.dataset, frames)

    def against(self, measure: Measure, x: str) -> alt.TopLevelMixin:
        """A measure against the width, the temperature or an option that has several values."""
        from pathkernel_views.primitives import lines

        first, *_ = by_value(self.dataset).values()
        frames = [
            study_frame(self.dataset, temperature).assign(shown=label)
            for label, temperature in self.temperatures(first).items()
        ]
        frame = pd.concat(frames, ignore_index=True)
        y, low, high = (f"{measure.name}_{key}" for key in ("median", "lowest", "highest"))
        if measure.name == "accuracy" and self.dataset.sizes["seed"] == 1:
            counts = {
                (value, str(name)): count_test_examples(part, n)
                for value, part in by_value(self.dataset).items()
                for n, name in enumerate(part["test_set"].values)
            }
            values = frame[self.option[0]] if self.option else [None] * len(frame)
            sizes = [counts[key] for key in zip(values, frame["test_set"])]
            error = np.sqrt(frame[y] * (1 - frame[y]) / np.array(sizes))
            frame[low], frame[high] = frame[y] - error, frame[y] + error
        networks = frame["network"]
        if x == "width":
            of_part = frame["width"].isna() & (networks != "GP limit")
            names = networks.where(~of_part, networks + " (GP limit)")
            frame["network"] = names.where(frame["width"].isna(), "theory")
        else:
            widths = self.dataset["width"].values[_few_widths(self.dataset)]
            shown = networks.isin([*(f"N = {number(width)}" for width in widths), "GP limit"])
            frame = frame[shown]
        if x == "temperature":  # not those that are chosen
            frame = frame[frame["shown"].str.startswith("T = ")]
        switch = "shown" if x == "temperature" else x
        columns = [*self.option, "shown", "network", "width", "temperature", "test_set"]
        return lines(
            frame[[*columns, y, low, high]],
            x,
            y,
            low=low,
            high=high,
            series="network",
            panel="test_set",
            switches=[name for name in (*self.option, "shown") if name != switch],
            titles={x: described(x)} | _TITLES | {y: measure.axis, low: "lowest", high: "highest"},
            log=pd.api.types.is_numeric_dtype(frame[x]) and not (frame[x] <= 0).any(),
            bands=x == "width",
        )

    def order_parameters(self) -> alt.TopLevelMixin:
        from pathkernel_views.primitives import heatmaps

        outputs = self.dataset.sizes.get("output", 1)

        def build(part: xr.Dataset, selection: Selection, seeds: list[int]) -> pd.DataFrame:
            widths, frames = _few_widths(part, _WIDTHS), []
            narrow = path_diagonal(part["order_parameter"].isel(width=widths[0]))
            paths = strongest(narrow.transpose(..., "path").values, outputs)
            matrices = selection.point("order_parameter").isel(seed=seeds, width=widths)
            matrices = matrices.isel(path=paths, path_dual=paths).load()
            names, limit = row_names(matrices), np.repeat(limit_diagonal(part)[paths], outputs)
            for of_seed in matrices:
                panels = {f"N = {number(matrix['width'].item())}": matrix for matrix in of_seed}
                frames += [
                    matrix_frame(matrix, names).assign(seed=of_seed["seed"].item(), panel=panel)
                    for panel, matrix in (panels | {"GP limit": np.diag(limit)}).items()
                ]
            return pd.concat(frames)

        rows = min(ROWS, self.dataset.sizes["path"] * outputs)
        return heatmaps(
            self.of_settings((_WIDTHS + 1) * rows**2, build),
            "path_dual",
            "path",
            "U",
            panel="panel",
            switches=[*self.option, "shown", "seed"],
            titles=_TITLES,
        )

    def strongest_paths(self) -> alt.TopLevelMixin:
        from pathkernel_views.primitives import network

        def build(part: xr.Dataset, selection: Selection, seeds: list[int]) -> pd.DataFrame:
            matrices = selection.point("order_parameter").isel(seed=seeds, width=_few_widths(part))
            strengths = path_diagonal(matrices) / xr.DataArray(limit_diagonal(part), dims="path")
            return frame_of(strengths.rename("strength"))[["seed", "width", "path", "strength"]]

        layers = self.dataset["layer"].values
        return network(
            self.of_settings(10 * self.dataset.sizes["path"], build),
            "path",
            "strength",
            [int(self.dataset[f"path_layer_{layer}"].max()) for layer in layers],
            switches=[*self.option, "shown", "seed", "width"],
            titles=_TITLES | {"width": "N ="},
        )

    def head_scores(self) -> alt.TopLevelMixin:
        from pathkernel_views.primitives import bars

        def build(part: xr.Dataset, selection: Selection, _: list[int]) -> pd.DataFrame:
            frames = {
                name: frame_of(selection.point(name).isel(width=_few_widths(part)).rename("score"))
                for name in ("skip_score", "head_score")
                if name in part
            }
            if "skip_score" in frames:
                frames["skip_score"]["head"] = "skip"
            frame = pd.concat(frames.values()).dropna(subset="score")
            frame["head"] = frame["head"].astype(str)
            frame["network"] = "N = " + frame["width"].map(number)
            frame["layer"] = "layer " + frame["layer"].astype(str)
            groups = frame.groupby(["layer", "network", "head"], sort=False)["score"]
            return groups.agg(score="median", lowest="min", highest="max").reset_index()

        return bars(
            self.of_settings(100, build),
            "head",
            "score",
            low="lowest",
            high="highest",
            series="network",
            panel="layer",
            switches=[*self.option, "shown"],
            titles=_TITLES,
        )

    def alignment(self) -> alt.TopLevelMixin:
        from pathkernel_views.primitives import lines

        count = max(10, 3 * self.dataset.sizes["component"] // 10)

        def build(part: xr.Dataset, selection: Selection, seeds: list[int]) -> pd.DataFrame:
            first = {"seed": seeds, "component": slice(count)}
            finite = selection.point("alignment").isel(first).isel(width=_few_widths(part))
            limit = selection.reference("alignment_gp").isel(first)
            frame = frame_of(finite.rename("overlap"))
            frame["network"] = "N = " + frame["width"].map(number)
            frames = [frame, frame_of(limit.rename("overlap")).assign(network="GP limit")]
            return pd.concat(frames)[["seed", "network", "component", "overlap"]]

        return lines(
            self.of_settings(6 * count, build),
            "component",
            "overlap",
            series="network",
            switches=[*self.option, "shown", "seed"],
            titles=_TITLES,
        )

    def kernels(self) -> alt.TopLevelMixin:
        from pathkernel_views.primitives import heatmaps

        def build(part: xr.Dataset) -> pd.DataFrame:
            seed, paths = self.seeds(part)[0], few(part.sizes["path"], _KERNELS)
            of_paths = part["same_path_kernel"].isel(seed=seed, path=paths).transpose("path", ...)
            kernels = {f"path {kernel['path'].item()}": kernel for kernel in of_paths}
            if "total_kernel" in part:
                selection = Selection(part, self.temperature)
                finite = selection.point("total_kernel").isel(seed=seed, width=_few_widths(part)[0])
                kernels["total, GP limit"] = selection.reference("total_kernel_gp").isel(seed=seed)
                kernels[f"total, N = {number(finite['width'].item())}"] = finite
            frames = []
            for name, kernel in kernels.items():
                unit = float(kernel.quantile(0.99))
                if not unit > 0:  # not computed yet
                    continue
                rows, columns = np.indices(kernel.shape).reshape(2, -1) + 1
                frame = pd.DataFrame({"example": rows, "example_dual": columns})
                frame["kernel"] = kernel.values.ravel() / unit
                frames.append(frame.assign(panel=f"{name}: {unit:.3g}", seed=kernel["seed"].item()))
            if not frames:
                raise NothingToPlot("no kernel is computed yet")
            return pd.concat(frames)

        edges: list[int] = []
        if not self.option:  # whose values may have classes of different sizes
            labels = self.dataset["train_label"].isel(seed=self.seeds(self.dataset)[0]).values
            edges = [int(n) + 2 for n in np.flatnonzero(np.diff(labels))]
        return heatmaps(
            of_every_value(self.dataset, build),
            "example_dual",
            "example",
            "kernel",
            panel="panel",
            switches=[*self.option, "seed"],
            titles=_TITLES,
            centred=False,
            domain=(0.0, 1.0),
            edges=edges if len(edges) < 10 else [],  # of classes, not of targets
            labels=False,
        )

    def temperature_choice(self) -> alt.TopLevelMixin:
        from pathkernel_views.primitives import beside, lines

        frame, measure = of_every_value(self.dataset, choice_frame), measures_of(self.dataset)[0]
        if frame.empty:
            raise NothingToPlot("the grid of no seed is complete, so no temperature is chosen yet")
        score = f"{measure.name}_median"
        settings = {
            "series": "choice",
            "panel": "test_set",
            "switches": self.option,
            "titles": _TITLES | {score: measure.axis},
            "log": True,
        }
        frame = frame[frame["width"].notna()]
        scores = lines(frame, "width", score, **settings)
        return beside(scores, lines(frame, "width", "temperature", log_y=True, **settings))


def _few_widths(dataset: xr.Dataset, most: int = 5) -> list[int]:
    order = np.argsort(dataset["width"].values)
    return [int(order[index]) for index in few(len(order), most)]
