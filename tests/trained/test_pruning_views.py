"""Views of comparisons that are not of the usual 8 heads."""

import io

import numpy as np
import pandas as pd
import pytest
import rich.console
import xarray as xr

from pathkernel_core.paths.heads import every_head, head_label
from pathkernel_core.prediction.removed_heads import PREDICTIONS
from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_pruning.heads.order_views import order_views
from pathkernel_pruning.heads.orders import compare_orders, orders_of, removed_heads
from pathkernel_pruning.heads.score_table import MEANINGS, describe_orders
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs
from pathkernel_trained.pruning_variables import PRUNING_VARIABLES
from pathkernel_trained.pruning_views import pruning_views
from pathkernel_trained.scores import SCORES, path_gradient_scores
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.table import Table

EXAMPLES = 60
TEST_SETS = ("omniglot", "fashion-mnist", "mnist")


def comparison(heads):
    """A comparison of all kinds of orders on made-up path outputs, two of them of draws."""
    generator = np.random.default_rng(0)
    labels = np.repeat([1.0, -1.0], EXAMPLES // 2)

    def outputs():
        values = generator.normal(size=(EXAMPLES, np.prod(heads))) + 0.2 * labels[:, None]
        return PathOutputs(heads, values, labels)

    sets = {name: outputs() for name in ("validation", *TEST_SETS)}
    names = ("theory N=10", "theory N=100", "sampled N=10", *PREDICTIONS, "trained", "magnitude")
    values = {name: generator.random(sum(heads)) for name in names}
    for name, normalised in (("gradient", True), ("raw-gradient", False)):
        values[name] = path_gradient_scores(sets["validation"], normalised=normalised)
    needs = dict.fromkeys(("trained", "magnitude"), "weights")
    scores = {
        name: scores_by_head(every_head(heads), score, needs=needs.get(name, "theory"))
        for name, score in values.items()
    }
    options = {"shapley": "exact", "greedy": 1, "best_of": 200, "random": 3, "resamples": 20}
    result = compare_orders(
        PathEvaluator(sets), scores, "validation", TEST_SETS, best=sum(heads) < 9, **options
    )
    orders = result.sizes["order"]
    drop = np.stack([result["lost"].squeeze("draw") * factor for factor in (1, -1, 0.5)])
    grid = {"temperature": [0.05, 0.5], "width": [10.0, 30.0, 100.0]}
    of_theory = PRUNING_VARIABLES.dataset(
        {
            "theory_accuracy": [0.81, 0.82, 0.83],
            "theory_drop": drop,
            "theory_drop_error": np.full_like(drop, 0.012),
            "theory_correlation": generator.uniform(-1, 1, (2, 3, len(TEST_SETS))),
            "theory_agreement": generator.uniform(-1, 1, (2, 3)),
        },
        {
            "order_width": np.full(orders, 10.0),
            "order_temperature": np.full(orders, 0.5),
            "prediction": PREDICTIONS,
            **grid,
        },
        heads,
    )
    result = xr.merge([result, of_theory], join="exact", compat="equals", combine_attrs="override")
    return result.assign_attrs(chance=0.5)


@pytest.fixture(scope="module", params=[(3, 2, 1), (6, 6)], ids=["3-2-1", "6-6"])
def result(request):
    return comparison(request.param)


def removable_labels(result):
    """Labels of the heads that share their layer with another."""
    heads = result.attrs["heads_per_layer"]
    return [head_label(head) for head in every_head(heads) if heads[head[0] - 1] > 1]


@pytest.fixture(scope="module")
def views(result):
    return list(pruning_views(result))


def tables(views, name):
    """Tables of a name, first those of the page."""
    return [view for view in views if isinstance(view, Table) and view.name == name]


def charts(views):
    return {view.name: view for view in views if isinstance(view, Chart)}


def data(chart):
    """What a chart shows, as a frame."""
    drawn = chart.draw()
    drawn.to_dict()  # which validates it
    return pd.read_csv(io.StringIO(drawn.data.values))


def test_a_page_is_shown_and_the_rest_on_request(result, are_documented, views):
    every = views
    page = [view.name for view in every if isinstance(view, Table) and not view.detail]
    assert page == ["summary"]
    shown = [view.name for view in every if isinstance(view, Chart) and not view.detail]
    assert shown == ["removed", "single_heads", "scores", "theory_grid"]
    written = [view.as_json("pruning") for view in every if isinstance(view, Table)]
    assert are_documented(written)
    rows = dict.fromkeys(("removed", "differences", "rank_correlations"), 0)
    for table in written:
        if table["name"] in rows:
            rows[table["name"]] += len(table["rows"])
    orders, removed, sets = (result.sizes[name] for name in ("order", "removed", "test_set"))
    bounds = 3 if "best_measured" in result else 2
    assert rows["removed"] == (orders + bounds) * removed * sets
    assert rows["differences"] == 2 * (orders - 1) * (removed - 1) * sets
    assert rows["rank_correlations"] == 2 * (orders - 2) * sets


def test_tables_hold_every_head_that_exists(result, views):
    removable = removable_labels(result)
    scored = [name for name in orders_of(result) if not name.startswith("best-of")]
    for number, name in enumerate(TEST_SETS):
        parts = tables(views, "single_heads")[3 * number : 3 * number + 3]
        assert [heading for table in parts for heading in table.headings[2:]] == scored
        for table in parts:
            assert name in table.title
            assert [row[0] for row in table.rows] == removable
        lost = result["lost"].sel(test_set=name, head="1-2", draw=1).item()
        assert parts[0].rows[1][1].split(" ± ")[0] == f"{lost:.4f}"
        table = tables(views, "theory_losses")[number]
        assert [row[0] for row in table.rows] == removable
        shown = [float(cell.split(" ± ")[0]) for cell in table.rows[1][1:]]
        np.testing.assert_allclose(shown, 100 * lost * np.array([1, 1, -1, 0.5]), atol=0.051)
        assert "silenced 1.00, restricted -1.00, re-equilibrated 1.00" in table.caption


def test_values_and_differences_stand_at_every_number_of_heads(result, views):
    counts = [str(count) for count in result["removed"].values]
    for name, table in zip(TEST_SETS, tables(views, "removed"), strict=True):
        assert table.headings[1:] == counts
        rows = {row[0]: row[1:] for row in table.rows}
        part = result.sel(test_set=name).squeeze()
        for order in part["order"].values:
            cells = [cell.split(" ")[0] for cell in rows[str(order)]]
            assert cells == [f"{value:.3f}" for value in part["measured"].sel(order=order).values]
        values = part["random_measured"].sel(removed=1).values
        assert rows["random, 97.5 %"][1] == f"{np.quantile(values, 0.975):.3f}"
        assert ("best set of all" in rows) == ("best_measured" in result)
    ends = result["difference_interval"].sel(order="greedy", test_set=TEST_SETS[1]).squeeze()
    for reference, name in zip(result["reference"].values, ("theory N=10", "random orders")):
        (table,) = (
            parts for parts in tables(views, "differences") if f"that of {name}" in parts.title
        )
        row = next(row for row in table.rows if row[:2] == ["greedy", TEST_SETS[1]])
        low, high = ends.sel(reference=reference, removed=1).values
        assert row[2].endswith(f"[{low:+.3f}, {high:+.3f}]")


def test_correlations_have_both_intervals(result, views):
    table, *_ = tables(views, "rank_correlations")
    row = next(row for row in table.rows if row[0] == "trained")
    values = result.sel(order="trained", test_set="omniglot")
    assert row[1] == f"{values['rank_correlation'].item():+.2f}"
    low, high = values["rank_correlation_interval"].sel(resampled="heads").values
    assert row[3] == f"[{low:+.2f}, {high:+.2f}]"


def test_the_orders_name_heads_that_stay(result, views):
    (table,) = tables(views, "orders")
    assert [row[0] for row in table.rows] == orders_of(result)
    rows = {row[0]: row for row in table.rows}
    removed = [head_label(head) for head in removed_heads(result, "trained")]
    assert rows["trained"][1].split() == removed
    assert not set(rows["trained"][2].split()) & set(removed)


def test_orders_that_lost_least_are_named_with_their_ties(result):
    *_, advice = (view for view in order_views(result) if isinstance(view, str))
    measured = result["measured"].sel(test_set="omniglot").squeeze()
    lost = (measured[:, 0] - measured[:, 1:]).mean("removed")
    weights = min(("trained", "magnitude"), key=lambda name: float(lost.sel(order=name)))
    assert f"{weights} ({float(lost.sel(order=weights)):.3f}) with the weights alone" in advice
    assert advice.endswith(f"; {float(lost.sel(order='random')):.3f} at random.")
    poor = result.assign(measured=result["measured"].where(result["test_set"] != "mnist", 0.5))
    *_, warning, _ = (view for view in order_views(poor) if isinstance(view, str))
    assert warning.startswith("Warning: the whole network is no better than chance on mnist (")


def test_curves_of_few_orders_and_all_on_request(result, views):
    main = ["theory N=10", "raw-gradient", "greedy", "best-of 200"]
    bounds = ["random, 95 %", *["best set of all"] * ("best_measured" in result)]
    drawn = charts(views)
    frames = {name: data(drawn[name]) for name in ("removed", "removed_all_mnist")}
    assert list(dict.fromkeys(frames["removed"]["order"])) == [*main, *bounds]
    assert {*frames["removed_all_mnist"]["order"]} == {*orders_of(result), *bounds}
    frame = frames["removed"].set_index(["panel", "order", "removed"]).sort_index()
    part = result.sel(test_set="mnist").squeeze()
    greedy = frame.loc["mnist", "greedy"]
    np.testing.assert_allclose(greedy["measured"], part["measured"].sel(order="greedy"), rtol=1e-4)
    ends = part["random_measured"].quantile([0.025, 0.975], "random_order").T
    random = frame.loc["mnist", bounds[0]][["lower", "upper"]]
    np.testing.assert_allclose(random, ends, rtol=1e-4)


def test_charts_name_every_head(result, views):
    heads = tuple(result.attrs["heads_per_layer"])
    removable = removable_labels(result)
    drawn = charts(views)
    frame = data(drawn["single_heads_all"])
    assert frame["order"].nunique() == len(orders_of(result)) - 1
    assert all(panel["head"].tolist() == removable for _, panel in frame.groupby("order"))
    assert data(drawn["single_heads"])["order"].nunique() == 6
    bars = data(drawn["scores"])
    names = bars["layer"].str.removeprefix("layer ") + "-" + bars["number"].astype(str)
    assert set(names) == {f"{la}-{h}" for la, c in enumerate(heads, 1) for h in range(1, c + 1)}
    assert "theory N=10, T = 0.5" in set(bars["order"])


def test_the_grid_shows_both_correlations_over_widths_and_temperatures(result, views):
    frame = data(charts(views)["theory_grid"]).set_index(["panel", "temperature"])
    assert frame.columns.tolist() == ["10", "30", "100"]
    shown = {
        "with the accuracy lost": result["theory_correlation"].sel(test_set="omniglot"),
        "with the scores at N = 10, T = 0.5": result["theory_agreement"],
    }
    for panel, expected in shown.items():
        expected = expected.transpose("temperature", "width")
        np.testing.assert_allclose(frame.loc[panel], expected, rtol=1e-4)
    single = result.isel(width=[0], temperature=[0])
    with pytest.raises(NothingToPlot, match="a single point"):
        charts(pruning_views(single))["theory_grid"].draw()


def test_the_summary_is_one_screen_and_holds_the_store(result):
    table = next(view for view in order_views(result) if isinstance(view, Table))
    text = io.StringIO()
    rich.console.Console(file=text, width=80).print(table)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30
    measured = result["measured"].sel(test_set="omniglot").squeeze()
    lost = (measured.isel(removed=0) - measured.isel(removed=slice(1, None))).mean("removed")
    rows = {row[0]: row[1:] for row in table.rows}
    best = ["best set of all"] * ("best_measured" in result)
    assert [*rows] == [*orders_of(result), "random", *best]
    counts = [int(heading) for heading in table.headings if heading.isdecimal()]
    assert len(counts) == min(5, result.sizes["removed"] - 1)
    for name in orders_of(result):
        of_order = measured.sel(order=name, removed=counts).values
        assert rows[name][: len(counts)] == [f"{value:.3f}" for value in of_order]
        assert rows[name][len(counts)] == f"{float(lost.sel(order=name)):.3f}"
    assert "average\nlost" in table.headings
    worse = result.assign_coords(quantity=["loss"], better=("quantity", [-1]))
    of_losses = [view for view in order_views(worse) if isinstance(view, Table)]
    assert "average\nrise" in of_losses[0].headings
    titles = [view.title for view in of_losses]
    title = "Rise of the loss on omniglot with one head off, and scores"
    assert any(own.startswith(f"{title} 1 to 5 of ") for own in titles)
    assert len(set(titles)) == len(titles)


def test_every_score_is_explained_and_those_of_users_are_not(result, views):
    assert set(MEANINGS) == {score.name for score in SCORES}
    caption = charts(views)["removed"].caption
    assert f"greedy, {MEANINGS['greedy']}" in caption
    assert MEANINGS["shapley"] not in caption  # which is not drawn
    (table,) = tables(views, "orders")
    assert all(f"{name}, {MEANINGS[name]}" in table.caption for name in ("shapley", "silenced"))
    given = result.assign_coords(needs=("order", [""] * result.sizes["order"]))
    assert describe_orders(given, orders_of(given)) == ""


def test_captions_tell_what_is_drawn(result, views):
    assert "samples" in charts(views)["scores"].caption
    others = [name for name in result["order"].values if not name.startswith("sampled")]
    without = charts(list(pruning_views(result.sel(order=others))))
    assert "samples" not in without["scores"].caption
    assert "and of the trained weights" in without["scores"].caption
    best = "best_measured" in result
    assert ("best set of all" in charts(views)["removed"].caption) == best


def test_a_summary_says_which_numbers_of_heads_it_leaves_out(result, views):
    (summary,) = tables(views, "summary")
    counts = [heading for heading in summary.headings if heading.isdigit()]
    left_out = len(counts) < result.sizes["removed"] - 1
    assert (f"{len(counts)} of " in summary.caption) == left_out
