"""Quantities: a study computes what it declares, and analyses return what they declare."""

from __future__ import annotations

import numpy as np
import pytest
from noisy_task import Noisy
from small_task import Small
from test_analyses import Trace, run

import pathkernel_core as pk
from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_datasets.errors import AnalysisError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import POINT, Study
from pathkernel_datasets.variables.quantities import (
    REFERENCE,
    STATUS_CODES,
    data_values,
    declare_quantities,
    point_values,
    predicted_values,
    reference_values,
)

NUMPY = array_library("numpy", "float64")


class Labels(Trace):
    name = "labels"
    scope = "data"
    variables = (Variable("first_label", ("output",), "first training label"),)

    def compute(self, situation):
        return {"first_label": situation.labels[0]}


def prepared(task, **settings):
    study = Study(task, widths=(50,), temperatures=(0.5,), seeds=(1,), **settings)
    return prepare_data(study, 1, NUMPY)


def computed(data, analyses=()):
    """Values by grid: of a seed, of a point, of the limits at a temperature."""
    problem = pk.Problem(data.xi, data.labels)
    solution = pk.minimise_action(problem, data.network, 0.5)
    return {
        ("seed",): data_values(data, analyses),
        POINT: point_values(data, solution, analyses),
        REFERENCE: reference_values(data, problem, 0.5, analyses),
    }


@pytest.mark.parametrize("skips", [None, 0.5])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("task", [Small, Noisy])
def test_values_are_those_that_are_declared(task, outputs, skips):
    data = prepared(task(outputs=outputs), skips=skips)
    analyses = (Trace(), Labels())
    quantities = declare_quantities(data, analyses)
    of_grids = computed(data, analyses)
    assert [quantity.name for quantity in quantities if quantity.name.startswith("trace")] == [
        "trace",
        "trace_gp",
    ]
    for grid, values in of_grids.items():
        own_dims = {
            quantity.name: quantity.dims[len(grid) :]
            for quantity in quantities
            if grid == tuple(dim for dim in quantity.dims if dim in POINT)
        }
        assert own_dims.keys() == values.keys()
        for name, dims in own_dims.items():
            assert np.ndim(values[name]) == len(dims), name
            assert outputs > 1 or "output" not in dims, name


def test_each_kind_of_labels_has_its_measures():
    names = {
        task: {quantity.name for quantity in declare_quantities(prepared(task()), ())}
        for task in (Small, Noisy)
    }
    assert names[Small] - names[Noisy] == {"accuracy", "accuracy_gp", "accuracy_sub_network"}
    assert "mean_squared_error_validation_sub_network" in names[Noisy]
    assert "predictor_variance" in names[Noisy]
    assert not {"predictor_variance_gp", "skip_score"} & names[Noisy]


def test_whole_numbers_are_declared_as_such():
    dtypes = {
        quantity.name: quantity.dtype for quantity in declare_quantities(prepared(Small()), ())
    }
    whole = {name for name, dtype in dtypes.items() if dtype != "float64"}
    flags = {"status", "reference_done", "data_done"}
    assert whole == {*flags, "evaluations", "single_evaluations", "minima"}


def test_where_nothing_is_found_there_are_flags_alone(monkeypatch):
    data = prepared(Small())
    assert point_values(data, None, ()) == {"status": STATUS_CODES["not_positive_definite"]}
    problem = pk.Problem(data.xi, data.labels)

    def failing(self, paths):  # of a sub-network; the whole network has a limit
        raise NotPositiveDefiniteError("no Cholesky factor")

    monkeypatch.setattr(pk.Problem, "keep_paths", failing)
    assert reference_values(data, problem, 0.5, ()) == {"reference_done": 1}


def test_variances_of_classes_are_stored_if_they_are_given():
    """By the next order, which has them."""
    data = prepared(Small())
    means = [np.asarray(labels) for _, labels in data.test_sets.values()]
    assert predicted_values(data, means, [], 0.5).keys() == {"accuracy", "predictor_mean"}
    values = predicted_values(data, means, means, 0.5)
    assert values.keys() == {"accuracy", "predictor_mean", "predictor_variance"}
    assert values["accuracy"].tolist() == [1.0, 1.0]


class Forgetting(Trace):
    variables = (*Trace.variables, Variable("rank", (), "rank of the order parameter"))


class Undeclared(Trace):
    def compute(self, situation):
        return super().compute(situation) | {"rank": 2}


class FlatLabel(Labels):
    def compute(self, situation):
        return {"first_label": 1.0}


class ComplexTrace(Trace):
    def compute(self, situation):
        return {name: value + 0j for name, value in super().compute(situation).items()}


class Worded(Trace):
    def compute(self, situation):
        return {name: "two" for name in super().compute(situation)}


class Unstable(Trace):
    """Fails as a limit may."""

    def compute(self, situation):
        raise NotPositiveDefiniteError("no Cholesky factor")


class Misplaced(Trace):
    scope = "point"


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        (Forgetting, "'trace' declares 'rank', but returned no such value"),
        (Undeclared, r"'trace' returned 'rank' of shape \(\)"),
        (ComplexTrace, "'trace' returned 'trace' of dtype complex128.* return its parts or"),
        (Worded, "'trace' returned 'trace' of dtype <U3, .* real numbers; return numbers"),
        (Misplaced, "'trace' has the scope 'point'"),
    ],
)
def test_mistakes_of_analyses_name_the_variable(tmp_path, analysis, message):
    with pytest.raises(AnalysisError, match=f"analysis {message}"):
        run(tmp_path / "a", analysis())


def test_dimensions_of_outputs_are_those_of_the_network(tmp_path):
    several, single = prepared(Small(outputs=2)), prepared(Small())
    assert data_values(several, [Labels()])["first_label"].shape == (2,)
    with pytest.raises(AnalysisError, match=r"'labels' returned 'first_label' of shape \(\)"):
        data_values(several, [FlatLabel()])
    assert data_values(single, [FlatLabel()])["first_label"] == 1
    run(tmp_path / "a", FlatLabel())
    assert open_study(tmp_path / "a")["first_label"].dims == ("seed",)


def test_an_analysis_that_fails_is_no_limit_that_fails():
    data = prepared(Small())
    problem = pk.Problem(data.xi, data.labels)
    with pytest.raises(AnalysisError, match="failed: NotPositiveDefiniteError"):
        reference_values(data, problem, 0.5, [Unstable()])
