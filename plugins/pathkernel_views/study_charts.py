"""A study as charts, on which readers point at values and choose width, temperature and seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from pathkernel_datasets.measures import Measure, choices_of, measures_of
from pathkernel_datasets.selection import Selection, Spread, count_test_examples, few, number
from pathkernel_datasets.swept import by_value, described, swept_option
from pathkernel_views.chart import (
    NUMBERS,
    ROWS,
    Chart,
    chart_data,
    of_each_value,
    of_rows,
    strongest,
)
from pathkernel_views.figure_parts import require
from pathkernel_views.path_figures import limit_diagonal
from pathkernel_views.temperature_figure import chosen_by_each

_KERNELS = 12
_LIMIT = "GP limit"


def study_charts(
    dataset: xr.Dataset, temperature: float | str | None = None
) -> dict[str, Callable[[], Chart]]:
    """Functions that give the charts of a study, by name; those of figures have their names.

    Parameters
    ----------
    dataset : xarray.Dataset
        From :func:`pathkernel_datasets.store.open_store`, complete or not.
    temperature : float or str, optional
        What is shown first, as for :class:`pathkernel_datasets.selection.Selection`.
    """
    option, parts = swept_option(dataset), by_value(dataset)
    measures = measures_of(dataset)
    single: dict[str, Callable[..., Chart]] = {}
    for measure in measures:
        single[measure.name] = partial(against_width, measure=measure)
        if dataset.sizes["temperature"] > 1:
            single[f"{measure.name}_against_temperature"] = partial(
                against_temperature, measure=measure
            )
    single |= {
        "strongest_paths": strongest_paths,
        "order_parameters": order_parameters,
        "head_scores": head_scores,
        "alignment": alignment,
        "kernels": kernels,
    }
    if dataset.sizes["temperature"] > 1:
        single["temperature_choice"] = temperature_choice
    charts: dict[str, Callable[[], Chart]] = {}
    if option is not None:
        charts = {
            f"{measure.name}_against_{option}": partial(
                _against_option, dataset, temperature, measure
            )
            for measure in measures
        }

    def of_all(chart: Callable[..., Chart]) -> Chart:
        found = {value: chart(part, temperature) for value, part in parts.items()}
        return of_each_value(found, option or "")

    return charts | {name: partial(of_all, chart) for name, chart in single.items()}


def _selections(
    dataset: xr.Dataset, temperature: float | str | None, most: int | None = None
) -> dict[str, Selection]:
    """What is shown first, and the single temperatures, by the words for them."""
    first = Selection(dataset, temperature)
    values = dataset["temperature"].values
    if not first.chosen:
        first_words = f"{first.temperature_gp:g}"
    else:
        first_words = f"of {choices_of(dataset)[first.chosen].words}"
    found = {first_words: first}
    for value in values[:most]:
        if f"{value:g}" not in found:
            found[f"{value:g}"] = Selection(dataset, float(value))
    return found


def _spread(values: xr.DataArray, examples: int | None = None) -> np.ndarray:
    """Median, lowest and highest over the seeds, or of one seed binomial errors, (3, …)."""
    rest = [dim for dim in values.dims if dim != "seed"]
    held = values.transpose("seed", *rest).values
    flat = [Spread.of(column) for column in held.reshape(len(held), -1).T]
    ends = np.array([(each.median, each.lowest, each.highest) for each in flat]).T
    if examples and len(held) == 1:
        error = np.sqrt(ends[0] * (1 - ends[0]) / examples)
        ends = np.stack([ends[0], ends[0] - error, ends[0] + error])
    return ends.reshape(3, *held.shape[1:])


def _scores(dataset: xr.Dataset, selection: Selection, name: str) -> np.ndarray:
    """Spreads of a measure, shape (3, test_set, series, width): widths, limit, sub-networks."""
    finite = selection.point(name).transpose("seed", "width", "test_set")
    limits = [selection.reference(f"{name}_gp").transpose("seed", "test_set")]
    if dataset.sizes.get("sub_network", 0):
        limits += list(selection.sub_networks(f"{name}_sub_network").transpose("sub_network", ...))
    across = np.ones(dataset.sizes["width"])
    found = []
    for t in range(dataset.sizes["test_set"]):
        examples = count_test_examples(dataset, t) if name == "accuracy" else None
        rows = [_spread(finite.isel(test_set=t), examples)]
        rows += [_spread(limit.isel(test_set=t), examples)[..., None] * across for limit in limits]
        found.append(np.stack(rows, 1))
    return np.stack(found, 1)


def _uncertainty(dataset: xr.Dataset, measure: Measure) -> str:
    if dataset.sizes["seed"] > 1:
        return f"Points are medians over {dataset.sizes['seed']} seeds, ranges span the seeds."
    errors = "; ranges are one binomial standard error of the test set"
    return f"One seed{errors * (measure.name == 'accuracy')}."


def _chart_of_scores(
    measure: Measure, about: str, values: np.ndarray, labels: dict, **rest: object
) -> Chart:
    names = {
        "value": measure.axis,
        "low": "lowest",
        "high": "highest",
        "test_set": "test set",
        "series": "network",
        "width": "width N",
        "temperature": "temperature T",
    }
    data = chart_data(dict(zip(("value", "low", "high"), values)), labels, **names)
    return Chart(
        about=about,
        data=data,
        mark="lines",
        y="value",
        low="low",
        high="high",
        series="series",
        panel="test_set",
        **rest,
    )


def against_width(dataset: xr.Dataset, temperature: float | str | None, measure: Measure) -> Chart:
    """A measure against the width, and its limits, at every temperature."""
    chosen = _selections(dataset, temperature)
    values = np.stack([_scores(dataset, each, measure.name) for each in chosen.values()], 1)
    parts = (
        [f"{name} (GP limit)" for name in dataset["sub_network"].values]
        if dataset.sizes.get("sub_network")
        else []
    )
    heading = measure.axis.partition(" (")[0]
    labels = {
        "temperature": list(chosen),
        "test_set": dataset["test_set"].values.tolist(),
        "series": ["theory", _LIMIT, *parts],
        "width": dataset["width"].values,
    }
    return _chart_of_scores(
        measure,
        f"{heading.capitalize()} on test examples against the width N of the network. Dashed lines "
        f"are Gaussian process (GP) limits. {_uncertainty(dataset, measure)}",
        values,
        labels,
        title=f"{heading.capitalize()} against width",
        x="width",
        band=True,
        log=True,
        switches=("temperature",),
    )


def against_temperature(
    dataset: xr.Dataset, temperature: float | str | None, measure: Measure
) -> Chart:
    """A measure against the temperature, at some widths and in the limit."""
    widths = dataset["width"].values
    order = np.argsort(widths)
    shown = [int(order[place]) for place in few(len(order))]
    grid = dataset["temperature"].values
    found = [_scores(dataset, Selection(dataset, float(value)), measure.name) for value in grid]
    every = np.stack(found, -1)  # (3, test_set, series, width, temperature)
    values = np.concatenate([every[:, :, 0, shown], every[:, :, 1, :1]], 2)
    heading = measure.axis.partition(" (")[0]
    labels = {
        "test_set": dataset["test_set"].values.tolist(),
        "series": [*(f"N = {number(widths[w])}" for w in shown), _LIMIT],
        "temperature": grid,
    }
    return _chart_of_scores(
        measure,
        f"{heading.capitalize()} on test examples against the temperature T, at "
        f"{'some' if len(shown) < len(widths) else 'all'} widths and in the Gaussian process (GP) "
        f"limit. {_uncertainty(dataset, measure)}",
        values,
        labels,
        title=f"{heading.capitalize()} against temperature",
        x="temperature",
        log=True,
        ordered=True,
    )


def _against_option(
    dataset: xr.Dataset, temperature: float | str | None, measure: Measure
) -> Chart:
    """A measure against the values of an option, at some widths and in the limit."""
    option, parts = swept_option(dataset), by_value(dataset)
    widths = dataset["width"].values
    order = np.argsort(widths)
    shown = [int(order[place]) for place in few(len(order))]
    selections = [_selections(part, temperature) for part in parts.values()]
    names = list(selections[0])
    found = np.stack(
        [
            [_scores(part, held[name], measure.name) for name in names]
            for part, held in zip(parts.values(), selections)
        ],
        -1,
    )  # (temperature, 3, test_set, series, width, value)
    values = np.concatenate([found[:, :, :, 0, shown], found[:, :, :, 1, :1]], 3).swapaxes(0, 1)
    heading = measure.axis.partition(" (")[0]
    labels = {
        "temperature": names,
        "test_set": dataset["test_set"].values.tolist(),
        "series": [*(f"N = {number(widths[w])}" for w in shown), _LIMIT],
        option: list(parts),
    }
    numbers = [value for value in parts if not isinstance(value, str)]
    return _chart_of_scores(
        measure,
        f"{heading.capitalize()} on test examples against {described(option)}. "
        f"{_uncertainty(dataset, measure)}",
        values,
        labels,
        title=f"{heading.capitalize()} against {described(option)}",
        x=option,
        log=bool(numbers) and min(numbers) > 0 and max(numbers) >= 8 * min(numbers),
        ordered=True,
        switches=("temperature",),
    )


def _points(
    dataset: xr.Dataset,
    temperature: float | str | None,
    get: Callable[[Selection], xr.DataArray],
) -> tuple[xr.DataArray, str]:
    """Values at every (temperature, seed, width, …) that a page has room for; what is left out."""
    every = _selections(dataset, temperature)
    first, *_ = every.values()
    sample = get(first)
    room = max(1, NUMBERS // max(1, sample.isel(seed=0).size))
    chosen = list(every)[:room]
    seeds = max(1, min(dataset.sizes["seed"], room // len(chosen)))
    taken = (get(every[name]).isel(seed=slice(seeds)) for name in chosen)
    found = [each.drop_vars("temperature", errors="ignore").load() for each in taken]
    values = xr.concat(found, "temperature", coords="minimal", compat="override")
    values = values.assign_coords(
        temperature=chosen, seed=[str(seed) for seed in dataset["seed"].values[:seeds]]
    )
    left = []
    if len(chosen) < len(every):
        left.append(f"{len(chosen)} of {len(every)} temperatures")
    if seeds < dataset.sizes["seed"]:
        left.append(f"{seeds} of {dataset.sizes['seed']} seeds")
    return values, f" Of this study {' and '.join(left)} are in the page." if left else ""


def _at_points(values: xr.DataArray) -> dict[str, list[str]]:
    return {
        "temperature": values["temperature"].values.tolist(),
        "seed": values["seed"].values.tolist(),
        "width": [number(width) for width in values["width"].values],
    }


_POINT = ("temperature", "seed", "width")
_MEANINGS = {
    "temperature": "temperature T",
    "width": "width N",
    "path_dual": "path′",
    "U": "U",
}


def matrix_rows(values: xr.DataArray, leading: tuple[str, ...]) -> tuple[np.ndarray, list[str]]:
    """U as matrices over paths and, of several outputs, outputs; and the names of the rows.

    Parameters
    ----------
    values : DataArray, dims ``leading``, path, path_dual and perhaps output, output_dual
    leading : tuple of str
        Dimensions that come first.

    Returns
    -------
    array, shape (…, n·C, n·C)
    list of str
    """
    names = [str(path) for path in values["path"].values]
    if "output" in values.dims:
        names = [f"{path} output {c}" for path in names for c in values["output"].values]
    last = ("path", "output", "path_dual", "output_dual")
    values = values.transpose(*leading, *last, missing_dims="ignore")
    return values.values.reshape(*values.shape[: len(leading)], len(names), -1), names


def order_parameters(dataset: xr.Dataset, temperature: float | str | None) -> Chart:
    """U over pairs of paths, at every point; of many paths the strongest."""
    paths = dataset["path"].values
    some = _strongest(dataset, temperature)

    def get(selection: Selection) -> xr.DataArray:
        return selection.point("order_parameter").isel(path=some, path_dual=some)

    values, left = _points(dataset, temperature, get)
    matrices, names = matrix_rows(values, _POINT)
    labels = _at_points(values) | {"path": names, "path_dual": names}
    return Chart(
        "Order parameter U",
        "How a network of finite width combines its attention paths: the kernel of paths π and π′ "
        "enters with the weight U(π, π′). In the Gaussian process limit U is diagonal. A path is "
        f"named by its head in each layer, such as 1-2.{of_rows(some, paths)}{left}",
        chart_data({"U": matrices}, labels, **_MEANINGS),
        "heatmap",
        x="path_dual",
        y="path",
        switches=_POINT,
    )


def _strongest(dataset: xr.Dataset, temperature: float | str | None) -> np.ndarray:
    """Places of the paths of largest U(π, π), in their order, at the smallest width."""
    paths, outputs = dataset.sizes["path"], dataset.sizes.get("output", 1)
    if paths * outputs <= ROWS:
        return np.arange(paths)
    every = Selection(dataset, temperature).point("order_parameter")
    narrow = path_diagonal(every.isel(width=dataset["width"].argmin().item()))
    return strongest(narrow.transpose(..., "path").values, max(1, ROWS // outputs))


def path_diagonal(values: xr.DataArray) -> xr.DataArray:
    """U(π, π) of values with the dims path and path_dual; of several outputs the mean over them."""
    for dim in ("path", "output"):
        if dim in values.dims:
            every = xr.DataArray(np.arange(values.sizes[dim]), dims=dim)
            values = values.isel({dim: every, f"{dim}_dual": every})
    return values.mean("output") if "output" in values.dims else values


def strongest_paths(dataset: xr.Dataset, temperature: float | str | None) -> Chart:
    """U(π, π) of every path in units of the limit's, drawn through the layers."""
    values, left = _points(
        dataset, temperature, lambda each: path_diagonal(each.point("order_parameter"))
    )
    limit = limit_diagonal(dataset)
    strengths = values.transpose(*_POINT, "path").values / limit
    labels = _at_points(values) | {"path": [str(path) for path in dataset["path"].values]}
    what = "U(π, π) / limit"
    return Chart(
        "The network and its strongest paths",
        "Attention paths through the heads of the layers, from the input below to the output "
        "above. A line is as thick as the path's own weight U(π, π), in units of what it is in the "
        f"Gaussian process limit; the strongest eight are drawn.{left}",
        chart_data({"strength": strengths}, labels, strength=what, **_MEANINGS),
        "paths",
        x="path",
        y="strength",
        switches=_POINT,
    )


def head_scores(dataset: xr.Dataset, temperature: float | str | None) -> Chart:
    """Score of every head, and of skips, at some widths."""
    require(dataset, "head_score")
    chosen = _selections(dataset, temperature)
    widths = dataset["width"].values
    order = np.argsort(widths)
    shown = [int(order[place]) for place in few(len(order))]
    skips = "skip_score" in dataset
    names = [*(["skip"] if skips else []), *map(str, dataset["head"].values)]
    found = []
    for selection in chosen.values():
        scores = selection.point("head_score").transpose("seed", "layer", "head", "width")
        if skips:
            skip = selection.point("skip_score").transpose("seed", "layer", "width")
            scores = xr.concat(
                [skip.expand_dims(head=[0]), scores], "head", coords="minimal", compat="override"
            )
            scores = scores.transpose("seed", "layer", "head", "width")
        found.append(_spread(scores.isel(width=shown)))
    labels = {
        "temperature": list(chosen),
        "layer": [f"layer {layer}" for layer in dataset["layer"].values],
        "head": names,
        "series": [f"N = {number(widths[w])}" for w in shown],
    }
    values = dict(zip(("score", "low", "high"), np.stack(found, 1)))
    also = " The skip of a layer passes its heads by." * skips
    return Chart(
        "Scores of heads",
        "Weight of U on the paths through a head, where the largest of the network is 1."
        + also
        + " Medians over the seeds; whiskers span the seeds." * (dataset.sizes["seed"] > 1),
        chart_data(values, labels, score="head score (largest 1)", series="width", **_MEANINGS),
        "bars",
        x="head",
        y="score",
        low="low",
        high="high",
        series="series",
        panel="layer",
        ordered=True,
        switches=("temperature",),
    )


def alignment(dataset: xr.Dataset, temperature: float | str | None) -> Chart:
    """Overlap of the kernel's principal components with the labels, and that of the limit's."""
    require(dataset, "alignment", "alignment_gp")
    finite, left = _points(dataset, temperature, lambda each: each.point("alignment"))
    limit, _ = _points(
        dataset,
        temperature,
        lambda each: each.reference("alignment_gp").expand_dims(width=dataset["width"].values),
    )
    values = np.stack(
        [
            finite.transpose(*_POINT, "component").values,
            np.broadcast_to(
                limit.transpose(*_POINT, "component").values[: len(finite)],
                finite.transpose(*_POINT, "component").shape,
            ),
        ],
        3,
    )
    labels = _at_points(finite) | {
        "series": ["theory", _LIMIT],
        "component": dataset["component"].values,
    }
    return Chart(
        "Alignment of the kernel with the task",
        "Overlap of the kernel's principal components, largest eigenvalue first, with the labels. "
        f"The more the labels lie in the first components, the better they are learned.{left}",
        chart_data(
            {"overlap": values},
            labels,
            overlap="overlap |vᵢ·Y| / ‖Y‖",
            component="principal component i",
            **_MEANINGS,
        ),
        "lines",
        x="component",
        y="overlap",
        series="series",
        switches=_POINT,
    )


def kernels(dataset: xr.Dataset, temperature: float | str | None) -> Chart:
    """Kernels of single paths, and the total one in the limit and at the smallest width."""
    require(dataset, "same_path_kernel", "train_label")
    done = dataset["data_done"].load() != 0
    paths = dataset.sizes["path"]
    some = few(paths, _KERNELS)
    examples = dataset.sizes["train_example"]
    every = dataset.sizes["seed"]
    seeds = max(1, min(every, NUMBERS // (examples**2 * (len(some) + 2))))
    at = {"seed": slice(seeds)}
    held = dataset["same_path_kernel"].where(done).isel(path=some, **at)
    matrices = list(held.transpose("path", "seed", ...).values)
    names = [f"path {path}" for path in held["path"].values]
    if "total_kernel" in dataset:
        selection = Selection(dataset, temperature)
        w = int(dataset["width"].values.argmin())
        matrices += [
            selection.reference("total_kernel_gp").isel(at).values,
            selection.point("total_kernel").isel(at).isel(width=w).values,
        ]
        names += ["total, GP limit", f"total, N = {number(dataset['width'].values[w])}"]
    numbers = [str(place + 1) for place in range(examples)]
    labels = {
        "kernel": names,
        "seed": [str(seed) for seed in dataset["seed"].values[:seeds]],
        "example": numbers,
        "example_dual": numbers,
    }
    return Chart(
        "Kernels",
        "Kernel of each path with itself, and of all in one, on training examples sorted by label."
        + f" {len(some)} of {paths} paths." * (len(some) < paths)
        + f" In the page are {seeds} of {every} seeds." * (seeds < every),
        chart_data(
            {"K": np.stack(matrices)},
            labels,
            example="training example",
            example_dual="training example′",
            K="kernel",
        ),
        "heatmap",
        x="example_dual",
        y="example",
        switches=("kernel", "seed"),
        diverging=False,
    )


def temperature_choice(dataset: xr.Dataset, temperature: float | str | None) -> Chart:
    """What is predicted at the temperatures of each choice, and which those are."""
    dataset, looks, chosen = chosen_by_each(dataset)
    measure = measures_of(dataset)[0]
    tests = dataset["test_set"].values.tolist()
    spreads, temperatures = [], []
    for found in chosen.values():
        found = found.broadcast_like(dataset["seed"]).broadcast_like(dataset["test_set"])
        scores = found["score"].transpose("seed", "test_set", "width")
        counts = [count_test_examples(dataset, t) for t in range(len(tests))]
        one = measure.name == "accuracy"
        each = [_spread(scores[:, t], counts[t] if one else None) for t in range(len(tests))]
        spreads.append(np.stack(each, 1))
        temperatures.append(found["temperature"].isel(seed=0).transpose("test_set", "width").values)
    labels = {
        "choice": [looks[name][0] for name in chosen],
        "test_set": tests,
        "width": dataset["width"].values,
    }
    values = dict(zip(("score", "low", "high"), np.stack(spreads, 1)))
    values["temperature"] = np.stack(temperatures)
    words = {"score": measure.axis, "temperature": "temperature T chosen", "test_set": "test set"}
    return Chart(
        "Choices of the temperature",
        f"{measure.axis.partition(' (')[0].capitalize()} at the temperatures that each way to "
        f"choose them takes, over all seeds together. {_uncertainty(dataset, measure)}",
        chart_data(values, labels, width="width N", **words),
        "lines",
        x="width",
        y="score",
        low="low",
        high="high",
        series="choice",
        panel="test_set",
        log=True,
    )
