"""A comparison of orders as tables: heads, accuracies, rank correlations, the theory's grid."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr
from rich.table import Table
from rich.text import Text

from pathkernel_datasets.selection import number
from pathkernel_trained.correlation import COEFFICIENTS
from pathkernel_trained.heads import every_head, kept_heads, removable_heads, removal_order
from pathkernel_trained.orders import RANDOM, removed_heads, scores_of
from pathkernel_views.tables import plain_table


def head_table(result: xr.Dataset) -> Table:
    """Scores of every head by every order.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    orders = _orders(result)
    table = _table(
        "Scores of the trained network's heads",
        "Heads as layer-head; low scores are removed first.",
    )
    table.add_column("head")
    for name in orders:
        table.add_column(_heading(name), justify="right")
    for layer, head in every_head(result.attrs["heads_per_layer"]):
        at = {"layer": layer, "head": head}
        scores = (result["score"].sel(order=name, **at).item() for name in orders)
        cells = ("-" if np.isnan(score) else f"{score:.3f}" for score in scores)
        table.add_row(f"{layer}-{head}", *cells)
    return table


def single_head_table(result: xr.Dataset) -> Table:
    """Accuracy that is lost when a single head is removed, on every test set.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    table = _table(
        "Accuracy lost when a single head is removed",
        "In points of accuracy on test episodes, ± the standard error.",
    )
    table.add_column("head")
    for name in result["test_set"].values:
        table.add_column(Text(str(name)), justify="right")
    for layer, head in removable_heads(result.attrs["heads_per_layer"]):
        here = result.sel(layer=layer, head=head)
        losses = zip(here["ablation_drop"].values, here["ablation_drop_error"].values)
        cells = (f"{100 * loss:.1f} ± {100 * error:.1f}" for loss, error in losses)
        table.add_row(f"{layer}-{head}", *cells)
    return table


def accuracy_table(result: xr.Dataset) -> Table:
    """Accuracy against the number of heads removed, for every order and test set.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    orders = _orders(result)
    episodes = result.sizes["episode"]
    table = _table(
        "Accuracy as heads are removed",
        f"In per cent, ± the binomial standard error on {episodes} episodes; random: mean over "
        f"{result.attrs['random_orders']} orders ± their standard deviation; best: of all sets of "
        "so many heads, chosen on the same episodes.",
    )
    table.add_column("removed")
    for name in (*orders, RANDOM, "best"):
        table.add_column(_heading(name), justify="right")
    for test_set in result["test_set"].values:
        table.add_row(_heading(str(test_set)))
        for count in result["removed"].values:
            at = {"removed": count, "test_set": test_set}
            cells = []
            for name in orders:
                mean, error = (
                    100 * result[variable].sel(order=name, **at).item()
                    for variable in ("accuracy", "accuracy_error")
                )
                cells.append(f"{mean:.1f}±{error:.1f}")
            mean = 100 * result["accuracy"].sel(order=RANDOM, **at).item()
            deviation = 100 * result["random_deviation"].sel(at).item()
            cells.append(f"{mean:.1f}±{deviation:.1f}")
            best = 100 * result["best_accuracy"].sel(at).item()
            cells.append("-" if np.isnan(best) else f"{best:.1f}")
            table.add_row(f"{count:7d}", *cells)
        table.add_section()
    return table


def order_table(result: xr.Dataset) -> Table:
    """Which head goes at every removal, and which stay.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    table = _table(
        "Orders of removal",
        "Heads as layer-head. * passed over although heads of larger scores go: the last one of "
        "its layer.",
    )
    table.add_column("order")
    for count in result["removed"].values[1:]:
        table.add_column(str(count), justify="right")
    table.add_column("stay")
    for name in _orders(result):
        gone = removed_heads(result, name)
        skipped = removal_order(scores_of(result, name)).skipped
        stay = [head for head in every_head(result.attrs["heads_per_layer"]) if head not in gone]
        table.add_row(
            Text(name),
            *("{}-{}".format(*head) for head in gone),
            ", ".join("{}-{}".format(*head) + "*" * (head in skipped) for head in stay),
        )
    return table


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
    orders, symbol = _orders(result), {"spearman": "ρ", "kendall": "τ"}[coefficient]
    table = _table(
        f"Rank correlation {symbol} ({coefficient.capitalize()}) of scores with the accuracy lost "
        "with single heads",
        f"Over {len(removable_heads(result.attrs['heads_per_layer']))} heads. Δ{symbol}: that of "
        f"{orders[0]} less this one. Brackets: central 95 % of bootstrap resamples, "
        f"{result.attrs['resamples']} resamples of episodes, or of heads, the same for all orders.",
    )
    table.add_column("order")
    table.add_column("test set")
    for heading in (symbol, f"Δ{symbol}"):
        table.add_column(heading, justify="right")
        for resampled in result["resampled"].values:
            table.add_column(Text(str(resampled)), justify="right")
    chosen = result.sel(coefficient=coefficient)
    for name in orders:
        for test_set in result["test_set"].values:
            here = chosen.sel(order=name, test_set=test_set)
            cells = _with_intervals(here, "rank_correlation")
            if name != orders[0]:
                cells += _with_intervals(here, "correlation_difference")
            table.add_row(Text(name), Text(str(test_set)), *cells)
        table.add_section()
    return table


def grid_table(result: xr.Dataset) -> Table:
    """Rank correlation of the theory's scores at every point of the grid with those gone by.

    Parameters
    ----------
    result : xarray.Dataset
        From :func:`pathkernel_trained.pruning.prune_study`.
    """
    width, temperature = (float(result[f"order_{name}"][0]) for name in ("width", "temperature"))
    agreement = result["theory_agreement"].sel(width_dual=width, temperature_dual=temperature)
    table = _table(
        "How far the theory's order depends on width and temperature",
        f"Spearman's ρ of its scores with those at N = {number(width)}, T = {temperature:g}.",
    )
    table.add_column("N", justify="right")
    for value in result["temperature"].values:
        table.add_column(f"T = {value:g}", justify="right")
    for value in result["width"].values:
        row = agreement.sel(width=value).transpose("temperature").values
        table.add_row(number(value), *(_show(entry) for entry in row))
    return table


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


def _orders(result: xr.Dataset) -> list[str]:
    return [str(name) for name in result["order"].values if name != RANDOM]


def _heading(name: str) -> Text:
    """Name in two lines where it can be broken, so that many columns fit."""
    return Text(name.replace(" N=", "\nN=").replace("-", "-\n"))


def _with_intervals(here: xr.Dataset, name: str) -> list[Text]:
    """Cells of a number and of its intervals."""
    ends = here[f"{name}_interval"].transpose("resampled", "bound").values
    intervals = (f"[{_show(lower)}, {_show(upper)}]" for lower, upper in ends)
    return [Text(_show(here[name].item())), *map(Text, intervals)]


def _show(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"


def _table(title: str, caption: str) -> Table:
    table = plain_table(title, caption)
    table.min_width = 64  # for the title
    return table
