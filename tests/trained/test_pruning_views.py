"""Views of comparisons that are not of the usual 8 heads."""

import io

import altair as alt
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pathkernel_trained import pruning_views as views
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
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.table import Table

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
    grid = {"temperature": [0.05, 0.5], "width": [10.0, 30.0, 100.0]}
    shape = (2, 3)
    over_grid = labelled_orders(
        {
            "theory_correlation": generator.uniform(-1, 1, (*shape, len(TEST_SETS))),
            "theory_agreement": generator.uniform(-1, 1, (*shape, *shape)),
            "theory_error_rise": drop[:, 0],
        },
        grid | {f"{name}_dual": values for name, values in grid.items()},
    )
    result = xr.merge([result, study, over_grid]).assign_coords(episode=range(EPISODES))
    result.attrs = {
        "label": "made-up",
        "heads_per_layer": list(heads),
        "random_orders": 3,
        "resamples": 20,
    }
    return result


@pytest.fixture(scope="module", params=[(3, 2, 1), (8, 8)], ids=["3-2-1", "8-8"])
def result(request):
    return comparison(request.param)


def tables(result, name):
    """Tables of a name, first those of the page."""
    every = views.pruning_views(result)
    return [view for view in every if isinstance(view, Table) and view.name == name]


def charts(result):
    return {view.name: view for view in views.pruning_views(result) if isinstance(view, Chart)}


def data(chart):
    """What a chart shows, as a frame."""
    drawn = chart.draw()
    alt.Chart.from_dict(drawn.to_dict(), validate=True)
    return pd.read_csv(io.StringIO(drawn.data.values))


def test_a_page_is_shown_and_the_rest_on_request(result, are_documented):
    every = list(views.pruning_views(result))
    page = [view.name for view in every if isinstance(view, Table) and not view.detail]
    assert page == ["accuracy", "orders", "single_heads"]
    shown = [view.name for view in every if isinstance(view, Chart) and not view.detail]
    assert shown == ["accuracy", "heads", "scores", "theory_grid"]
    written = [view.as_json("pruning") for view in every if isinstance(view, Table)]
    assert are_documented(written)
    sizes = {name: 0 for name in ("accuracy", "differences", "correlations")}
    for table in written:
        if table["name"] in sizes:
            sizes[table["name"]] += len(table["rows"])
    orders, removed = result.sizes["order"], result.sizes["removed"]
    scored = len(views.scored_orders(result))
    sets = len(TEST_SETS)
    assert sizes["accuracy"] == orders * removed * sets
    assert sizes["differences"] == 2 * (orders - 1) * (removed - 1) * sets
    assert sizes["correlations"] == 4 * scored * sets


def test_tables_hold_every_head_that_exists(result):
    heads = tuple(result.attrs["heads_per_layer"])
    removable = ["{}-{}".format(*head) for head in removable_heads(heads)]
    alone = [f"{layer}-1" for layer, count in enumerate(heads, 1) if count == 1]
    every = [f"{la}-{h}" for la, count in enumerate(heads, 1) for h in range(1, count + 1)]
    scores = tables(result, "scores")
    assert [heading for table in scores for heading in table.headings[1:]] == every
    for table in scores:
        of_network = {"ablation", "shapley"} if table.headings[1:] == alone else set()
        expected = [name for name in views.scored_orders(result) if name not in of_network]
        assert [row[0] for row in table.rows][: len(expected)] == expected
    for name, table in zip(TEST_SETS, tables(result, "single_heads"), strict=True):
        assert name in table.title
        assert [row[0] for row in table.rows] == removable
        row = table.rows[1]
        lost = result["ablation_drop"].sel(test_set=name, layer=1, head=2).item()
        shown = [f"{100 * factor * lost:.1f}" for factor in (1, 1, -1, 0.5)]
        assert [cell.split(" ± ")[0] for cell in row[1:-1]] == shown
        assert [cell.split(" ± ")[1] for cell in row[2:-1]] == ["1.2"] * 3
        assert row[-1] == "0.25"
        assert "silenced 1.00, restricted -1.00, re-equilibrated 1.00" in table.caption
        assert f"of {100 * result['accuracy'][0, 0].sel(test_set=name):.1f} %" in table.headings[1]


def test_accuracies_and_differences_stand_at_every_number_of_heads(result):
    counts = [str(count) for count in result["removed"].values]
    for name, table in zip(TEST_SETS, tables(result, "accuracy"), strict=True):
        assert table.headings[1:] == counts
        percent = 100 * result["accuracy"].sel(test_set=name)
        for order, *cells in table.rows:
            assert cells == [f"{value:.1f}" for value in percent.sel(order=order).values]
        low, high = 100 * result["random_interval"].sel(test_set=name, removed=1).values
        assert f"{low:.1f} to {high:.1f}" in table.caption
        assert "Best of all sets" in table.caption
    unknown = result.assign(best_accuracy=result["best_accuracy"] * np.nan)
    assert "Best" not in tables(unknown, "accuracy")[0].caption
    shown = {}
    for table in tables(result, "differences"):
        row = next(row for row in table.rows if row[:2] == ["greedy", TEST_SETS[1]])
        shown.setdefault(table.title, []).extend(zip(table.headings[2:], row[2:]))
    for reference, cells in zip(result["reference"].values, shown.values(), strict=True):
        ends = 100 * result["accuracy_difference_interval"].sel(
            order="greedy", test_set=TEST_SETS[1], reference=reference
        ).transpose("removed", "bound")
        assert cells == [
            (count, f"{low:+.1f}..{high:+.1f}") for count, (low, high) in zip(counts[1:], ends[1:])
        ]


def test_correlations_have_both_intervals(result):
    spearman, kendall = tables(result, "correlations")
    removable = len(removable_heads(result.attrs["heads_per_layer"]))
    assert f"Over {removable} heads." in spearman.caption
    values = result.sel(order="trained", test_set="mnist", coefficient="kendall")
    row = next(row for row in kendall.rows if row[:2] == ["trained", "mnist"])
    names = ("rank_correlation", "correlation_difference")
    assert row[2] == "\n".join(f"{values[name]:.2f}" for name in names)
    low, high = values["rank_correlation_interval"].sel(resampled="heads").values
    assert row[4].startswith(f"[{low:.2f}, {high:.2f}]\n[")


def test_the_orders_name_heads_that_stay(result):
    (table,) = tables(result, "orders")
    nested = [name for name in views.orders_of(result) if views.are_nested(result, name)]
    assert [row[0] for row in table.rows] == nested
    removed = [f"{layer}-{head}" for layer, head in views.removed_heads(result, "trained")]
    row = table.rows[nested.index("trained")]
    assert row[1:-1] == removed
    assert not set(row[-1].replace("*", "").split(", ")) & set(removed)
    assert ("best-of 200: " in table.caption) == ("best-of 200" not in nested)


def test_orders_that_lost_least_are_named_with_their_ties(result):
    first, elsewhere, ranks = views.advice(result)
    accuracy = 100 * result["accuracy"]
    lost = accuracy.isel(removed=0) - accuracy.isel(removed=slice(1, None))
    mean = lost.mean("removed").sel(test_set="omniglot")
    weights = min(("trained", "magnitude"), key=lambda name: float(mean.sel(order=name)))
    assert f"by {weights} ({mean.sel(order=weights):.1f}) with the weights alone" in first
    assert f"; {mean.sel(order='random'):.1f} by a random order." in first
    assert all(name in elsewhere for name in TEST_SETS[1:])
    assert all(name in ranks for name in views.scored_orders(result))
    (warning,) = views.warnings_of(
        result.assign(accuracy=result["accuracy"].where(result["test_set"] != "mnist", 0.5))
    )
    assert warning.startswith("Warning: on mnist the whole network is no better than chance")


def test_curves_of_few_orders_and_the_others_on_request(result):
    drawn = charts(result)
    main = ["theory N=10", "raw-gradient", "greedy", "best-of 200"]
    bounds = [views.RANDOM_SERIES, "best set of all"]
    frames = {name: data(drawn[name]) for name in drawn if name.startswith("accuracy")}
    shown = {name: list(dict.fromkeys(frame["order"])) for name, frame in frames.items()}
    assert shown["accuracy"] == [*main, *bounds]
    assert {*shown["accuracy_theory"], *shown["accuracy_network"]} == {
        *views.orders_of(result),
        *bounds,
    }
    for order in views.orders_of(result):
        if order not in main:
            assert order in drawn["accuracy"].caption
    frame = frames["accuracy"].set_index(["test_set", "order", "removed"]).sort_index()
    greedy = frame.loc["mnist", "greedy"]
    at = {"test_set": "mnist", "order": "greedy"}
    np.testing.assert_allclose(greedy["accuracy"], 100 * result["accuracy"].sel(at), rtol=1e-4)
    ends = 100 * result["random_interval"].sel(test_set="mnist").transpose("removed", "bound")
    np.testing.assert_allclose(frame.loc["mnist", bounds[0]][["lower", "upper"]], ends, rtol=1e-4)
    assert ends.max() <= 100
    unknown = result.assign(best_accuracy=result["best_accuracy"] * np.nan)
    assert bounds[1] not in set(data(charts(unknown)["accuracy"])["order"])


def test_charts_name_every_head(result):
    heads = tuple(result.attrs["heads_per_layer"])
    removable = ["{}-{}".format(*head) for head in removable_heads(heads)]
    drawn = charts(result)
    frames = [data(drawn[name]) for name in ("heads", "heads_others")]
    assert sum(frame["order"].nunique() for frame in frames) == len(views.scored_orders(result))
    for frame in frames:
        for _, panel in frame.groupby("order"):
            assert panel["name"].tolist() == removable
    bars = data(drawn["scores"])
    names = bars["layer"].str.removeprefix("layer ") + "-" + bars["head"].astype(str)
    assert set(names) == {f"{la}-{h}" for la, c in enumerate(heads, 1) for h in range(1, c + 1)}
    assert "theory N=10, T=0.5" in set(bars["order"])
    trained = bars[bars["order"].str.startswith("trained")]["score"]
    scores = result["score"].sel(order="trained").values
    np.testing.assert_allclose(trained, scores[~np.isnan(scores)], rtol=1e-4)


def test_the_grid_shows_both_correlations_over_widths_and_temperatures(result):
    frame = data(charts(result)["theory_grid"]).set_index(["panel", "temperature"])
    assert frame.columns.tolist() == ["10", "30", "100"]
    shown = {
        "accuracy lost": result["theory_correlation"].sel(test_set="omniglot"),
        "scores at N = 10, T = 0.5": result["theory_agreement"].sel(
            width_dual=10, temperature_dual=0.5
        ),
    }
    for panel, expected in shown.items():
        expected = expected.transpose("temperature", "width")
        np.testing.assert_allclose(frame.loc[panel], expected, rtol=1e-4)
    (table,) = tables(result, "grid")
    assert table.headings == ["N", "T = 0.05", "T = 0.5"]
    single = result.isel(width=[0], temperature=[0])
    with pytest.raises(NothingToPlot, match="a single point"):
        charts(single)["theory_grid"].draw()
