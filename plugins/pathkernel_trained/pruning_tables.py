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
from pathkernel_trained.orders import RANDOM, removed_heads, scores_of
from pathkernel_views.value_table import Column, shown, value_table

_OF_HEADS = (  # what files hold of single heads; stores from before lack the theory's
    *("ablation_drop", "ablation_drop_error"),
    *("theory_drop", "theory_drop_error", "theory_drop_temperature"),
)


def head_table(result: xr.Dataset) -> Table:
    """Scores of every head by every order.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`; so for the other tables.
    """
    heads = every_head(result.attrs["heads_per_layer"])
    scores = (_of_heads(result["score"].sel(order=name), heads) for name in orders_of(result))
    columns = [_column(name, cells, ".3f") for name, cells in zip(orders_of(result), scores)]
    return _table(
        "Scores of the trained network's heads",
        "Heads as layer-head; low scores are removed first.",
        [Column("head", map(_name, heads)), *columns],
        name="scores",
        data=result[["score"]].sel(order=orders_of(result)),
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
    percent = 100 * result[["accuracy", "accuracy_error", "random_deviation", "best_accuracy"]]
    test_sets, removed = result["test_set"].values, result["removed"].values
    # every test set has a line for its name, then one for each number of heads
    first = [cell for name in test_sets for cell in (_broken(name), *(f"{n:7d}" for n in removed))]
    found = {
        name: (percent["accuracy"].sel(order=name), percent["accuracy_error"].sel(order=name))
        for name in orders_of(result)
    }
    found[RANDOM] = percent["accuracy"].sel(order=RANDOM), percent["random_deviation"]
    columns = [Column("removed", first)]
    for name, (mean, error) in found.items():
        cells = []
        for test_set in test_sets:
            pairs = zip(mean.sel(test_set=test_set).values, error.sel(test_set=test_set).values)
            cells += [None, *(f"{value:.1f}±{of:.1f}" for value, of in pairs)]
        columns.append(_column(name, cells))
    best = (percent["best_accuracy"].sel(test_set=test_set).values for test_set in test_sets)
    columns.append(Column("best", [cell for values in best for cell in (None, *values)], ".1f"))
    data = result[["accuracy", "accuracy_error", "random_deviation", "best_accuracy"]]
    return _table(
        "Accuracy as heads are removed",
        f"In per cent, ± the binomial standard error on {result.sizes['episode']} episodes; "
        f"random: mean over {result.attrs['random_orders']} orders ± their standard deviation; "
        "best: of all sets of so many heads, chosen on the same episodes.",
        columns,
        lines=range(len(removed), len(first), len(removed) + 1),
        name="accuracy",
        data=data.sel(order=list(found)),
    )


def order_table(result: xr.Dataset) -> Table:
    """Which head goes at every removal, and which stay."""
    names = orders_of(result)
    gone = [removed_heads(result, name) for name in names]
    stay = []
    for name, removed in zip(names, gone):
        skipped = removal_order(scores_of(result, name)).skipped
        left = (head for head in every_head(result.attrs["heads_per_layer"]) if head not in removed)
        stay.append(", ".join(_name(head) + "*" * (head in skipped) for head in left))
    columns = [Column("order", names)]
    for place, count in enumerate(result["removed"].values[1:]):
        heads = [_name(removed[place]) for removed in gone]
        columns.append(Column(str(count), heads, wraps=True, name=f"removed {count}"))
    return _table(
        "Orders of removal",
        "Heads as layer-head. * passed over although heads of larger scores go: the last one of "
        "its layer.",
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
    orders, symbol = orders_of(result), {"spearman": "ρ", "kendall": "τ"}[coefficient]
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
    yield head_table(result)
    yield single_head_table(result)
    yield order_table(result)
    yield accuracy_table(result)
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
    removed = removal_order(scores_of(result, name)).first(remove)
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


def _name(head: Head) -> str:
    return "{}-{}".format(*head)


def _of_heads(values: xr.DataArray, heads: Sequence[Head]) -> list[float]:
    return [values.sel(layer=layer, head=head).item() for layer, head in heads]


def _interval(ends: xr.DataArray) -> str:
    lower, upper = (shown(end, ".2f") for end in ends.transpose("bound"))
    return f"[{lower}, {upper}]"


def _broken(name: str) -> str:
    """Name in two lines where it can be broken, so that many columns fit."""
    return str(name).replace(" N=", "\nN=").replace("-", "-\n")


def _column(name: str, cells: Iterable[Any], form: str = "") -> Column:
    return Column(_broken(name), cells, form, wraps=True)


def _table(title: str, caption: str, columns: Sequence[Column], **style: Any) -> Table:
    table = value_table(title, columns, caption, **style)
    table.min_width = 64  # for the title
    return table
