"""The Altair charts of a study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.selection.selection import Selection, Selections, index_of, spread_indices
from pathkernel_datasets.variables.measures import Measure, has_temperature, measures_of
from pathkernel_views.calibration import reliability_frame
from pathkernel_views.chart import NothingToPlot
from pathkernel_views.network import network
from pathkernel_views.paths import (
    KERNELS,
    NUMBERS,
    ROWS,
    limit_diagonal,
    matrix_frame,
    path_diagonal,
    row_names,
    strongest,
)
from pathkernel_views.primitives import bars, chart_grid, heatmaps, lines
from pathkernel_views.study_tables import (
    choice_frame,
    curves_frame,
    head_score_frame,
    of_every_value,
)
from pathkernel_views.table import frame_of
from pathkernel_views.titles import axis_title

_ROUNDING = 1e-9  # a smaller relative range is none
_MOST_DIGITS = 10  # that tell its ends apart
_WIDTHS = 3  # panels of widths in a row
_TITLES = {
    "seed": "seed",
    "width": "width N",
    "temperature": "temperature T",
    "shown": "temperature",
    "path_dual": "path′",
    "test_set": "test set",
    "strength": "U(π, π) / GP limit",
    "number": "head",
    "score_median": "head score, median (largest 1)",
    "score_lowest": "lowest",
    "score_highest": "highest",
    "unconverged": "did not converge",
    "confidence": "largest probability, mean of a bin",
    "correct": "fraction correct",
    "component": "principal component i",
    "overlap": "overlap with the labels",
    "example_dual": "example′",
    "kernel": "K in the range of its panel",
}


@dataclass(frozen=True)
class StudyCharts:
    """Altair charts of a study, with switches for its option, temperature and seed.

    With ``still`` they contain only the initial temperature and seed.
    """

    study: Selections
    temperature: float | str | None
    seed: int | None
    still: bool = False

    @property
    def dataset(self) -> xr.Dataset:
        """The dataset of the study."""
        return self.study.dataset

    @property
    def option(self) -> list[str]:
        """List of the swept option, empty if there is none."""
        return [self.study.option] if self.study.option else []

    @property
    def temperatures(self) -> dict[str, float]:
        """The temperature of all widths, and after it all others, by their labels."""
        common = self.study.common_temperature(self.temperature)
        if not has_temperature(self.dataset):  # of classes, without a temperature
            return {f"{self.dataset.attrs['likelihood']} likelihood": common}
        return {f"T = {common:g}": common} | ({} if self.still else _grid(self.dataset))

    def seeds(self, single: xr.Dataset) -> list[int]:
        """Return the indices of the computed seeds, the requested one first."""
        computed = (single["status"] != 0).any(["temperature", "width"])
        indices = np.flatnonzero(computed.values).tolist()
        if self.seed is not None:
            first = index_of(single, "seed", self.seed)
            if first not in indices:
                raise NothingToPlot(f"seed {self.seed} is not computed yet")
            indices.sort(key=lambda index: index != first)
        if not indices:
            raise NothingToPlot("no seed is computed yet")
        return indices[:1] if self.still else indices

    def of_settings(
        self, size: int, build: Callable[[xr.Dataset, Selection, list[int]], pd.DataFrame]
    ) -> pd.DataFrame:
        """Concatenate the frames of as many temperatures and seeds as a chart has room for.

        ``size`` is the number of values at one temperature and seed.
        """
        # temperatures before seeds, if there is no room for both: another seed shows little that is
        # new
        room = max(1, NUMBERS // (size * len(self.study.singles)))

        def frames(value: Any) -> pd.DataFrame:
            single = self.study.singles[value]
            temperatures = list(self.temperatures.items())[:room]
            seeds = self.seeds(single)[: max(1, room // len(temperatures))]
            return pd.concat(
                build(single, self.study.at(value, temperature), seeds).assign(shown=label)
                for label, temperature in temperatures
            ).reset_index(drop=True)

        return of_every_value(self.study, frames)

    def against(self, measure: Measure, x: str) -> alt.TopLevelMixin:
        """Draw a measure against the width, the temperature or a swept option."""
        temperatures = _grid(self.dataset) if x == "temperature" else self.temperatures
        frames = [
            curves_frame(self.study, measure, temperature).assign(shown=label)
            for label, temperature in temperatures.items()
        ]
        frame = pd.concat(frames, ignore_index=True)
        if x != "width":
            widths = self.dataset["width"].values[_few_widths(self.dataset)]
            networks = [*(f"N = {number(width)}" for width in widths), "GP limit"]
            frame = frame[frame["network"].isin(networks)].assign(curve=frame["network"])
        y, low, high = (f"{measure.name}_{key}" for key in ("median", "lowest", "highest"))
        columns = [*self.option, "shown", "curve", "width", "temperature", "test_set"]
        switch = "shown" if x == "temperature" else x
        return lines(
            frame[[*columns, y, low, high, "unconverged"]],
            x,
            y,
            low=low,
            high=high,
            series="curve",
            panel="test_set",
            switches=[name for name in (*self.option, "shown") if name != switch],
            titles=_TITLES | {x: axis_title(x)} | {y: measure.axis, low: "lowest", high: "highest"},
            log=pd.api.types.is_numeric_dtype(frame[x]) and not (frame[x] <= 0).any(),
            bands=x == "width",
            hollow="unconverged",
        )

    def at_every_temperature(self, measure: Measure) -> alt.TopLevelMixin:
        """Draw a measure against the width, in a panel for each test set and temperature."""
        frames = [
            curves_frame(self.study, measure, temperature).assign(shown=label)
            for label, temperature in _grid(self.dataset).items()
        ]
        frame, sets = pd.concat(frames, ignore_index=True), self.dataset["test_set"].values
        # limits of some heads alone may be so low that the others could not be told apart
        frame = frame[frame["curve"].isin(["theory", "GP limit"])]
        frame["panel"] = frame["shown"]
        if len(sets) > 1:
            order = {name: n for n, name in enumerate(sets)}
            frame = frame.sort_values("test_set", key=lambda names: names.map(order), kind="stable")
            frame["panel"] = frame["test_set"] + ", " + frame["shown"]
        y, low, high = (f"{measure.name}_{key}" for key in ("median", "lowest", "highest"))
        return lines(
            frame[[*self.option, "curve", "width", "panel", y, low, high, "unconverged"]],
            "width",
            y,
            low=low,
            high=high,
            series="curve",
            panel="panel",
            switches=self.option,
            titles=_TITLES | {"width": axis_title("width"), y: measure.axis},
            log=True,
            hollow="unconverged",
            columns=3 if len(sets) == 1 else min(len(frames), 5),
        )

    def reliability(self) -> alt.TopLevelMixin:
        """Draw the fraction correct against the largest probability."""

        def build(value: Any) -> pd.DataFrame:
            single = self.study.singles[value]
            return reliability_frame(single, _few_widths(single))

        return lines(
            of_every_value(self.study, build),
            "confidence",
            "correct",
            series="network",
            panel="test_set",
            switches=self.option,
            titles=_TITLES,
        )

    def order_parameters(self) -> alt.TopLevelMixin:
        """Draw U as heat maps at a few widths and in the limit."""
        outputs = self.dataset.sizes.get("output", 1)

        def build(single: xr.Dataset, selection: Selection, seeds: list[int]) -> pd.DataFrame:
            # the same paths in all panels: the strongest at the smallest width, which tells them
            # apart most
            widths, frames = _few_widths(single, _WIDTHS), []
            narrow = path_diagonal(single["order_parameter"].isel(width=widths[0]))
            paths = strongest(narrow.transpose(..., "path").values, outputs)
            matrices = selection.point("order_parameter").isel(seed=seeds, width=widths)
            matrices = matrices.isel(path=paths, path_dual=paths).load()
            names, limit = row_names(matrices), np.repeat(limit_diagonal(single)[paths], outputs)
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
        """Draw the network with the paths of largest U."""

        def build(single: xr.Dataset, selection: Selection, seeds: list[int]) -> pd.DataFrame:
            matrices = selection.point("order_parameter").isel(
                seed=seeds, width=_few_widths(single)
            )
            strengths = path_diagonal(matrices) / xr.DataArray(limit_diagonal(single), dims="path")
            return frame_of(strengths.rename("strength"))[["seed", "width", "path", "strength"]]

        # not the attribute: NetCDF makes a number of a list of one
        names = [str(name) for name in self.dataset.coords]
        layers = sum(name.startswith("path_layer_") for name in names)
        return network(
            self.of_settings(10 * self.dataset.sizes["path"], build),
            "path",
            "strength",
            [int(self.dataset[f"path_layer_{n}"].max()) for n in range(1, layers + 1)],
            switches=[*self.option, "shown", "seed", "width"],
            titles=_TITLES | {"width": "N ="},
        )

    def head_scores(self) -> alt.TopLevelMixin:
        """Draw scores of heads and skips at a few widths."""

        def build(single: xr.Dataset, selection: Selection, _: list[int]) -> pd.DataFrame:
            frame = head_score_frame(single, selection)
            # those of the limit, where heads do not learn, are all the same
            frame = frame[frame["width"].isin(single["width"].values[_few_widths(single)])]
            frame = frame.assign(network="N = " + frame["width"].map(number))
            return frame.assign(layer="layer " + frame["layer"].astype(str))

        return bars(
            self.of_settings(100, build),
            "number",
            "score_median",
            low="score_lowest",
            high="score_highest",
            series="network",
            panel="layer",
            switches=[*self.option, "shown"],
            titles=_TITLES,
        )

    def alignment(self) -> alt.TopLevelMixin:
        """Draw the overlap of the kernel's first components with the labels."""
        count = max(10, 3 * self.dataset.sizes["component"] // 10)

        def build(single: xr.Dataset, selection: Selection, seeds: list[int]) -> pd.DataFrame:
            first = {"seed": seeds, "component": slice(count)}
            finite = selection.point("alignment").isel(first).isel(width=_few_widths(single))
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
        """Draw the kernels of a few paths, and the total kernel."""

        def build(value: Any) -> pd.DataFrame:
            single = self.study.singles[value]
            seed, paths = self.seeds(single)[0], spread_indices(single.sizes["path"], KERNELS)
            of_paths = single["same_path_kernel"].isel(seed=seed, path=paths).transpose("path", ...)
            kernels = {f"path {kernel['path'].item()}": kernel for kernel in of_paths}
            if "total_kernel" in single:
                selection = self.study.at(value, next(iter(self.temperatures.values())))
                finite = selection.point("total_kernel").isel(
                    seed=seed, width=_few_widths(single)[0]
                )
                kernels["total, GP limit"] = selection.reference("total_kernel_gp").isel(seed=seed)
                name = f"total, N = {number(finite['width'].item())}"
                if has_temperature(self.dataset):  # classes have no temperature
                    name += f", T = {finite['temperature'].item():g}"
                kernels[name] = finite
            frames = []
            for name, kernel in kernels.items():
                # kernels of paths differ by orders of magnitude, and some are nearly uniform; their
                # diagonals stand out of each
                if kernel.load().isnull().all():  # not computed yet, or of several outputs
                    continue
                low, high = (float(end) for end in kernel.quantile([0.01, 0.99]))
                rows, columns = np.indices(kernel.shape).reshape(2, -1) + 1
                frame = pd.DataFrame({"example": rows, "example_dual": columns})
                reach = high - low
                is_uniform = not reach > _ROUNDING * max(abs(low), abs(high))
                share = 0.5 if is_uniform else (kernel.values.ravel() - low) / reach
                frame["kernel"] = share
                # ends differ between values of an option, which share their panels
                heading = name if self.option else f"{name}, {_between(low, high, is_uniform)}"
                frames.append(frame.assign(panel=heading, seed=kernel["seed"].item()))
            if not frames:
                raise NothingToPlot("no kernel is computed yet")
            return pd.concat(frames, ignore_index=True)

        edges: list[int] = []
        if not self.option:  # whose values may have classes of different sizes
            labels = self.dataset["train_label"].isel(seed=self.seeds(self.dataset)[0]).values
            edges = [int(n) + 2 for n in np.flatnonzero(np.diff(labels))]
        return heatmaps(
            of_every_value(self.study, build),
            "example_dual",
            "example",
            "kernel",
            panel="panel",
            switches=[*self.option, "seed"],
            titles=_TITLES,
            centred=False,
            domain=(0.0, 1.0),
            edges=edges if len(edges) < 10 else [],  # of classes, not of targets
        )

    def temperature_choice(self) -> alt.TopLevelMixin:
        """Draw scores and temperatures of every choice of the temperature."""
        frame = of_every_value(self.study, lambda value: choice_frame(self.study.singles[value]))
        measure = measures_of(self.dataset)[0]
        if frame.empty:
            raise NothingToPlot("no seed is complete, so no temperature is chosen yet")
        score, low, high = (f"{measure.name}_{key}" for key in ("median", "lowest", "highest"))
        settings = {
            "series": "choice",
            "panel": "test_set",
            "switches": self.option,
            "titles": _TITLES | {score: measure.axis, low: "lowest", high: "highest"},
            "log": True,
        }
        frame = frame[frame["width"].notna()]
        scores = lines(frame, "width", score, low=low, high=high, bands=False, **settings)
        return chart_grid(scores, lines(frame, "width", "temperature", log_y=True, **settings))


def _grid(dataset: xr.Dataset) -> dict[str, float]:
    """Return all temperatures of a study, by their labels."""
    return {f"T = {value:g}": float(value) for value in dataset["temperature"].values}


def _between(low: float, high: float, is_uniform: bool) -> str:
    """Return the ends of a scale of colours, with the digits that tell them apart."""
    if is_uniform:
        return f"all {high:.3g}"
    digits = 3
    while digits < _MOST_DIGITS and f"{low:.{digits}g}" == f"{high:.{digits}g}":
        digits += 1
    return f"{low:.{digits}g} to {high:.{digits}g}".replace("-", "−")


def _few_widths(dataset: xr.Dataset, count: int = 5) -> list[int]:
    """Return the indices of some widths, from the smallest to the largest."""
    order = np.argsort(dataset["width"].values)
    return [int(order[index]) for index in spread_indices(len(order), count)]
