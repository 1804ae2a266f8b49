"""The views of a study: tables, sentences and charts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xarray as xr

from pathkernel_datasets.selection.selection import Selections, index_of
from pathkernel_datasets.study.study import describe_option
from pathkernel_datasets.variables.measures import (
    CALIBRATION_BINS,
    Measure,
    has_temperature,
    label_kind,
    measures_of,
)
from pathkernel_views.chart import Chart
from pathkernel_views.paths import KERNELS, ROWS, STRONGEST, of_paths
from pathkernel_views.study_tables import (
    UNCONVERGED,
    describe_head_scores,
    describe_sub_networks,
    study_details,
    study_summary,
)
from pathkernel_views.table import Table
from pathkernel_views.titles import axis_title

if TYPE_CHECKING:
    import altair as alt


def study_views(
    dataset: xr.Dataset, temperature: float | str | None = None, seed: int | None = None
) -> Iterator[Table | Chart | str]:
    """Yield tables, sentences and charts of a study, in reading order.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.folder.reading.open_study`, complete or not, or a copy or a
        part of one, such as ``dataset.sel(width=[10])``; several values of an option become a
        switch of the charts.
    temperature : float or str, optional
        Temperature of the study, or how it is chosen: in tables for each width and for the limits,
        see :class:`pathkernel_datasets.selection.selection.Selection`; in charts for all together.
    seed : int, optional
        Initial seed of charts of a single seed; by default the first computed one.

    Raises
    ------
    ValueError
        If the study does not have that temperature or seed, or the scores of the choice.
    """
    study = Selections(dataset)
    if seed is not None:
        index_of(study.dataset, "seed", seed)
    yield from study_summary(study, temperature)
    yield from study_charts(study, temperature, seed)
    yield from study_details(study, temperature)


def still_charts(
    study: xr.Dataset | Selections, temperature: float | str | None = None, seed: int | None = None
) -> list[Chart]:
    """Return the charts of a study for files, which have no switches.

    If an option has several values, these are the charts against it, and a folder of charts for
    each value.
    """
    study, settings = Selections.of(study), (temperature, seed, True)
    option, charts = study.option, list(study_charts(study, *settings))
    if option is None:
        return charts
    charts = [chart for chart in charts if chart.name.endswith(f"_against_{option}")]
    for value, single in study.singles.items():
        charts += [
            replace(
                chart,
                name=f"{option}-{value}/{chart.name}",
                title=f"{chart.title}, {describe_option(option, value)}",
            )
            for chart in study_charts(Selections(single), *settings)
        ]
    return charts


def study_charts(
    study: xr.Dataset | Selections,
    temperature: float | str | None = None,
    seed: int | None = None,
    still: bool = False,
) -> Iterator[Chart]:
    """Yield the charts of a study; parameters as for :func:`study_views`.

    With ``still`` they contain only the initial temperature and seed.
    """

    def chart_of(name: str, *arguments: Any) -> Callable[[], alt.TopLevelMixin]:
        def draw() -> alt.TopLevelMixin:
            from pathkernel_views.study_charts import StudyCharts

            return getattr(StudyCharts(study, temperature, seed, still), name)(*arguments)

        return draw

    study = Selections.of(study)
    dataset, option = study.dataset, study.option
    sizes = dataset.sizes
    hollow = dataset["status"].isin(list(UNCONVERGED.values())).any()

    def ranges(measure: Measure) -> str:
        """Say what the ranges of a measure are, and hollow points."""
        text = " Points are medians over the seeds; ranges span the seeds."
        if sizes["seed"] == 1:
            error = " Ranges are one binomial standard error of the test set."
            text = error if measure.is_fraction else ""
        return text + " Hollow points did not converge." * bool(hollow)

    at = f" At {study.describe_common(temperature)}." if has_temperature(dataset) else ""
    names = [option] if option else []
    names += ["width", *["temperature"] * (sizes["temperature"] > 1)]
    axes = {name: axis_title(name) for name in names}
    for (x, axis), measure in itertools.product(axes.items(), measures_of(dataset)):
        heading = measure.axis.partition(" (")[0].capitalize()
        yield Chart(
            measure.name if x == "width" else f"{measure.name}_against_{x}",
            f"{heading} against {describe_option(x)}",
            f"{heading} on test examples against {axis}. Dashed lines are Gaussian process (GP) "
            f"limits.{describe_sub_networks(dataset) * (x == 'width')}{ranges(measure)}"
            f"{_side_by_side(study, x)}{at * (x != 'temperature')}",
            chart_of("against", measure, x),
        )
    if sizes["temperature"] > 1:
        measure = measures_of(dataset)[0]
        heading = measure.axis.partition(" (")[0].capitalize()
        yield Chart(
            f"{measure.name}_at_every_temperature",
            f"{heading} against width, every temperature",
            f"{heading} on test examples against {axis_title('width')}, one panel for each "
            "temperature T. Dashed lines are Gaussian process (GP) limits of the whole network."
            f"{ranges(measure)}",
            chart_of("at_every_temperature", measure),
        )
    if "probability" in dataset:
        yield Chart(
            "reliability",
            "Calibration of the probabilities",
            "Fraction of test examples classified correctly against the largest probability, in "
            f"{CALIBRATION_BINS} bins of equal width, of all seeds together. On the diagonal "
            "probabilities are frequencies: above it they are too small, below it too large.",
            chart_of("reliability"),
        )
    has_seeds = sizes["seed"] > 1
    rows = min(sizes["path"], max(1, ROWS // sizes.get("output", 1)))
    charts = {
        "order_parameters": (
            "Order parameter U",
            "The weight U(π, π′) of the kernel of the paths π and π′ in a network of finite width; "
            "a path is named by its head in each layer, such as 1-2. In the Gaussian process (GP) "
            "limit U is diagonal. All panels have one scale, with all values unless its ends have "
            f"a sign ≤ or ≥.{of_paths(rows, sizes['path'])}{at}",
        ),
        "strongest_paths": (
            "The network and its strongest paths",
            "Attention paths through the heads of the layers, from the input at the left to the "
            "output at the right. A line is as thick as the weight U(π, π) of its path, printed "
            "at the right in units of its weight in the Gaussian process (GP) limit."
            f"{' The strongest paths are drawn.' * (sizes['path'] > STRONGEST)}{at}",
        ),
    }
    if "alignment" in dataset and "output" not in dataset.dims:
        charts["alignment"] = (
            "Alignment of the kernel with the task",
            "Overlap of the kernel's principal components, largest eigenvalue first, with the "
            "labels. The more the labels lie in the first components, the better they are learned."
            f"{at}",
        )
    if "head_score" in dataset:
        charts["head_scores"] = (
            "Scores of heads",
            f"{describe_head_scores(dataset)}."
            + " Bars are medians over the seeds, whiskers their range." * has_seeds
            + at,
        )
    if "same_path_kernel" in dataset and "train_label" in dataset:
        charts["kernels"] = (
            "Kernels",
            f"Kernels of {min(sizes['path'], KERNELS)} of {sizes['path']} paths with themselves"
            + ", and of all paths in one," * ("total_kernel" in dataset and "output" not in sizes)
            + f" on {sizes['train_example']} training examples, sorted by label"
            + "; lines divide the classes" * (option is None and label_kind(dataset) != "targets")
            + ". Colours of a panel go from the 1st to the 99th percentile of its kernel"
            + ", which its heading names" * (option is None)
            + "; values beyond have the last colour.",
        )
    if sizes["temperature"] > 1:
        charts["temperature_choice"] = (
            "Choices of the temperature",
            "Scores at the temperatures of each choice"
            + ", medians and ranges over the seeds" * has_seeds
            + ", and the chosen temperatures.",
        )
    for name, (title, caption) in charts.items():
        yield Chart(name, title, caption, chart_of(name))


def _side_by_side(study: Selections, x: str) -> str:
    """Return a caption's sentence about points that are moved, of a chart against text."""
    if x != study.option or all(isinstance(value, int | float) for value in study.singles):
        return ""
    return (
        " Points of several series stand side by side, less than 2 % of the panel off their place."
    )
