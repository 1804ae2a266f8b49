"""A comparison of orders of removal: a page of tables and charts, and details on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_datasets.selection import number
from pathkernel_trained.correlation import COEFFICIENTS, rank_correlations
from pathkernel_trained.heads import Head, every_head, kept_heads, removable_heads, removal_order
from pathkernel_trained.orders import RANDOM, are_nested, removed_heads, scores_of
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.table import Table, frame_of, labelled_frame

if TYPE_CHECKING:
    import altair as alt

OF_THEORY = ("theory", "sampled", "silenced", "restricted", "re-equilibrated")
"""Kinds of orders that need no trained values."""

_OF_WEIGHTS = ("trained", "magnitude")  # that need the weights alone
_CHARTED = ("theory", "raw-gradient", "greedy", "best-of")  # the first order of each kind
_CHARTED_SCORES = ("theory", "silenced", "trained", "raw-gradient", "ablation", "shapley")
_WITH_ERRORS = 24  # heads that have error bars
_BEST = "best set of all"
RANDOM_SERIES = "random, 95 %"
"""Name of the random orders in charts."""


def pruning_views(result: xr.Dataset) -> Iterator[Table | Chart | str]:
    """Everything about a comparison of orders, first the page that is shown by default.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`; so for the other functions.
    """
    first, *others = test_sets(result)
    yield from warnings_of(result)
    yield accuracy_table(result, first)
    yield from accuracy_charts(result)
    yield from advice(result)
    yield order_table(result)
    yield single_head_table(result, first)
    yield from head_charts(result, first)
    yield score_chart(result)
    yield grid_chart(result)
    for name in others:
        yield accuracy_table(result, name, detail=True)
        yield single_head_table(result, name, detail=True)
    yield from difference_tables(result)
    yield from score_tables(result)
    for coefficient in COEFFICIENTS:
        yield correlation_table(result, coefficient)
    yield grid_table(result)


def test_sets(result: xr.Dataset) -> list[str]:
    """Names of the test sets."""
    return [str(name) for name in result["test_set"].values]


def orders_of(result: xr.Dataset) -> list[str]:
    """Labels of all orders but the random ones."""
    return [str(name) for name in result["order"].values if name != RANDOM]


def kind_of_order(name: str) -> str:
    """Kind of an order, such as ``theory`` of ``theory N=10``."""
    return name.partition(" ")[0]


def scored_orders(result: xr.Dataset) -> list[str]:
    """Labels of the orders that go by a score of single heads."""
    has_scores = result["score"].notnull().any(("layer", "head"))
    return [name for name in orders_of(result) if has_scores.sel(order=name)]


def first_of_kinds(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """The first order of each of the kinds, of those that there are."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(kind_of_order(name), name)
    return [first[kind] for kind in kinds if kind in first]


def warnings_of(result: xr.Dataset) -> Iterator[str]:
    """A warning for every test set on which no order can be told from another."""
    whole = result[["accuracy", "accuracy_error"]].isel(order=0, removed=0)
    for name in test_sets(result):
        accuracy, error = (float(values) for values in whole.sel(test_set=name).values())
        if accuracy < 0.5 + 3 * error:
            yield (
                f"Warning: on {name} the whole network is no better than chance ({accuracy:.1%} ± "
                f"{error:.1%}), so that no order can be told from another."
            )


def advice(result: xr.Dataset) -> Iterator[str]:
    """Orders that lost least in the mean, of those that need equally much; rank correlations."""
    lost = 100 * (
        result["accuracy"].isel(removed=0) - result["accuracy"].isel(removed=slice(1, None))
    )
    mean, names = lost.mean("removed"), orders_of(result)
    first, *others = test_sets(result)
    least = []
    for kinds, needed in (
        (OF_THEORY, "without trained values"),
        (_OF_WEIGHTS, "with the weights alone"),
        (None, "with the network and labelled examples"),
    ):
        kinds = kinds or {kind_of_order(name) for name in names} - {*OF_THEORY, *_OF_WEIGHTS}
        of_kinds = [name for name in names if kind_of_order(name) in kinds]
        least.append(f"{_least(mean.sel(test_set=first, order=of_kinds))} {needed}")
    of_random = float(mean.sel(test_set=first, order=RANDOM))
    yield (
        f"Points of accuracy lost on {first}, mean over 1 to {lost.sizes['removed']} heads "
        f"removed: least by {', by '.join(least)}; {of_random:.1f} by a random order."
    )
    if others:
        listed = (f"{name}: {_least(mean.sel(test_set=name, order=names))}" for name in others)
        yield f"Least in the mean on the other test sets: {'; '.join(listed)}."
    ranks = result["rank_correlation"].sel(test_set=first, coefficient="spearman")
    ranks = ranks.sel(order=scored_orders(result)).to_series().sort_values(ascending=False)
    yield (
        f"Rank correlation ρ (Spearman) of scores with the accuracy lost on {first} with single "
        f"heads: {', '.join(f'{name} {rank:.2f}' for name, rank in ranks.items())}."
    )


def _least(lost: xr.DataArray) -> str:
    """Orders that lose least, of those along the only dimension, and how much they lose."""
    names = lost["order"].values[np.isclose(lost, lost.min(), atol=1e-9)]
    return f"{' = '.join(map(str, names))} ({lost.values.min():.1f})"


def removal_lines(result: xr.Dataset, name: str, remove: int) -> Iterator[str]:
    """Heads that the order of that name removes first, what that costs and what it saves."""
    removed = removed_heads(result, name, remove)
    left = kept_heads(result.attrs["heads_per_layer"], removed)
    yield (
        f"Removed by {name}: {', '.join(map(_head, removed))}; heads left in each layer: "
        f"{', '.join(str(len(layer)) for layer in left)}"
    )
    whole, pruned = (result.sel(order=name, removed=count) for count in (0, remove))
    losses = zip(
        test_sets(result),
        100 * (whole["accuracy"] - pruned["accuracy"]).values,
        100 * pruned["accuracy_drop_error"].values,
    )
    lost = ", ".join(f"{loss:.1f} ± {error:.1f} on {name}" for name, loss, error in losses)
    yield f"Points of accuracy lost: {lost}"
    for quantity, variable in (("Parameters", "parameters"), ("Operations per example", "flops")):
        old, new = (int(part[variable]) for part in (whole, pruned))
        yield f"{quantity}: {old:,} before, {new:,} now ({1 - new / old:.1%} less)"


def _accuracies(result: xr.Dataset) -> pd.DataFrame:
    """Accuracies of every order, with those of random orders and of the best sets."""
    names = ["accuracy", "accuracy_error", "random_deviation", "random_interval", "best_accuracy"]
    return frame_of(with_bounds(result[names]))


def accuracy_table(result: xr.Dataset, test_set: str, *, detail: bool = False) -> Table:
    """Accuracy on a test set against the number of heads removed, for every order."""
    frame = _accuracies(result.sel(test_set=[test_set]))
    removed = frame[(frame["order"] == RANDOM) & (frame["removed"] > 0)]
    ranges = ", ".join(
        f"{100 * low:.1f} to {100 * high:.1f}"
        for low, high in zip(removed["random_lower"], removed["random_upper"])
    )
    caption = (
        f"On {result.sizes['episode']} examples; standard errors are at most "
        f"{100 * frame['accuracy_error'].max():.1f}.\n"
        f"random: mean of {result.attrs['random_orders']} orders; 95 % of them: {ranges}."
    )
    if removed["best_accuracy"].notna().any():
        best = ", ".join(f"{100 * value:.1f}" for value in removed["best_accuracy"])
        caption += f"\nBest of all sets of so many heads, chosen on the same examples: {best}."
    return Table(
        "accuracy",
        f"Accuracy (%) on {test_set} as heads are removed",
        frame,
        {"heads removed:\norder": "{order}"},
        caption,
        across=("removed", "{accuracy:.1p}"),
        detail=detail,
    )


def order_table(result: xr.Dataset) -> Table:
    """The head that goes at every removal, and those that stay."""
    heads, removals = every_head(result.attrs["heads_per_layer"]), range(1, result.sizes["removed"])
    rows, sets = [], []
    for name in orders_of(result):
        if not are_nested(result, name):
            steps = (sorted(removed_heads(result, name, count)) for count in removals)
            sets.append(f"{name}: {'; '.join(' '.join(map(_head, step)) for step in steps)}.")
            continue
        removed, skipped = removed_heads(result, name), ()
        if name in scored_orders(result):
            skipped = removal_order(scores_of(result, name)).skipped
        stay = (_head(head) + "*" * (head in skipped) for head in heads if head not in removed)
        steps = {f"removed_{count}": _head(head) for count, head in zip(removals, removed)}
        rows.append({"order": name, **steps, "stay": ", ".join(stay)})
    labels = {f"removed_{count}": f"head removed as number {count}" for count in removals}
    caption = (
        "Heads as layer-head, those of equal scores by layer and number. * passed over although "
        "heads of larger scores go: the last one of its layer."
    )
    return Table(
        "orders",
        "Orders of removal",
        labelled_frame(pd.DataFrame(rows), labels | {"stay": "heads that stay"}),
        {"removed as number:\norder": "{order}"}
        | {str(count): f"{{removed_{count}}}" for count in removals}
        | {"stay": "{stay}"},
        "\n".join([caption, *sets]),
    )


def single_head_table(result: xr.Dataset, test_set: str, *, detail: bool = False) -> Table:
    """Accuracy that is lost when a single head is removed, by the network and in the theory."""
    part = result.sel(test_set=[test_set])
    names = [f"{of}_drop{error}" for of in ("ablation", "theory") for error in ("", "_error")]
    frame = frame_of(part[[*names, "theory_error_rise", "theory_drop_temperature"]])
    of_network = 100 * part["accuracy"].isel(order=0, removed=0).item()
    of_theory = 100 * part["theory_accuracy"].item()
    frame = frame.dropna(subset=["ablation_drop"])
    agreement = ", ".join(
        f"{way} {rank_correlations(rows['ablation_drop'], rows['theory_drop'])[0]:.2f}"
        for way, rows in frame.groupby("prediction", sort=False)
    )
    return Table(
        "single_heads",
        f"Accuracy lost on {test_set} without a single head (points)",
        frame,
        {
            "head": "{layer}-{head}",
            f"network,\nof {of_network:.1f} %": "{ablation_drop:.1p} ± {ablation_drop_error:.1p}",
            "theory,\n{prediction}": "",
            "T, re-\nequilibrated": "{theory_drop_temperature}",
        },
        f"± standard errors. The theory, at {_reference(result)}, has {of_theory:.1f} % of the "
        "study's test examples right with all heads. silenced: U without the head's rows and "
        "columns, fitted again; restricted: the mean predictor without them; re-equilibrated: the "
        "action minimised again.\nSpearman's ρ of the theory's losses with the network's: "
        f"{agreement}.",
        across=("theory,\n{prediction}", "{theory_drop:.1p} ± {theory_drop_error:.1p}"),
        detail=detail,
    )


def difference_tables(result: xr.Dataset) -> Iterator[Table]:
    """Accuracy of every order less the first's, and less the random ones', with intervals."""
    first, *others = [str(name) for name in result["order"].values]
    data = with_bounds(result[["accuracy_difference", "accuracy_difference_interval"]])
    for reference, name in zip(result["reference"].values, (first, "random orders")):
        yield Table(
            "differences",
            f"Accuracy less that of {name} as heads are removed (points)",
            frame_of(data.sel(order=others, reference=[reference]).isel(removed=slice(1, None))),
            {"heads removed:\norder": "{order}", "test set": "{test_set}"},
            "Central 95 % of the difference's bootstrap resamples, the same examples for both. "
            "Above 0 an order is better.",
            across=(
                "removed",
                "{accuracy_difference_lower:+.1p}..{accuracy_difference_upper:+.1p}",
            ),
            lines="order",
            detail=True,
        )


def score_tables(result: xr.Dataset) -> Iterator[Table]:
    """Scores of the heads of every layer by every order that goes by some."""
    frame = frame_of(result[["score"]].sel(order=scored_orders(result))).dropna(subset=["score"])
    for layer, rows in frame.groupby("layer"):
        yield Table(
            "scores",
            f"Scores of the trained network's heads of layer {layer}",
            rows,
            {"head (layer-head):\nscore": "{order}"},
            "Low scores are removed first.",
            across=("{layer}-{head}", "{score:.3g}"),
            detail=True,
        )


def correlation_table(result: xr.Dataset, coefficient: str) -> Table:
    """Rank correlations of every score with the accuracy lost with single heads, with intervals."""
    orders, symbol = scored_orders(result), {"spearman": "ρ", "kendall": "τ"}[coefficient]
    names = ["rank_correlation", "correlation_difference"]
    data = result[[part for name in names for part in (name, f"{name}_interval")]]
    return Table(
        "correlations",
        f"Rank correlation {symbol} ({coefficient.capitalize()}) of scores with the accuracy lost "
        "with single heads",
        frame_of(with_bounds(data.sel(order=orders, coefficient=coefficient))),
        {
            "order": "{order}",
            "test set": "{test_set}",
            f"{symbol}\nΔ{symbol}": "{rank_correlation:.2f}\n{correlation_difference:.2f}",
        },
        f"Over {len(removable_heads(result.attrs['heads_per_layer']))} heads. Δ{symbol}: that of "
        f"{orders[0]} less this one. Brackets: central 95 % of {result.attrs['resamples']} "
        "bootstrap resamples of examples (episodes) or of heads, the same for all orders.",
        across=(
            "95 %, resampled\n{resampled}",
            "\n".join(f"[{{{name}_lower:.2f}}, {{{name}_upper:.2f}}]" for name in names),
        ),
        lines="order",
        detail=True,
    )


def grid_table(result: xr.Dataset) -> Table:
    """Rank correlation of the theory's scores over the grid with those of the first order."""
    return Table(
        "grid",
        "How far the theory's order depends on width and temperature",
        frame_of(_grid_agreement(result)),
        {"N": "{width}"},
        f"Spearman's ρ of its scores with those at {_reference(result)}.",
        across=("T = {temperature}", "{theory_agreement:.2f}"),
        detail=True,
    )


def accuracy_charts(result: xr.Dataset) -> Iterator[Chart]:
    """Accuracy as heads are removed: by the orders that tell most, and by all in two details."""
    names = orders_of(result)
    main = first_of_kinds(names, _CHARTED)
    of_theory = [name for name in names if kind_of_order(name) in OF_THEORY]
    of_network = [name for name in names if name not in of_theory]
    for name, title, orders in (
        ("accuracy", "", main),
        ("accuracy_theory", ", by the theory's orders", of_theory),
        ("accuracy_network", ", by orders of the network itself", of_network),
    ):
        yield Chart(
            name,
            f"Accuracy as heads are removed{title}",
            f"Accuracy of the trained network on {result.sizes['episode']} examples of each test "
            "set as heads are removed, lowest scores first, without training again; chance is 50 "
            f"%. The band holds 95 % of {result.attrs['random_orders']} random orders. {_BEST}: "
            "of all sets of so many heads the best, chosen on the same examples."
            + _left_out(names, main, "accuracy_theory and accuracy_network")
            * (orders == main),
            partial(_accuracy, result, orders),
            detail=name != "accuracy",
        )


def _accuracy(result: xr.Dataset, orders: Sequence[str]) -> alt.TopLevelMixin:
    percent = 100 * _accuracies(result).set_index(["order", "removed", "test_set"])
    random = percent.loc[[RANDOM]].rename(
        columns={"random_lower": "lower", "random_upper": "upper"}, index={RANDOM: RANDOM_SERIES}
    )
    best = percent.loc[[RANDOM], ["best_accuracy"]].set_axis(["accuracy"], axis=1)
    best = best.rename(index={RANDOM: _BEST})
    curves = pd.concat([percent.loc[list(orders), ["accuracy"]], random, best]).reset_index()
    return removal_curves(curves, "accuracy", "test_set", "accuracy (%)")


def removal_curves(frame: pd.DataFrame, y: str, panel: str, title: str) -> alt.TopLevelMixin:
    """A quantity in every ``order`` as more heads are ``removed``, with a band at random."""
    from pathkernel_views.primitives import lines

    return lines(
        frame[["order", "removed", panel, y, "lower", "upper"]],
        "removed",
        y,
        low="lower",
        high="upper",
        series="order",
        panel=panel,
        titles={"removed": "heads removed", y: title},
        same_y=panel == "test_set",
    )


def head_charts(result: xr.Dataset, test_set: str) -> Iterator[Chart]:
    """Accuracy that is lost with every single head against its score; some orders as a detail."""
    names = scored_orders(result)
    main = first_of_kinds(names, _CHARTED_SCORES)
    others = [name for name in names if name not in main]
    for name, orders in (("heads", main), ("heads_others", others)):
        if orders:
            yield Chart(
                name,
                f"Accuracy lost on {test_set} without single heads",
                "Points of accuracy that are lost without a single head (layer-head) against the "
                "head's score, and their rank correlation ρ (Spearman). Bars are one standard "
                "error." + _left_out(names, main, "heads_others") * (orders == main),
                partial(_single_heads, result, test_set, orders),
                detail=name != "heads",
            )


def _single_heads(result: xr.Dataset, test_set: str, orders: Sequence[str]) -> alt.TopLevelMixin:
    part = result.sel(test_set=test_set, order=list(orders), coefficient="spearman")
    frame = frame_of(part[["score", "ablation_drop", "ablation_drop_error", "rank_correlation"]])
    rank = frame["rank_correlation"].map("{:.2f}".format).str.replace("-", "−")
    frame["order"] += ", ρ = " + rank
    frame[["lost", "error"]] = 100 * frame[["ablation_drop", "ablation_drop_error"]]
    return losses_of_heads(frame, "lost", "error", "accuracy lost (points)")


def losses_of_heads(frame: pd.DataFrame, y: str, error: str, title: str) -> alt.TopLevelMixin:
    """Loss ``y`` without a single head against its ``score``, a panel for every ``order``."""
    from pathkernel_views.primitives import points

    frame = frame.dropna(subset=[y]).assign(
        name=frame["layer"].astype(str) + "-" + frame["head"].astype(str),
        lower=frame[y] - frame[error],
        upper=frame[y] + frame[error],
    )
    ends = {"low": "lower", "high": "upper"} if frame["name"].nunique() <= _WITH_ERRORS else {}
    return points(
        frame[["order", "layer", "name", "score", y, "lower", "upper"]],
        "score",
        y,
        **ends,
        series="layer" if frame["layer"].nunique() > 1 else "",
        panel="order",
        name="name",
        titles={"score": "score", y: title},
        reference="zero" if frame["lower"].min() < 0 < frame["upper"].max() else "",
        same_x=False,
        columns=2,
    )


def score_chart(result: xr.Dataset) -> Chart:
    """Score of every head by theory, samples and the trained network's U."""
    return Chart(
        "scores",
        "Scores of heads by U",
        "Weight of U on the paths through a head, where the largest is 1: of the theory, of "
        "samples with their Monte-Carlo errors, and of the trained weights.",
        partial(_scores, result),
    )


def _scores(result: xr.Dataset) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import bars

    kinds = ("theory", "sampled", "trained")
    names = [name for name in scored_orders(result) if kind_of_order(name) in kinds]
    frame = frame_of(result[["score", "score_error"]].sel(order=names)).dropna(subset=["score"])
    temperature = frame["order_temperature"].map(", T={:g}".format).replace(", T=nan", "")
    error = frame["score_error"].fillna(0.0)
    frame = frame.assign(
        order=frame["order"] + temperature,
        layer="layer " + frame["layer"].astype(str),
        low=frame["score"] - error,
        high=frame["score"] + error,
    )
    ends = {"low": "low", "high": "high"} if error.any() else {}
    titles = {"score": "head score (largest 1)", "head": "head"}
    return bars(frame, "head", "score", series="order", panel="layer", titles=titles, **ends)


def grid_chart(result: xr.Dataset) -> Chart:
    """Rank correlation of the theory's scores at every temperature T and width N of the study."""
    return Chart(
        "theory_grid",
        "Rank correlation ρ of the theory's scores of heads with",
        "Spearman's rank correlation ρ of the theory's scores at every width and temperature: with "
        f"the accuracy lost on {test_sets(result)[0]} with single heads, and with the scores at "
        f"{_reference(result)}, by which heads are removed.",
        partial(_grid, result),
    )


def _grid(result: xr.Dataset) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import heatmaps

    if result.sizes["width"] * result.sizes["temperature"] < 2:
        raise NothingToPlot("the study has a single point")
    panels = {
        "accuracy lost": result["theory_correlation"].isel(test_set=0, drop=True),
        f"scores at {_reference(result)}": _grid_agreement(result),
    }
    frames = [frame_of(values.rename("ρ")).assign(panel=title) for title, values in panels.items()]
    frame = pd.concat(frames)
    frame["width"] = frame["width"].map(number)
    frame["temperature"] = frame["temperature"].map("{:g}".format)
    titles = {"width": "width N", "temperature": "temperature T"}
    return heatmaps(
        frame, "width", "temperature", "ρ", panel="panel", domain=(-1, 1), titles=titles
    )


def with_bounds(data: xr.Dataset) -> xr.Dataset:
    """The variables, with the lower and the upper end in place of every interval."""
    variables = {}
    for name, values in data.data_vars.items():
        ends = values["bound"].values if "bound" in values.dims else []
        for end in ends:
            variables[name.replace("interval", str(end))] = values.sel(bound=end, drop=True)
        if not len(ends):
            variables[name] = values
    return xr.Dataset(variables)


def _left_out(names: Sequence[str], shown: Sequence[str], charts: str) -> str:
    others = [name for name in names if name not in shown]
    return f" Not shown: {', '.join(others)}; see {charts}." if others else ""


def _reference(result: xr.Dataset) -> str:
    """Point of the theory by which the first order goes."""
    first = result.isel(order=0)
    return f"N = {number(float(first['order_width']))}, T = {float(first['order_temperature']):g}"


def _grid_agreement(result: xr.Dataset) -> xr.DataArray:
    """Rank correlations (temperature, width) of scores with those at the reference point."""
    first = result.isel(order=0)
    return result["theory_agreement"].sel(
        width_dual=float(first["order_width"]), temperature_dual=float(first["order_temperature"])
    )


def _head(head: Head) -> str:
    return "{}-{}".format(*head)
