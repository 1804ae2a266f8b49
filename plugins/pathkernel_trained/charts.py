"""Comparison and removal of heads as charts of the report, by the names of the figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores as scores_of
from pathkernel_datasets.selection import number
from pathkernel_trained.comparison_figures import known_points, trained_words
from pathkernel_trained.comparison_tables import Shown
from pathkernel_trained.heads import removable_heads
from pathkernel_trained.orders import RANDOM
from pathkernel_trained.pruning_tables import (
    OF_THEORY,
    kind_of_order,
    orders_of,
    reference_agreement,
    scored_orders,
)
from pathkernel_trained.study_checkpoint import study_heads
from pathkernel_views.chart import ROWS, Chart, chart_data, of_rows, strongest

_BEST = "best set of heads"


def pruning_charts(result: xr.Dataset) -> dict[str, Callable[[], Chart]]:
    """Functions that give the charts of a comparison of orders of removal."""
    drawn = {"accuracy": accuracy, "heads": heads, "scores": scores, "theory_grid": theory_grid}
    return {name: partial(chart, result) for name, chart in drawn.items()}


def accuracy(result: xr.Dataset) -> Chart:
    """Accuracy as heads are removed, by every order."""
    names = [*orders_of(result), RANDOM]
    shown = result.sel(order=names)
    dims = ("test_set", "order", "removed")
    middle = 100 * shown["accuracy"].transpose(*dims).values
    error = 100 * shown["accuracy_error"].transpose(*dims).values
    error[:, -1] = 100 * result["random_deviation"].transpose("test_set", "removed").values
    best = 100 * result["best_accuracy"].transpose("test_set", "removed").values[:, None]
    values = {
        "accuracy": np.concatenate([middle, best], 1),
        "low": np.concatenate([middle - error, best], 1),
        "high": np.concatenate([middle + error, best], 1),
    }
    of_theory = [kind_of_order(name) in OF_THEORY for name in names[:-1]]
    tests, panels, found = result["test_set"].values.tolist(), [], []
    for group, held in (("theory's orders", True), ("the others", False)):
        here = np.array([*(each is held for each in of_theory), True, True])[:, None]
        panels += [f"{test_set}, {group}" for test_set in tests]
        found.append({name: np.where(here, held, np.nan) for name, held in values.items()})
    values = {name: np.concatenate([each[name] for each in found]) for name in values}
    labels = {"test_set": panels, "order": [*names, _BEST], "removed": result["removed"].values}
    words = {"accuracy": "accuracy (%)", "removed": "heads removed", "test_set": "test set"}
    return Chart(
        "Accuracy as heads are removed",
        f"Accuracy of the trained network on {result.sizes['episode']} episodes of each set, as "
        "heads are removed by several scores, lowest first, without training again. Ranges are one "
        "binomial standard error, of random orders one standard deviation over them.",
        chart_data(values, labels, **words),
        "lines",
        x="removed",
        y="accuracy",
        low="low",
        high="high",
        series="order",
        panel="test_set",
    )


def heads(result: xr.Dataset) -> Chart:
    """Accuracy that is lost with every single head against its score."""
    test_set = str(result["test_set"].values[0])
    here, names = result.sel(test_set=test_set), scored_orders(result)
    numbers = removable_heads(result.attrs["heads_per_layer"])
    at = {
        name: xr.DataArray(list(held), dims="at")
        for name, held in zip(("layer", "head"), zip(*numbers))
    }
    score = here["score"].sel(order=names).sel(at).transpose("order", "at").values
    score = score / np.abs(score).max(1, keepdims=True)
    loss, error = (
        np.broadcast_to(100 * here[name].sel(at).values, score.shape)
        for name in ("ablation_drop", "ablation_drop_error")
    )
    ranks = here["rank_correlation"].sel(order=names, coefficient="spearman").values
    titles = [f"{name}, ρ = {rank:.2f}".replace("-0.", "−0.") for name, rank in zip(names, ranks)]
    values = {"lost": loss, "score": score, "low": loss - error, "high": loss + error}
    labels = {"order": titles, "head": ["{}-{}".format(*held) for held in numbers]}
    words = {"lost": "accuracy lost (points)", "score": "score / largest", "head": "head"}
    return Chart(
        "Single heads removed",
        f"Accuracy on {test_set} episodes that is lost with every single head (layer-head) against "
        "the head's score, and the rank correlation ρ of the two. Ranges are one standard error.",
        chart_data(values, labels, **words),
        "points",
        x="score",
        y="lost",
        low="low",
        high="high",
        panel="order",
    )


def scores(result: xr.Dataset) -> Chart:
    """Score of every head by theory, samples and the trained network's weights."""
    kinds = ("theory", "sampled", "trained")
    names = [name for name in scored_orders(result) if kind_of_order(name) in kinds]
    shown = result.sel(order=names)
    dims = ("layer", "head", "order")
    score = shown["score"].transpose(*dims).values
    error = np.nan_to_num(shown["score_error"].transpose(*dims).values)
    return _bars(
        "Scores of heads",
        "Weight of U on the paths through a head, where the largest is 1. Whiskers are Monte-Carlo "
        "errors of samples.",
        score,
        names,
        error,
    )


def theory_grid(result: xr.Dataset) -> Chart:
    """What the theory's scores are worth at every temperature and width of the study."""
    test_set = str(result["test_set"].values[0])
    agreement, reference = reference_agreement(result)
    found = {
        f"with the accuracy lost, {test_set}": result["theory_correlation"].sel(test_set=test_set),
        f"with scores at {reference}": agreement,
    }
    labels = {
        "correlated": list(found),
        "temperature": [f"{value:g}" for value in result["temperature"].values],
        "width": [number(value) for value in result["width"].values],
    }
    matrices = [values.transpose("temperature", "width").values for values in found.values()]
    words = {"rank": "rank correlation ρ", "temperature": "temperature T", "width": "width N"}
    return Chart(
        "Theory's head scores over the grid",
        "Spearman's rank correlation of the theory's head scores at every width and temperature.",
        chart_data({"rank": np.stack(matrices)}, labels, **words),
        "heatmap",
        x="width",
        y="temperature",
        panel="correlated",
    )


def comparison_charts(
    study: xr.Dataset, comparison: xr.Dataset, shown: Shown
) -> dict[str, Callable[[], Chart]]:
    """Functions that give the charts of a comparison; parameters as for its figures."""
    drawn = {"order_parameters": order_parameters, "entries": entries, "head_scores": head_scores}
    return {name: partial(chart, study, comparison, shown) for name, chart in drawn.items()}


def order_parameters(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Chart:
    """U of theory, samples and trained network, each in parts of its largest entry."""
    points = known_points(study, shown)
    trained = comparison["order_parameter_trained"].values
    sampled = [shown.at(comparison["order_parameter_sampled"], place).values for place, _ in points]
    sources = {"theory": [matrix for _, matrix in points], "sampled": sampled}
    sources |= {trained_words(comparison): [trained] * len(points)}
    found = {
        name: np.stack(
            [
                matrix / np.nanmax(np.abs(matrix)) if not np.isnan(matrix).all() else matrix
                for matrix in held
            ]
        )
        for name, held in sources.items()
        if not np.isnan(held).all()
    }
    some = _strongest(trained, points)
    paths = [str(path) for path in study["path"].values[some]]
    labels = {"source": list(found), "point": [shown.title(place) for place, _ in points]}
    matrices = np.stack(list(found.values()))[..., some[:, None], some]
    return Chart(
        "Order parameter U, theory and trained network",
        "U in parts of its largest entry, since the trained network's scale is set by its initial "
        f"weights: signs and patterns can be compared. For {shown.words}." + of_rows(some, trained),
        chart_data(
            {"U": matrices},
            labels | {"path": paths, "path_dual": paths},
            U="U / its largest |entry|",
            path_dual="path′",
        ),
        "heatmap",
        x="path_dual",
        y="path",
        panel="source",
        switches=("point",),
    )


def entries(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Chart:
    """Entries of U, theory against trained, in parts of the largest."""
    points = known_points(study, shown)
    trained = comparison["order_parameter_trained"].values
    trained = trained / np.abs(trained).max()
    theory = np.stack([matrix / np.abs(matrix).max() for _, matrix in points])
    some = _strongest(trained, points)
    rows, columns = (some[places] for places in np.triu_indices(len(some)))
    diagonal = np.stack([rows != columns, rows == columns])
    paths = [str(path) for path in study["path"].values]

    def of_kinds(values: np.ndarray) -> np.ndarray:
        return np.where(diagonal, values[:, None, rows, columns], np.nan)

    labels = {
        "point": [shown.title(place) for place, _ in points],
        "kind": ["off the diagonal", "on the diagonal"],
        "pair": [f"{paths[row]} with {paths[column]}" for row, column in zip(rows, columns)],
    }
    values = {"trained": of_kinds(np.stack([trained] * len(points))), "theory": of_kinds(theory)}
    words = {"trained": "U, trained", "theory": "U, theory", "pair": "paths"}
    return Chart(
        "Entries of U, theory against trained",
        f"Entries in parts of the largest. For {shown.words}.{of_rows(some, trained)}",
        chart_data(values, labels, **words),
        "points",
        x="theory",
        y="trained",
        series="kind",
        switches=("point",),
    )


def _strongest(trained: np.ndarray, points: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """Places of the paths that are shown: of largest U(π, π), trained or by theory."""
    diagonals = np.array([np.diag(matrix) for matrix in (trained, *(each for _, each in points))])
    return strongest(diagonals / diagonals.max(axis=1, keepdims=True), ROWS)


def head_scores(study: xr.Dataset, comparison: xr.Dataset, shown: Shown) -> Chart:
    """Score of every head in the theory, at some widths, and in the trained network."""
    network = Network(study_heads(study), widths=1)
    some = shown.few()
    found = {f"theory, {some.title(place)}": matrix for place, matrix in known_points(study, some)}
    found[trained_words(comparison)] = comparison["order_parameter_trained"].values
    values = np.full((len(network.heads), max(network.heads), len(found)), np.nan)
    for place, matrix in enumerate(found.values()):
        for layer, held in enumerate(scores_of(network, matrix)):
            values[layer, : len(held), place] = held
    about = f"Weight of U on the paths through a head, largest 1. For {shown.words}."
    return _bars("Scores of heads, theory and trained network", about, values, list(found))


def _bars(
    title: str, about: str, scores: np.ndarray, names: list[str], error: np.ndarray | None = None
) -> Chart:
    """Scores (layer, head, series) as bars, a panel for each layer."""
    labels = {
        "layer": [f"layer {layer + 1}" for layer in range(scores.shape[0])],
        "head": [str(head + 1) for head in range(scores.shape[1])],
        "series": names,
    }
    values = {"score": scores}
    if error is not None and error.any():
        values |= {"low": scores - error, "high": scores + error}
    ends = {"low": "low", "high": "high"} if "low" in values else {}
    return Chart(
        title,
        about,
        chart_data(values, labels, score="head score (largest 1)"),
        "bars",
        x="head",
        y="score",
        series="series",
        panel="layer",
        **ends,
    )
