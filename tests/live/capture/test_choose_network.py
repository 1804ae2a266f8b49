"""Width, temperature and scale chosen from captured training examples."""

import dataclasses

import numpy as np
import pytest

import pathkernel_core as pk

pytest.importorskip("torch")
from pathkernel_capture.captured import Captured
from pathkernel_capture.network_choice import choose_network

MEMBERS = (((1, 1), (1, 2), (1, 3)),)
GRID = {"widths": (2, 10, 100), "temperatures": (0.1, 0.01, 1.0), "scales": (0.5, 5.0)}


@pytest.fixture(scope="module")
def train():
    """Forty examples along three paths, of which the first tells the label."""
    generator = np.random.default_rng(5)
    xi = generator.normal(2.0, 3.0, size=(40, 3, 6))
    labels = np.sign(xi[:, 0, 0] - 2.0 + generator.normal(size=40))
    return Captured(xi, labels, MEMBERS, means=np.full((1, 6), 2.0), deviations=np.array([3.0]))


@pytest.fixture(scope="module")
def choice(train):
    return choose_network(train, **GRID)


def test_evidence_decides(train, choice):
    limits = choice.table[np.isinf(choice.table["width"])]
    finite = choice.table[np.isfinite(choice.table["width"])]
    assert (len(limits), len(finite)) == (6, 6)
    assert choice.scale == limits.loc[limits["log_evidence"].idxmax(), "scale"]
    assert set(finite["scale"]) == {choice.scale}
    best = finite.loc[finite["log_evidence"].idxmax()]
    assert (choice.width, choice.temperature) == tuple(best[["width", "temperature"]])
    scaled = train.scale_tokens(choice.scale)
    np.testing.assert_array_equal(choice.train.xi, scaled.xi)
    solution = pk.minimise_action(
        pk.Problem(scaled.xi, scaled.labels), pk.Network((3,), choice.width), choice.temperature
    )
    assert choice.solution.action == pytest.approx(solution.action, abs=1e-8)
    assert best["log_evidence"] == pytest.approx(solution.log_evidence, rel=1e-6)
    left_out = pk.leave_one_out(solution, scaled.xi, scaled.labels)
    assert best["squared_error"] == pytest.approx(left_out.squared_error, rel=1e-4)


def test_widths_below_the_number_of_paths_are_skipped(train, choice):
    assert set(choice.table["width"]) == {10, 100, np.inf}
    assert choice.table["log_evidence"].notna().all()
    with pytest.raises(
        ValueError, match="none of the widths 1, 2: with 3 paths and 1 outputs give widths"
    ):
        choose_network(train, **GRID | {"widths": (1, 2)})


def test_edges_of_the_grid_are_named(train, choice):
    wider = {
        "widths": (choice.width,),
        "temperatures": (choice.temperature / 1e4, choice.temperature, choice.temperature * 1e4),
        "scales": (choice.scale,),
    }
    assert choose_network(train, **wider).edges == ()
    assert choose_network(train, **wider | {"temperatures": (1e3, 1e4)}).edges == ("temperature",)


def test_the_scale_is_chosen_by_its_best_temperature(train):
    grid = {"widths": (10,), "temperatures": (0.1, 1.0, 10.0), "scales": (0.1, 0.3, 1.0)}
    choice = choose_network(train, **grid)
    limits = choice.table[np.isinf(choice.table["width"])]
    evidence = limits.pivot(index="scale", columns="temperature", values="log_evidence")
    assert choice.scale == evidence.max(axis=1).idxmax() == 0.3
    # no single temperature, nor their mean, would choose the same
    assert evidence[0.1].idxmax() == evidence.mean(axis=1).idxmax() == 1.0
    assert evidence[10.0].idxmax() == 0.1


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_width_below_twice_the_smallest_possible_is_no_lower_edge(train, outputs):
    smallest = 3 * outputs
    if outputs == 2:
        train = dataclasses.replace(train, labels=np.stack([train.labels, -train.labels], axis=1))
    for width, edges in ((2 * smallest - 0.5, ()), (2 * smallest, ("width",))):
        grid = {"widths": (smallest - 1, width, 1000), "temperatures": (1.0,), "scales": (0.3,)}
        choice = choose_network(train, **grid)
        assert (choice.width, choice.edges) == (width, edges)


def test_several_outputs(train):
    labels = np.stack([train.labels, -train.labels], axis=1)
    few = {"widths": (10,), "temperatures": (0.1,), "scales": (1.0,)}
    choice = choose_network(dataclasses.replace(train, labels=labels), **few)
    assert choice.solution.network.outputs == 2
    with pytest.raises(ValueError, match="2 outputs give widths of at least 6"):
        choose_network(dataclasses.replace(train, labels=labels), **few | {"widths": (5,)})


def test_progress_counts_combinations(train):
    seen = []
    choose_network(train, **GRID | {"widths": (10,)}, report=seen.append)
    assert [step.done for step in seen] == list(range(10))
    assert {step.total for step in seen} == {9}


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"labels": None}, {}, "train needs labels"),
        ({}, {"widths": ()}, "must each hold at least one value"),
        ({"skips": True}, {}, "captured with skips; give skips=, their strengths"),
        ({}, {"scales": (1, -1)}, "each of scales must be"),
    ],
)
def test_wrong_arguments_are_named(train, changed, options, message):
    with pytest.raises(ValueError, match=message):
        choose_network(dataclasses.replace(train, **changed), **GRID | options)


def test_scale_stands_for_the_prior_variance_of_classes(train):
    """The curve of the evidence along the scale is that along the variance of the same tokens."""
    classes = np.digitize(train.xi[:, 0, 0], [0.0, 3.0])
    captured = dataclasses.replace(train, labels=classes)
    grid = {"widths": (10, 100), "scales": (0.3, 1.0, 3.0, 10.0)}
    choice = choose_network(captured, likelihood="softmax", **grid)
    assert np.isnan(choice.temperature)
    assert set(choice.table) == {"scale", "width", "log_evidence"}
    limits = choice.table[np.isinf(choice.table["width"])].set_index("scale")["log_evidence"]
    assert choice.scale == limits.idxmax()
    unit = captured.scale_tokens(1.0)
    problem = pk.Problem(unit.xi, classes, likelihood="softmax")
    variances = np.square(grid["scales"])
    curve = pk.choose_variance(problem, pk.Network((3,), 100, outputs=3), variances=variances)
    np.testing.assert_allclose(limits, curve.log_evidence_gp, rtol=1e-9)
    with pytest.raises(ValueError, match="temperature must be left out"):
        choose_network(captured, likelihood="softmax", temperatures=(0.1,), **grid)
