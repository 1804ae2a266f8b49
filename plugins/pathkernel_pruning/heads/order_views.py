"""Tables and charts of a comparison of orders, of a trained network or of a live model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.paths.heads import every_head, head_label
from pathkernel_pruning.heads.measuring import refitted_order
from pathkernel_pruning.heads.orders import RANDOM, orders_of, removed_sets
from pathkernel_pruning.heads.score_table import describe_orders, score_name
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table, frame_of, labelled_frame

if TYPE_CHECKING:
    import altair as alt

_CHARTED = ("theory", "raw-gradient", "greedy", "best-of")  # kinds of orders in the first chart
_CHARTED_SCORES = ("theory", "silenced", "trained", "raw-gradient", "ablation", "shapley")
_NEEDS = {
    "": "by a score given",
    "theory": "without trained values",
    "weights": "with the weights alone",
    "examples": "with the network and labelled examples",
}
_COLUMNS = 5  # scores in a table
_COUNTS = 5  # numbers of heads off in the summary, which fits 80 columns
_WITH_ERRORS = 24  # largest number of heads that have error bars
_BEST, _RANDOM_SERIES = "best set of all", "random, 95 %"


def order_views(
    result: xr.Dataset, orders: Sequence[str] | None = None
) -> Iterator[Table | Chart | str]:
    """Views of the values as heads are removed, of orders, single heads and correlations.

    The first table sums up all orders; the others are in detail.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_pruning.heads.orders.compare_orders`.
    orders : sequence of str, optional
        Orders that the first charts show. Tables hold all.
    """
    mean, names = result.mean("draw", keep_attrs=True), orders_of(result)
    scored = [name for name in names if mean["score"].sel(order=name).notnull().any()]
    yield from _warnings(mean)
    for number, name in enumerate(result["test_set"].values):
        part, is_first = mean.sel(test_set=name), number == 0
        if is_first:
            yield _summary(part)
            yield _advice(part)
            main = orders or _select_charted(names, _CHARTED, 4)
            yield _removal_chart(mean, "removed", main)
            for quantity, test_set in itertools.product(
                mean["quantity"].values, mean["test_set"].values
            ):
                one = mean.sel(quantity=[quantity], test_set=[test_set])
                suffix = [str(quantity)] * (mean.sizes["quantity"] > 1)
                suffix += [str(test_set)] * (mean.sizes["test_set"] > 1)
                yield _removal_chart(one, "_".join(["removed_all", *suffix]), names)
        for quantity in result["quantity"].values:
            yield _removal_table(part.sel(quantity=quantity))
        if is_first and result.sizes["draw"] == 1:
            yield _order_table(result)
        for start in range(0, len(scored), _COLUMNS):
            yield _head_table(part, scored, start)
        if is_first:
            main = [
                order
                for order in orders or _select_charted(scored, _CHARTED_SCORES, 6)
                if order in scored
            ]
            yield _head_chart(part, "single_heads", main)
            yield _head_chart(part, "single_heads_all", scored, ", all orders")
        yield from _correlation_tables(result.sel(test_set=[name], order=scored))
    for quantity in result["quantity"].values:
        yield from _difference_tables(mean.sel(quantity=quantity))


def _select_charted(names: Sequence[str], kinds: Sequence[str], count: int) -> list[str]:
    """The first order, the first of each kind, and further ones up to a number of orders."""
    of_kinds = (next((name for name in names if score_name(name) == kind), "") for kind in kinds)
    return list(dict.fromkeys([names[0], *filter(None, of_kinds), *names]))[:count]


def _setting(part: xr.Dataset) -> str:
    return f"{part['examples'].item()} examples of {part['test_set'].item()}"


def _warnings(mean: xr.Dataset) -> Iterator[str]:
    """A warning that names the test sets on which orders cannot be told apart."""
    unpruned = mean[["measured", "measured_error"]].isel(order=0, removed=0, quantity=0)
    poor = []
    for name in mean["test_set"].values if "chance" in mean.attrs else ():
        accuracy, error = (float(values) for values in unpruned.sel(test_set=name).values())
        if accuracy < mean.attrs["chance"] + 3 * error:
            poor.append(f"{name} ({accuracy:.1%} ± {error:.1%})")
    if poor:
        yield (
            f"Warning: the whole network is no better than chance on {', '.join(poor)}, so that no "
            "order can be told from another there."
        )


def _loss_title(part: xr.Dataset) -> str:
    """Name of what the first quantity loses: "accuracy lost", or "rise of the loss"."""
    quantity = part["quantity"].values.ravel()[0]
    is_gain = int(part["better"].values.ravel()[0]) > 0
    return f"{quantity} lost" if is_gain else f"rise of the {quantity}"


def _average_lost(part: xr.Dataset) -> xr.DataArray:
    """Loss in the first quantity, averaged over the numbers of heads that are off, (order,)."""
    part = part.isel(quantity=0)
    change = part["measured"].isel(removed=0) - part["measured"].isel(removed=slice(1, None))
    return int(part["better"]) * change.mean("removed")


def _summary(part: xr.Dataset) -> Table:
    """The first quantity in every order, for some numbers of heads off, on one screen."""
    names, average, first = orders_of(part), _average_lost(part), part.isel(quantity=0)
    refits = {name: refitted_order(name) for name in names if refitted_order(name) in names}
    shown = [name for name in names if name not in refits.values()]
    counts = part["removed"].values[1:]
    evenly = np.linspace(0, len(counts) - 1, min(len(counts), _COUNTS)).round().astype(int)
    counts = counts[np.unique(evenly)]
    data = first[["measured", "rank_correlation"]].sel(order=[*shown, RANDOM], removed=counts)
    data["average"] = average.sel(order=data["order"])
    if refits:
        of_refits = [refits.get(str(name), str(name)) for name in data["order"].values]
        refitted = average.sel(order=of_refits).values
        data["refitted"] = ("order", np.where(data["order"] == RANDOM, np.nan, refitted))
    frames = [frame_of(data)]
    if "best_measured" in first:
        best = frame_of(first["best_measured"].sel(removed=counts).rename("measured"))
        frames.append(best.assign(order=_BEST).dropna(subset=["measured"]))
    frame = pd.concat(frames)
    frame["is_order"] = frame["order"].isin(shown)
    rise = "lost" if int(first["better"]) > 0 else "rise"
    labels = {
        "average": f"{_loss_title(part)}, averaged over the numbers of heads off",
        "refitted": "the same with refitted gains",
    }
    cells = {"heads off:\norder": "{order}", "removed": "", f"average\n{rise}": "{average:.3f}"}
    cells |= {"average,\nrefitted": "{refitted:.3f}"} if refits else {}
    all_counts = part.sizes["removed"] - 1
    shown_counts = f" {len(counts)} of {all_counts} numbers of heads off are shown."
    shown_counts *= len(counts) < all_counts
    quantity, whole = first["quantity"].item(), first["measured"].isel(order=0, removed=0).item()
    gains = "; refitted: the same with gains fitted to validation examples" * bool(refits)
    return Table(
        "summary",
        _capitalise(f"{quantity} on {part['test_set'].item()} in every order of removal"),
        labelled_frame(frame, labels),
        cells | {"ρ": "{rank_correlation:+.2f}"},
        f"On {_setting(part)}, heads of lowest score off first; {whole:.3f} with all heads, "
        f"standard errors at most {float(first['measured_error'].max()):.3f}. average {rise}: "
        f"{_loss_title(part)}, averaged over all numbers of heads off{gains}. ρ: rank correlation "
        f"of scores with the {_loss_title(part)} with one head off. random: mean of "
        f"{part.sizes['random_order']} orders."
        + f" {_BEST}: chosen on the same examples." * _has_best(part)
        + shown_counts,
        across=("removed", "{measured:.3f}"),
        lines="is_order",
    )


def _removal_table(part: xr.Dataset) -> Table:
    """Values of one quantity on one test set in every order."""
    ends = part["random_measured"].quantile([0.025, 0.975], "random_order")
    ends = ends.rename(quantile="order").assign_coords(order=["random, 2.5 %", "random, 97.5 %"])
    of_orders = frame_of(part[["measured", "random_as_good"]])
    frames = [of_orders, frame_of(ends.rename("measured"))]
    if "best_measured" in part:
        best = frame_of(part["best_measured"].rename("measured")).assign(order=_BEST)
        frames.append(best.dropna(subset=["measured"]))
    frame = pd.concat(frames)
    frame["is_random"] = ~frame["order"].isin(orders_of(part))
    frame.attrs = of_orders.attrs
    return Table(
        "removed",
        _capitalise(f"{part['quantity'].item()} on {part['test_set'].item()} as heads are removed"),
        frame,
        {"heads removed:\norder": "{order}"},
        f"On {_setting(part)}; heads of lowest score go first, standard errors are at most "
        f"{float(part['measured_error'].max()):.3f}. random: mean of {part.sizes['random_order']} "
        "orders, and ends of their central 95 %; in brackets the share of them that are at least "
        "as good." + f" The {_BEST} is chosen on the same examples." * _has_best(part),
        across=("removed", "{measured:.3f} ({random_as_good:.0%})"),
        lines="is_random",
        detail=True,
    )


def _has_best(part: xr.Dataset) -> bool:
    """Whether the best set of all is known for some number of heads."""
    return "best_measured" in part and bool(part["best_measured"].notnull().any())


def _removal_chart(mean: xr.Dataset, name: str, orders: Sequence[str]) -> Chart:
    """Values as heads are removed in some orders, with a band of random ones."""
    return Chart(
        name,
        _capitalise(f"{' and '.join(map(str, mean['quantity'].values))} as heads are removed")
        + f", {mean['test_set'].values[0]}" * (name.startswith("removed_all_")),
        "Mean over the test examples as heads are removed, those of lowest score first. The band "
        f"holds 95 % of {mean.sizes['random_order']} random orders, its line is their mean. "
        + f"The {_BEST} is chosen on the same examples. " * _has_best(mean)
        + f"{len(orders)} of {len(orders_of(mean))} orders."
        + describe_orders(mean, orders) * (name == "removed"),
        partial(_draw_removal, mean, orders),
        detail=name != "removed",
    )


def _draw_removal(mean: xr.Dataset, orders: Sequence[str]) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import lines

    ends = mean["random_measured"].quantile([0.025, 0.975], "random_order")
    random = {"lower": ends.isel(quantile=0, drop=True), "upper": ends.isel(quantile=1, drop=True)}
    random["measured"] = mean["measured"].sel(order=RANDOM, drop=True)
    frames = [
        frame_of(mean["measured"].sel(order=list(orders))),
        frame_of(xr.Dataset(random)).assign(order=_RANDOM_SERIES),
    ]
    if "best_measured" in mean:
        best = frame_of(mean["best_measured"].rename("measured")).assign(order=_BEST)
        frames.append(best.dropna(subset=["measured"]))
    frame = pd.concat(frames)
    measured = str(mean["quantity"].values[0])
    if mean.sizes["quantity"] > 1:
        measured = "mean over the test examples"
    several = [name for name in ("quantity", "test_set") if mean.sizes[name] > 1]
    frame["panel"] = frame[several or ["quantity"]].agg(", ".join, axis=1)
    return lines(
        frame[["order", "removed", "panel", "measured", "lower", "upper"]],
        "removed",
        "measured",
        low="lower",
        high="upper",
        series="order",
        panel="panel",
        titles={"removed": "heads removed", "measured": measured},
        same_y="quantity" not in several,
    )


def _advice(part: xr.Dataset) -> str:
    """A sentence on the orders of the smallest average loss, by the needs of their scores."""
    lost, best = _average_lost(part), []
    for need, group in lost.sel(order=orders_of(part)).groupby("needs"):
        names = group["order"].values[np.isclose(group, group.min(), atol=1e-9)]
        best.append(f"{' = '.join(map(str, names))} ({float(group.min()):.3f}) {_NEEDS[str(need)]}")
    return (
        f"Smallest average {_loss_title(part)} on {part['test_set'].item()}: {', '.join(best)}; "
        f"{float(lost.sel(order=RANDOM)):.3f} at random."
    )


def _order_table(result: xr.Dataset) -> Table:
    """Heads in the order of their removal, and those that are kept."""
    rows = []
    for name in orders_of(result):
        steps = removed_sets(result, name)[1:]
        nested = all({*smaller} <= {*larger} for smaller, larger in itertools.pairwise(steps))
        sets = [" ".join(map(head_label, step)) for step in (steps[-1:] if nested else steps)]
        kept = {*every_head(result.attrs["heads_per_layer"])} - {*steps[-1]}
        kept = " ".join(map(head_label, sorted(kept)))
        rows.append({"order": name, "removed": "; ".join(sets), "kept": kept})
    return Table(
        "orders",
        "Orders of removal",
        pd.DataFrame(rows),
        {"order": "{order}", "heads removed": "{removed}", "heads kept": "{kept}"},
        "Heads as layer-head, those of equal scores by layer and number. Semicolons divide sets "
        "that do not contain one another." + describe_orders(result, orders_of(result)),
        detail=True,
    )


def _heads(part: xr.Dataset, orders: Sequence[str]) -> pd.DataFrame:
    """Losses with each head off that can be removed alone, and their scores."""
    names = ["lost", "lost_error", "score", "rank_correlation"]
    return frame_of(part[names].sel(order=list(orders))).dropna(subset=["lost"])


def _head_table(part: xr.Dataset, scored: Sequence[str], start: int) -> Table:
    """Losses with one head off on a test set, and the scores that a table has room for."""
    lost, orders = _loss_title(part), scored[start : start + _COLUMNS]
    which = f" {start + 1} to {start + len(orders)} of {len(scored)}" * (len(scored) > _COLUMNS)
    return Table(
        "single_heads",
        _capitalise(f"{lost} on {part['test_set'].item()} with one head off, and scores{which}"),
        _heads(part, orders),
        {"head": "{head}", lost: "{lost:.4f} ± {lost_error:.4f}"},
        f"Heads as layer-head. ±: standard error over {_setting(part)}.",
        across=("order", "{score:.3g}"),
        detail=True,
    )


def _head_chart(part: xr.Dataset, name: str, orders: Sequence[str], which: str = "") -> Chart:
    """Rise of the loss with one head off, for every head, against its score."""
    return Chart(
        name,
        _capitalise(f"{_loss_title(part)} with one head off, against scores{which}"),
        f"{_capitalise(_loss_title(part))} with one head (layer-head) off, mean over "
        f"{_setting(part)}, against its score, a panel for each order, with their rank "
        "correlation ρ (Spearman)."
        + " Bars are one standard error." * (part.sizes["head"] <= _WITH_ERRORS)
        + describe_orders(part, orders) * (name == "single_heads"),
        partial(_draw_heads, part, orders),
        detail=name != "single_heads",
    )


def _draw_heads(part: xr.Dataset, orders: Sequence[str]) -> alt.TopLevelMixin:
    from pathkernel_views.primitives import points

    frame = _heads(part, orders)
    rank = frame["rank_correlation"].map("{:.2f}".format).str.replace("-", "−")
    frame = frame.assign(
        order=frame["order"] + ", ρ = " + rank,
        lower=frame["lost"] - frame["lost_error"],
        upper=frame["lost"] + frame["lost_error"],
    )
    ends = {"low": "lower", "high": "upper"} if frame["head"].nunique() <= _WITH_ERRORS else {}
    return points(
        frame[["order", "layer", "head", "score", "lost", "lower", "upper"]],
        "score",
        "lost",
        **ends,
        series="layer" if frame["layer"].nunique() > 1 else "",
        panel="order",
        name="head",
        titles={"score": "score", "lost": _loss_title(part)},
        reference="zero" if frame["lower"].min() < 0 < frame["upper"].max() else "",
        same_x=False,
        columns=2,
    )


def _correlation_tables(result: xr.Dataset) -> Iterator[Table]:
    """Rank correlations of scores with losses, less the first order's, and by layer."""
    heads = int(result["lost"].isel(draw=0).notnull().sum())
    correlation = result["rank_correlation"]
    data = result.mean("draw", keep_attrs=True).assign(
        lowest=correlation.min("draw"), highest=correlation.max("draw")
    )
    title = f"Rank correlation ρ of scores with the {_loss_title(result)} with one head off"
    title += f" on {result['test_set'].item()}"
    chance = 1.96 / np.sqrt(heads - 1)
    for name, text, bounds in (
        ("rank_correlation", title, ["lowest", "highest"]),
        ("correlation_difference", f"{title}, less that of {result['order'].values[0]}", []),
    ):
        several = bounds and result.sizes["draw"] > 1
        draws = {"draws": "{lowest:+.2f} to {highest:+.2f}"} if several else {}
        yield Table(
            f"{name}s",
            text,
            frame_of(with_bounds(data[[name, f"{name}_interval", *bounds]])),
            {"score": "{order}", "ρ": f"{{{name}:+.2f}}"} | draws,
            f"Spearman's, over {heads} heads, of which chance gives ±{chance:.2f} in 95 of 100 "
            f"cases; on {_setting(result)}. Brackets: central 95 % of "
            f"{result.attrs['resamples']} bootstrap resamples of the examples, or of the heads.",
            across=("resampled", f"[{{{name}_lower:+.2f}}, {{{name}_upper:+.2f}}]"),
            detail=True,
        )
    yield Table(
        "layer_correlations",
        f"{title}, by layer",
        frame_of(data["layer_correlation"]),
        {"score": "{order}"},
        f"Spearman's, on {_setting(result)}.",
        across=("within_layer", "{layer_correlation:+.2f}"),
        detail=True,
    )


def _difference_tables(part: xr.Dataset) -> Iterator[Table]:
    """A quantity of every order less that of the first and of random ones, with intervals."""
    first, *later = (str(name) for name in part["order"].values)
    data = with_bounds(part[["difference", "difference_interval"]].round(12))
    for reference, name in zip(part["reference"].values, (first, "random orders")):
        yield Table(
            "differences",
            _capitalise(f"{part['quantity'].item()} less that of {name} as heads are removed"),
            frame_of(data.sel(order=later, reference=[reference]).isel(removed=slice(1, None))),
            {"heads removed:\norder": "{order}", "test set": "{test_set}"},
            f"Brackets: central 95 % of {part.attrs['resamples']} bootstrap resamples, the same "
            "examples for both; too narrow where fewer than five examples differ.",
            across=(
                "removed",
                "{difference:+.3f}\n[{difference_lower:+.3f}, {difference_upper:+.3f}]",
            ),
            lines="order",
            detail=True,
        )


def with_bounds(data: xr.Dataset) -> xr.Dataset:
    """Replace every interval of a dataset by variables of its lower and its upper end."""
    ends = {
        name.replace("interval", end): values.sel(bound=end, drop=True)
        for name, values in data.items()
        if "bound" in values.dims
        for end in ("lower", "upper")
    }
    return data.drop_dims("bound").assign(ends)


def _capitalise(title: str) -> str:
    return title[:1].upper() + title[1:]
