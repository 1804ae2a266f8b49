"""A comparison of orders as tables: heads, accuracies, rank correlations, the theory's grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr
from rich.table import Table

from pathkernel_datasets.selection import number
from pathkernel_trained.correlation import COEFFICIENTS, rank_correlations
from pathkernel_trained.heads import Head, every_head, kept_heads, removable_heads, removal_order
from pathkernel_trained.orders import RANDOM, are_nested, removed_heads, scores_of
from pathkernel_views.value_table import Column, shown, value_table

OF_THEORY = ("theory", "sampled", "silenced", "restricted", "re-equilibrated")
"""Kinds of orders that need no trained values."""

_OF_WEIGHTS = ("trained", "magnitude")  # that need the weights alone
_OF_HEADS = (  # what files hold of single heads; stores from before lack the theory's
    *("ablation_drop", "ablation_drop_error"),
    *("theory_drop", "theory_drop_error", "theory_error_rise", "theory_drop_temperature"),
)


def head_tables(result: xr.Dataset) -> Iterator[Table]:
    """Scores of every head by every order that goes by some, first the theory's.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`; so for the other tables.
    """
    heads, names = every_head(result.attrs["heads_per_layer"]), scored_orders(result)
    of_theory = [name for name in names if kind_of_order(name) in OF_THEORY]
    of_network = [name for name in names if name not in of_theory]
    for words, orders in (("theory", of_theory), ("network itself", of_network)):
        scores = (_of_heads(result["score"].sel(order=name), heads) for name in orders)
        yield _table(
            f"Scores of the trained network's heads by the {words}",
            "Heads as layer-head; low scores are removed first.",
            [
                Column("head", map(_name, heads)),
                *(_column(name, cells, ".3f") for name, cells in zip(orders, scores)),
            ],
            name="scores",
            data=result[["score"]].sel(order=orders),
        )


def single_head_table(result: xr.Dataset) -> Table:
    """Accuracy that is lost when a single head is removed, by the network and in the theory."""
    heads, test_sets = removable_heads(result.attrs["heads_per_layer"]), result["test_set"].values
    sources = {"trained": (result["ablation_drop"], result["ablation_drop_error"])}
    wholes = {"trained": result["accuracy"].isel(order=0, removed=0)}
    caption = "In points of accuracy on test episodes, ± the standard error."
    if "theory_drop" in result:  # stores from before have none
        for way in result["prediction"].values:
            drop = result[["theory_drop", "theory_drop_error"]].sel(prediction=way)
            sources[str(way)], wholes[str(way)] = drop.values(), result["theory_accuracy"]
        caption += (
            f" The theory at N = {number(float(result['order_width'][0]))}, T = "
            f"{float(result['order_temperature'][0]):g}, on the study's test examples; silenced: U "
            "without the head's rows and columns, fitted anew; restricted: the mean predictor "
            "without them; re-equilibrated: the action minimised anew. ρ: Spearman's, with the "
            "trained network's losses."
        )
    lines = [str(name) for name in map(_name, heads)] + ["ρ"]
    columns = [Column("head", [cell for name in test_sets for cell in (str(name), *lines)])]
    of_network = result["ablation_drop"]
    for name, parts in sources.items():
        cells = []
        for test_set in test_sets:
            drop, error = (
                100 * np.array(_of_heads(p.sel(test_set=test_set), heads)) for p in parts
            )
            truth = _of_heads(of_network.sel(test_set=test_set), heads)
            agreement = rank_correlations(drop, np.array(truth))[0]
            cells.append(f"of {100 * float(wholes[name].sel(test_set=test_set)):.1f}")
            cells += [f"{loss:.1f} ± {of:.1f}" for loss, of in zip(drop, error)]
            cells.append(None if name == "trained" else shown(agreement, ".2f"))
        columns.append(_column(name, cells))
    if "theory_drop" in result:
        taken = [f"{value:g}" for value in _of_heads(result["theory_drop_temperature"], heads)]
        columns.append(_column("its T", [None, *taken, None] * len(test_sets)))
    size = len(heads) + 2
    return _table(
        "Accuracy lost when a single head is removed",
        caption,
        columns,
        lines=range(size - 1, len(test_sets) * size, size),
        name="single heads",
        data=result[[name for name in _OF_HEADS if name in result]],
    )


def accuracy_table(result: xr.Dataset) -> Table:
    """Accuracy against the number of heads removed, for every order and test set."""
    percent = 100 * result[["accuracy", "random_deviation", "best_accuracy"]]
    curves = [(str(at["order"].item()), at) for at in percent["accuracy"]]
    curves += [("random, ± sd", percent["random_deviation"]), ("best", percent["best_accuracy"])]
    largest = 100 * float(result["accuracy_error"].max())
    return _curve_table(
        "Accuracy as heads are removed",
        f"In per cent; standard errors on {result.sizes['episode']} episodes are at most "
        f"{largest:.1f}. random: mean over {result.attrs['random_orders']} orders, and their "
        "standard deviation; best: of all sets of so many heads, chosen on the same episodes.",
        result,
        curves,
        ".1f",
        name="accuracy",
        data=result[["accuracy", "accuracy_error", "random_deviation", "best_accuracy"]],
    )


def difference_tables(result: xr.Dataset, most: int = 7) -> Iterator[Table]:
    """How much more accurate every order is than the first, with 95 % intervals.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    most : int
        Most numbers of removals beside each other.
    """
    first, *others = [str(name) for name in result["order"].values]
    ends = 100 * result["accuracy_difference_interval"].isel(reference=0, removed=slice(1, None))
    intervals = xr.apply_ufunc(
        lambda lower, upper: f"{lower:+.1f}..{upper:+.1f}",
        *(ends.sel(bound=bound, drop=True) for bound in ("lower", "upper")),
        vectorize=True,
        output_dtypes=[object],
    )
    numbers, data = range(result.sizes["removed"] - 1), result[["accuracy_difference"]]
    for bound in result["bound"].values:
        interval = result["accuracy_difference_interval"].sel(bound=bound, drop=True)
        data[f"accuracy_difference_{bound}"] = interval
    for part in np.array_split(numbers, -(-len(numbers) // most)):
        yield _curve_table(
            f"Accuracy less that of {first} as heads are removed",
            "In points: central 95 % of the difference's bootstrap resamples, the same episodes "
            "for both orders. Above 0 an order is better.",
            result,
            [(name, intervals.sel(order=name).isel(removed=part)) for name in others],
            name="differences",
            data=data.sel(order=others).isel(removed=part + 1),
        )


def order_table(result: xr.Dataset) -> Table:
    """Which head goes at every removal, and which stay."""
    names = [name for name in orders_of(result) if are_nested(result, name)]
    gone, scored = [removed_heads(result, name) for name in names], scored_orders(result)
    stay = []
    for name, removed in zip(names, gone):
        skipped = removal_order(scores_of(result, name)).skipped if name in scored else ()
        left = (head for head in every_head(result.attrs["heads_per_layer"]) if head not in removed)
        stay.append(", ".join(_name(head) + "*" * (head in skipped) for head in left))
    columns = [Column("order", names)]
    for place, count in enumerate(result["removed"].values[1:]):
        heads = [_name(removed[place]) for removed in gone]
        columns.append(Column(str(count), heads, wraps=True, name=f"removed {count}"))
    caption = (
        "Heads as layer-head. * passed over although heads of larger scores go: the last one of "
        "its layer."
    )
    for name in orders_of(result):
        if name not in names:
            sets = (removed_heads(result, name, count) for count in result["removed"].values[1:])
            caption += f" {name}: {'; '.join(' '.join(map(_name, sorted(each))) for each in sets)}."
    return _table(
        "Orders of removal",
        caption,
        [*columns, Column("stay", stay)],
        names=(0, len(columns)),
        name="orders",
    )


def correlation_table(result: xr.Dataset, coefficient: str = "spearman") -> Table:
    """Rank correlations of every score with the accuracy lost with single heads.

    Beside them stands how much larger that of the first order is.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    coefficient : str
        ``"spearman"`` or ``"kendall"``.
    """
    orders, symbol = scored_orders(result), {"spearman": "ρ", "kendall": "τ"}[coefficient]
    test_sets = [str(name) for name in result["test_set"].values]
    rows = [(name, test_set) for name in orders for test_set in test_sets]
    columns = [
        Column("order", [name for name, _ in rows]),
        Column("test set", [test_set for _, test_set in rows]),
    ]
    chosen = result.sel(coefficient=coefficient)
    data = {}
    for heading, variable, known in (
        (symbol, "rank_correlation", rows),
        (f"Δ{symbol}", "correlation_difference", rows[len(test_sets) :]),  # not from itself
    ):
        here = [chosen.sel(order=name, test_set=test_set) for name, test_set in known]
        empty = [None] * (len(rows) - len(known))
        columns.append(_column(heading, [*empty, *(each[variable] for each in here)], ".2f"))
        for resampled in result["resampled"].values:
            ends = [each[f"{variable}_interval"].sel(resampled=resampled) for each in here]
            columns.append(_column(resampled, [*empty, *map(_interval, ends)]))
        data[variable] = chosen[variable]
        for bound in result["bound"].values:
            interval = chosen[f"{variable}_interval"].sel(bound=bound, drop=True)
            data[f"{variable}_{bound}"] = interval
    return _table(
        f"Rank correlation {symbol} ({coefficient.capitalize()}) of scores with the accuracy lost "
        "with single heads",
        f"Over {len(removable_heads(result.attrs['heads_per_layer']))} heads. Δ{symbol}: that of "
        f"{orders[0]} less this one. Brackets: central 95 % of bootstrap resamples, "
        f"{result.attrs['resamples']} resamples of episodes, or of heads, the same for all orders.",
        columns,
        lines=range(len(test_sets) - 1, len(rows), len(test_sets)),
        names=(0, 1),
        name="correlations",
        data=xr.Dataset(data).sel(order=orders),
    )


def grid_table(result: xr.Dataset) -> Table:
    """Rank correlation of the theory's scores at every point of the grid with those gone by."""
    agreement, reference = reference_agreement(result)
    columns = [Column("N", [number(width) for width in result["width"].values])]
    for value in result["temperature"].values:
        columns.append(_column(f"T = {value:g}", agreement.sel(temperature=value).values, ".2f"))
    return _table(
        "How far the theory's order depends on width and temperature",
        f"Spearman's ρ of its scores with those at {reference}.",
        columns,
        names=(),
        name="grid",
        data=agreement.to_dataset(),
    )


def reference_agreement(result: xr.Dataset) -> tuple[xr.DataArray, str]:
    """Rank correlations (width, temperature) with the scores that are gone by; where those are."""
    width, temperature = (float(result[f"order_{name}"][0]) for name in ("width", "temperature"))
    found = result["theory_agreement"].sel(width_dual=width, temperature_dual=temperature)
    return found.transpose("width", "temperature"), f"N = {number(width)}, T = {temperature:g}"


def every_table(result: xr.Dataset) -> Iterator[Table | str]:
    """All tables, and a warning for every test set that tells no order from another.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    yield from head_tables(result)
    yield single_head_table(result)
    yield order_table(result)
    yield accuracy_table(result)
    yield from difference_tables(result)
    for coefficient in COEFFICIENTS:
        yield correlation_table(result, coefficient)
    yield grid_table(result)
    whole = result["accuracy"].isel(order=0, removed=0)
    errors = result["accuracy_error"].isel(order=0, removed=0)
    for name, accuracy, error in zip(result["test_set"].values, whole.values, errors.values):
        if accuracy < 0.5 + 3 * error:
            yield (
                f"Warning: on {name} the whole network is no better than chance ({accuracy:.1%} ± "
                f"{error:.1%}), so that no order can be told from another."
            )
    yield from advice_lines(result)


def advice_lines(result: xr.Dataset) -> Iterator[str]:
    """Which orders lost least, of those that need equally much, and at each number of heads.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    whole, left = (result["accuracy"].isel(removed=part) for part in (0, slice(1, None)))
    lost, names = 100 * (whole - left), orders_of(result)
    mean = lost.mean("removed")
    first, *others = map(str, result["test_set"].values)
    found = []
    other = {kind_of_order(name) for name in names} - {*OF_THEORY, *_OF_WEIGHTS}
    for kinds, needed in (
        (OF_THEORY, "without trained values"),
        (_OF_WEIGHTS, "with the weights alone"),
        (other, "with the network and labelled examples"),
    ):
        of_kinds = [name for name in names if kind_of_order(name) in kinds]
        found.append(f"{_least(mean.sel(test_set=first, order=of_kinds))} {needed}")
    of_random = float(mean.sel(test_set=first, order=RANDOM))
    yield (
        f"Points of accuracy lost on {first}, mean over 1 to {len(left['removed'])} heads removed: "
        f"least by {', by '.join(found)}; {of_random:.1f} by a random order."
    )
    each = lost.sel(test_set=first, order=names).transpose("removed", "order")
    by_count = (f"{at['removed'].item()}: {_least(at)}" for at in each)
    yield f"Least by number of heads removed: {', '.join(by_count)}."
    if others:
        named = (f"{name}: {_least(mean.sel(test_set=name, order=names))}" for name in others)
        yield f"Least in the mean on the other test sets: {', '.join(named)}."


def _least(lost: xr.DataArray) -> str:
    """The order that loses least, of those along the only dimension, and how much it loses."""
    values = lost.values
    return f"{lost['order'].values[np.argmin(values)]} ({values.min():.1f})"


def removal_lines(result: xr.Dataset, name: str, remove: int) -> Iterator[str]:
    """What the removal of the first heads of an order takes, costs and saves.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    name : str
        Label of the order.
    remove : int
        Heads removed.
    """
    removed = removed_heads(result, name, remove)
    left = kept_heads(result.attrs["heads_per_layer"], removed)
    yield (
        f"Removed by {name}: {', '.join(f'{layer}-{head}' for layer, head in removed)}; heads left "
        f"in each layer: {', '.join(str(len(kept)) for kept in left)}"
    )
    here = result.sel(order=name, removed=remove)
    whole = result.sel(order=name, removed=0)
    losses = zip(
        result["test_set"].values,
        100 * (whole["accuracy"] - here["accuracy"]).values,
        100 * here["accuracy_drop_error"].values,
    )
    lost = ", ".join(f"{loss:.1f} ± {error:.1f} on {name}" for name, loss, error in losses)
    yield f"Points of accuracy lost: {lost}"
    for words, variable in (
        ("parameters", "parameters"),
        ("operations per episode", "flops"),
    ):
        old, new = (int(at[variable]) for at in (whole, here))
        yield f"{words.capitalize()}: {old:,} before, {new:,} now ({1 - new / old:.1%} less)"


def orders_of(result: xr.Dataset) -> list[str]:
    """Labels of all orders but the random ones."""
    return [str(name) for name in result["order"].values if name != RANDOM]


def kind_of_order(name: str) -> str:
    """Kind of an order, such as ``theory`` of ``theory N=10``."""
    return name.partition(" ")[0]


def scored_orders(result: xr.Dataset) -> list[str]:
    """Labels of the orders that go by a score of single heads."""
    known = result["score"].notnull().any(("layer", "head"))
    return [name for name in orders_of(result) if known.sel(order=name)]


def _curve_table(
    title: str,
    caption: str,
    result: xr.Dataset,
    curves: Sequence[tuple[str, xr.DataArray]],
    form: str = "",
    **style: Any,
) -> Table:
    """Rows of orders by test set, columns of numbers of removals."""
    first, cells = [], []
    for test_set in result["test_set"].values:
        first += [f"{test_set}:", *(name for name, _ in curves)]
        cells += [[None] * curves[0][1].sizes["removed"]]
        cells += [list(values.sel(test_set=test_set).values) for _, values in curves]
    columns = [Column("heads removed", first)]
    for count, column in zip(curves[0][1]["removed"].values, zip(*cells)):
        columns.append(_column(str(count), column, form))
    size = len(curves) + 1
    return _table(title, caption, columns, lines=range(size - 1, len(first), size), **style)


def _name(head: Head) -> str:
    return "{}-{}".format(*head)


def _of_heads(values: xr.DataArray, heads: Sequence[Head]) -> list[float]:
    return [values.sel(layer=layer, head=head).item() for layer, head in heads]


def _interval(ends: xr.DataArray) -> str:
    lower, upper = (shown(end, ".2f") for end in ends.transpose("bound"))
    return f"[{lower}, {upper}]"


def _broken(name: str) -> str:
    """Name in two lines where it can be broken, so that many columns fit."""
    broken = str(name).replace(" N=", "\nN=").replace("-", "-\n")
    return broken.replace("equilibrated", "equili-\nbrated")


def _column(name: str, cells: Iterable[Any], form: str = "") -> Column:
    return Column(_broken(name), cells, form, wraps=True)


def _table(title: str, caption: str, columns: Sequence[Column], **style: Any) -> Table:
    table = value_table(title, columns, caption, **style)
    table.min_width = 64  # for the title
    return table
