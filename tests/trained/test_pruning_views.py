"""Tables and figures of comparisons that are not of the usual 8 heads."""

import io

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from pathkernel_trained import charts
from pathkernel_trained import pruning_figures as figures
from pathkernel_trained import pruning_tables as tables
from pathkernel_trained.head_games import (
    AccuracyGame,
    best_removals,
    greedy_removals,
    shapley_scores,
)
from pathkernel_trained.heads import removable_heads
from pathkernel_trained.network import NetworkShape
from pathkernel_trained.orders import compare_orders
from pathkernel_trained.outputs import PathOutputs
from pathkernel_trained.pruning_layout import labelled_orders
from pathkernel_trained.scores import ablation_scores, gradient_scores
from pathkernel_trained.theory_drops import PREDICTIONS
from pathkernel_views.figure_files import NothingToPlot

EPISODES = 60
TEST_SETS = ("omniglot", "fashion-mnist", "mnist")


def comparison(heads):
    """A comparison of all kinds of orders on made-up path outputs, two of them of draws."""
    generator = np.random.default_rng(0)
    labels = np.repeat([1.0, -1.0], EPISODES // 2)

    def outputs():
        values = generator.normal(size=(EPISODES, np.prod(heads))) + 0.2 * labels[:, None]
        return PathOutputs(heads, values, labels)

    validation = outputs()
    game = AccuracyGame(validation)
    names = ("theory N=10", "theory N=100", "sampled N=10", "sampled N=100", "trained", "magnitude")
    names += PREDICTIONS
    scores = {name: [generator.random(count) for count in heads] for name in names}
    scores |= {
        "gradient": gradient_scores(validation),
        "raw-gradient": gradient_scores(validation, normalised=False),
        "ablation": ablation_scores(validation),
        "shapley": shapley_scores(game)[0],
    }
    removals = {"greedy": greedy_removals(game), "best-of 200": best_removals(game, 200)}
    tests = {name: outputs() for name in TEST_SETS}
    shape = NetworkShape(len(heads), heads, 6, 3)
    result = compare_orders(scores, tests, shape, 5, 4, removals=removals, random=3, resamples=20)
    orders = result.sizes["order"]
    drop = np.stack([result["ablation_drop"] * factor for factor in (1, -1, 0.5)])
    study = labelled_orders(
        {
            "score_error": np.full(result["score"].shape, np.nan),
            "theory_accuracy": [0.81, 0.82, 0.83],
            "theory_drop": drop,
            "theory_drop_error": np.full_like(drop, 0.012),
            "theory_drop_temperature": np.full(drop.shape[2:], 0.25),
        },
        {
            "order_width": np.full(orders, 10.0),
            "order_temperature": np.full(orders, 0.5),
            "prediction": PREDICTIONS,
        },
    )
    result = xr.merge([result, study]).assign_coords(episode=range(EPISODES))
    result.attrs = {
        "label": "made-up",
        "heads_per_layer": list(heads),
        "random_orders": 3,
        "resamples": 20,
    }
    return result


def text(table):
    written = io.StringIO()
    Console(width=300, file=written).print(table)
    return written.getvalue()


@pytest.fixture(scope="module", params=[(3, 2, 1), (8, 8)], ids=["3-2-1", "8-8"])
def result(request):
    return comparison(request.param)


def test_tables_fit_and_hold_every_head(result, are_documented):
    """Two widths with draws and 16 heads in 120 columns; what is not known is a dash."""
    heads = tuple(result.attrs["heads_per_layer"])
    of_heads = list(tables.head_tables(result))
    shown = [
        *of_heads,
        tables.correlation_table(result),
        tables.correlation_table(result, "kendall"),
        tables.single_head_table(result),
        tables.order_table(result),
        tables.accuracy_table(result),
        *tables.difference_tables(result),
    ]
    lines = [text(table).splitlines() for table in shown]
    for table in lines:
        assert max(len(line.rstrip()) for line in table) <= 120
    removable = ["{}-{}".format(*head) for head in removable_heads(heads)]
    alone = [f"{layer}-1" for layer, count in enumerate(heads, 1) if count == 1]
    of_theory, of_network = (
        {line.split()[0]: line.split()[1:] for line in table if line.strip()} for table in lines[:2]
    )
    for name in removable:
        assert len(of_theory[name]) == 7
        assert len(of_network[name]) == 6, "none of those that go by no score"
        assert "-" not in of_theory[name] + of_network[name]
    for name in alone:
        assert of_network[name].count("-") == 1, "of the ablation"
    correlations, single = lines[len(of_heads)], lines[len(of_heads) + 2]
    losses = {line.split()[0] for line in single if line.strip()}
    assert losses >= set(removable)
    assert not losses & set(alone)
    assert f"Over {len(removable)} heads." in " ".join(correlations)
    first = next(line for line in correlations if line.startswith(" theory N=10 "))
    assert first.count("[") == 2, "no difference from itself"
    assert next(line for line in correlations if line.startswith(" trained ")).count("[") == 4
    written = [table.data.as_json("pruning") for table in shown]
    assert are_documented(written)
    by_name = {table["name"]: table["rows"] for table in written}
    row = next(
        row
        for row in by_name["single_heads"]
        if (row["test_set"], row["layer"], row["head"]) == ("mnist", 1, 2)
        if row["prediction"] == "restricted"
    )
    assert row["theory_drop"] == -row["ablation_drop"]
    at = {"test_set": "mnist", "layer": 1, "head": 2}
    assert row["ablation_drop"] == result["ablation_drop"].sel(at).item()
    chosen = {"order": "trained", "removed": 2, "test_set": "omniglot"}
    (row,) = (row for row in by_name["accuracy"] if chosen.items() <= row.items())
    for name in ("accuracy", "accuracy_error"):
        assert row[name] == result[name].sel(chosen).item()
    assert row["best_accuracy"] == result["best_accuracy"].sel(removed=2, test_set="omniglot")


def test_losses_of_the_network_and_of_the_theory_stand_side_by_side(result):
    lines = [line.split() for line in text(tables.single_head_table(result)).splitlines()]
    start = next(place for place, cells in enumerate(lines) if cells[:1] == ["fashion-mnist"])
    whole = 100 * result["accuracy"].isel(order=0, removed=0).sel(test_set="fashion-mnist").item()
    assert lines[start][1:] == ["of", f"{whole:.1f}", *["of", "82.0"] * 3]
    of_set = lines[start + 1 :]
    row = next(cells for cells in of_set if cells[:1] == ["1-2"])
    loss = result["ablation_drop"].sel(test_set="fashion-mnist", layer=1, head=2).item()
    shown = [f"{100 * factor * loss:.1f}" for factor in (1, 1, -1, 0.5)]
    assert row[1::3][:4] == shown
    assert row[3::3][1:4] == ["1.2"] * 3
    assert row[-1] == "0.25"
    assert next(cells for cells in of_set if cells[:1] == ["ρ"]) == ["ρ", "1.00", "-1.00", "1.00"]
    without = result.drop_vars([name for name in result if name.startswith("theory_drop")])
    shown = text(tables.single_head_table(without))
    assert "silenced" not in shown
    assert "1-2" in shown


def test_figures_show_every_head(result):
    heads = tuple(result.attrs["heads_per_layer"])
    points = figures.heads(result)
    removable = ["{}-{}".format(*head) for head in removable_heads(heads)]
    for axis in points.axes:
        assert sorted(mark.get_text() for mark in axis.texts) == sorted(removable)
        (bars,) = axis.containers
        assert len(bars[0].get_xdata()) == len(removable)
        assert np.isfinite(bars[0].get_xdata().astype(float)).all()
    scores = figures.scores(result)
    labels = [
        f"{axis.get_title().removeprefix('layer ')}-{mark.get_text()}"
        for axis in scores.axes
        for mark in axis.get_xticklabels()
    ]
    assert labels == [f"{la}-{h}" for la, count in enumerate(heads, 1) for h in range(1, count + 1)]
    drawn = figures.accuracy(result)
    assert len(drawn.axes) == 2 * len(TEST_SETS)
    shown = {entry.get_text() for entry in drawn.legends[0].get_texts()}
    orders = {*map(str, result["order"].values)} - {"random"}
    assert shown == {*orders, "random order ± sd", "best set of heads"}


def test_the_grid_shows_both_correlations_over_widths_and_temperatures(result):
    generator = np.random.default_rng(1)
    grid = {"temperature": [0.05, 0.5], "width": [10.0, 30.0, 100.0]}
    dual = {f"{name}_dual": values for name, values in grid.items()}
    values = {
        "theory_correlation": (*grid, "test_set"),
        "theory_agreement": (*grid, *dual),
    }
    sizes = {"temperature": 2, "width": 3, "temperature_dual": 2, "width_dual": 3, "test_set": 3}
    shown = result.assign_coords(grid | dual)
    shown = shown.assign(
        {
            name: (dims, generator.uniform(-1, 1, [sizes[dim] for dim in dims]))
            for name, dims in values.items()
        }
    )
    figure = figures.theory_grid(shown)
    truth, agreement = figure.axes[:2]
    assert truth.get_title() == "with the accuracy lost, omniglot"
    assert agreement.get_title() == "with scores at N = 10, T = 0.5"
    for axis, expected in (
        (truth, shown.theory_correlation.sel(test_set="omniglot")),
        (agreement, shown.theory_agreement.sel(width_dual=10, temperature_dual=0.5)),
    ):
        (image,) = axis.get_images()
        np.testing.assert_array_equal(image.get_array(), expected)
        assert image.get_clim() == (-1, 1)
        assert [mark.get_text() for mark in axis.get_xticklabels()] == ["10", "30", "100"]
    assert [mark.get_text() for mark in truth.get_yticklabels()] == ["0.05", "0.5"]
    assert len(figure.axes) == 3, "one colour bar for both"
    with pytest.raises(NothingToPlot, match="a single point"):
        figures.theory_grid(shown.isel(width=[0], temperature=[0]))


def test_no_best_set_is_drawn_where_none_is_known(result):
    unknown = result.assign(best_accuracy=result["best_accuracy"] * np.nan)
    for shown, expected in ((result, True), (unknown, False)):
        names = {entry.get_text() for entry in figures.accuracy(shown).legends[0].get_texts()}
        assert ("best set of heads" in names) == expected
    cells = [line.split() for line in text(tables.accuracy_table(unknown)).splitlines()]
    best = [row[1:] for row in cells if row[:1] == ["best"]]
    assert best == [["-"] * result.sizes["removed"]] * len(TEST_SETS)


def test_every_number_of_removals_stands_beside_the_first_order(result):
    """Once, whether one table holds them or several; what is better is above 0."""
    headings, found = [], {}
    for table in tables.difference_tables(result):
        rows = [line.split() for line in text(table).splitlines()]
        place = next(place for place, row in enumerate(rows) if row[:2] == ["heads", "removed"])
        headings += rows[place][2:]
        for row in rows[place:]:
            if row[:1] == ["greedy"]:
                found.setdefault(len(headings), []).append(row[1:])
    assert headings == [str(count) for count in result["removed"].values[1:]]
    shown = [cell for rows in found.values() for cell in rows[1]]
    ends = 100 * result["accuracy_difference_interval"].sel(
        order="greedy", test_set=TEST_SETS[1], reference="first order"
    ).isel(removed=slice(1, None))
    lower, upper = ends.transpose("bound", "removed").values
    assert shown == [f"{low:+.1f}..{high:+.1f}" for low, high in zip(lower, upper)]


def test_what_lost_least_is_said_from_the_accuracies(result):
    first, each, elsewhere = tables.advice_lines(result)
    accuracy = 100 * result["accuracy"]
    lost = accuracy.isel(removed=0) - accuracy.isel(removed=slice(1, None))
    mean = lost.mean("removed").sel(test_set="omniglot")
    weights = min(("trained", "magnitude"), key=lambda name: float(mean.sel(order=name)))
    assert f"by {weights} ({mean.sel(order=weights):.1f}) with the weights alone" in first
    assert f"; {mean.sel(order='random'):.1f} by a random order." in first
    one = lost.sel(removed=1, test_set="omniglot", order=tables.orders_of(result))
    least = one["order"].values[np.argmin(one.values)]
    assert f"1: {least} ({one.min():.1f})" in each
    assert all(name in elsewhere for name in TEST_SETS[1:])


def test_charts_hold_the_numbers_of_the_comparison(result):
    drawn = charts.pruning_charts(result)
    given = {name: drawn[name]().data for name in ("accuracy", "heads", "scores")}
    for test_set in result["test_set"].values.tolist():
        for order in tables.orders_of(result):
            of_theory = tables.kind_of_order(order) in tables.OF_THEORY
            group = "theory's orders" if of_theory else "the others"
            panel = f"{test_set}, {group}"
            shown = given["accuracy"]["accuracy"].sel(test_set=panel, order=order)
            wanted = 100 * result["accuracy"].sel(test_set=test_set, order=order)
            np.testing.assert_array_equal(shown, wanted)
    table = result["score"].sel(order="trained").transpose("layer", "head").values
    layer, head = np.unravel_index(np.nanargmax(table), table.shape)
    at = {"series": "trained", "layer": f"layer {layer + 1}", "head": str(head + 1)}
    assert given["scores"]["score"].sel(at) == np.nanmax(table)
    assert given["heads"]["score"].max("head").values == pytest.approx(1)
