"""Analyses of plugins: their mistakes are named, and they do not lock old stores."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr
from small_task import Small

from pathkernel_core.contracts.analysis import Analysis, Variable
from pathkernel_datasets.errors import AnalysisError, StudyError, TaskError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study


class Trace(Analysis):
    name = "trace"
    summary = "Trace of the order parameter"
    variables = (Variable("trace", (), "trace of the order parameter"),)

    def coordinates(self, situation):
        return {}

    def compute(self, situation):
        return {"trace": np.trace(situation.solution.order_parameter)}


class Missing(Trace):
    variables = (Variable("trace", ("nowhere",), "trace"),)


class WrongName(Trace):
    def compute(self, situation):
        return {"track": 1.0}


class WrongShape(Trace):
    def compute(self, situation):
        return {"trace": np.ones(3)}


class Failing(Trace):
    def compute(self, situation):
        return {"trace": 1 / 0}


def run(path, *analyses, **settings):
    study = Study(Small(), widths=(5, 50), temperatures=(1.0,), **settings)
    return run_study(study, path, analyses=analyses)


def test_analysis_is_computed_at_every_point_and_in_the_limit(tmp_path):
    run(tmp_path / "a", Trace())
    dataset = open_study(tmp_path / "a").load()
    diagonal = np.einsum("stwpp->stw", dataset.order_parameter)
    np.testing.assert_allclose(dataset.trace, diagonal)
    assert dataset.trace_gp.dims == ("seed", "temperature")
    np.testing.assert_allclose(dataset.trace_gp, 6 * 1.3**3)


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        (Missing, "declares 'trace' with the dimension 'nowhere'"),
        (WrongName, "returned 'track' of shape"),
        (WrongShape, r"returned 'trace' of shape \(3,\)"),
        (Failing, "failed: ZeroDivisionError"),
    ],
)
def test_mistakes_are_reported_under_the_name_of_the_analysis(tmp_path, analysis, message):
    with pytest.raises(AnalysisError, match=f"analysis 'trace' .*{message}"):
        run(tmp_path / "a", analysis())


class Labelled(Trace):
    """Analysis with an axis of its own, whose labels and descriptions are given."""

    def __init__(self, labels=(0, 1), units="1", meaning="place", long_name="trace"):
        self.variables = (Variable("trace", ("place",), long_name, units),)
        self.labels, self.dimensions = labels, {"place": meaning}

    def coordinates(self, situation):
        return {"place": self.labels}

    def compute(self, situation):
        return {"trace": np.zeros(2)}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"labels": [None, 1]}, "its place holds other labels than texts"),
        ({"labels": [b"a", b"b"]}, "bytes is not JSON"),
        ({"labels": [1j, 2]}, "complex is not JSON"),
        ({"labels": np.array(["2020", "2021"], "M8[Y]")}, "datetime is not JSON"),
        ({"units": 1}, "its variable trace has another attribute units than a text"),
        ({"long_name": None}, "its variable trace has another attribute long_name than a text"),
        ({"meaning": 3}, "its variable place has another attribute long_name than a text"),
        ({"meaning": None}, "its labels place have other attributes than a run writes"),
    ],
)
def test_labels_and_texts_that_could_not_be_read_again_are_refused(tmp_path, given, fault):
    with pytest.raises(AnalysisError, match=rf"'trace' of class {__name__}\.Labelled: .*{fault}"):
        run(tmp_path / "a", Labelled(**given))
    assert list(tmp_path.iterdir()) == []
    assert run(tmp_path / "a", Labelled(labels=[True, False])).place.size == 2


class Growing(Labelled):
    """Analysis that returns another number of values somewhere."""

    def __init__(self, count, scope="solution"):
        super().__init__()
        self.count, self.scope = count, scope

    def compute(self, situation):
        return {"trace": np.zeros(self.count(situation))}


FIRST_INPUT = Small().realise(1).train.inputs[0, 0, 0]


def is_second_seed(situation):
    return situation.realisation.train.inputs[0, 0, 0] == FIRST_INPUT


@pytest.mark.parametrize(
    ("count", "scope", "fault"),
    [
        (
            lambda s: 2 + is_second_seed(s),
            "solution",
            r"seed 1, N = 5.* \(2, 3\), not \(2, 2\) along",
        ),
        (
            lambda s: 2 + is_second_seed(s),
            "data",
            r"seed 1, GP limit.* \(3,\), not \(2,\) along place",
        ),
        (lambda s: 3, "solution", r"seed 0, .* of shape \(2, 3\), not \(2, 2\) along temperature"),
        (
            lambda s: 1 + (s.solution.temperature > 0.5),
            "solution",
            r"seed 0, .* of shapes \(1,\) and \(2,\) at different temperatures",
        ),
        (lambda s: 2 * (s.solution.temperature < 0.5), "solution", r"shapes \(0,\) and \(2,\) at"),
    ],
)
def test_values_without_labels_are_blamed_on_the_analysis(tmp_path, count, scope, fault):
    study = Study(Small(), widths=(5,), temperatures=(0.1, 1.0), seeds=(0, 1))
    with pytest.raises(AnalysisError, match=rf"^analysis 'trace' returned values .*{fault}"):
        run_study(study, tmp_path / "a", analyses=[Growing(count, scope)])


def test_data_of_another_shape_are_blamed_on_the_task(tmp_path, monkeypatch):
    realise = Small.realise

    def longer(self, seed):
        drawn = realise(self, seed)
        sets = dict(drawn.test_sets, long=realise(Small(examples=12), seed).train)
        return dataclasses.replace(drawn, test_sets=sets) if seed else drawn

    monkeypatch.setattr(Small, "realise", longer)
    study = Study(Small(), widths=(5,), temperatures=(1.0,), seeds=(0, 1))
    analysis = Growing(lambda situation: 2 + is_second_seed(situation))
    with pytest.raises(TaskError, match=r"seed 1 of the task 'small' holds .* as many examples as"):
        run_study(study, tmp_path / "a", analyses=[analysis])


def test_plugins_that_come_later_leave_a_store_alone(tmp_path):
    run(tmp_path / "a")
    assert run(tmp_path / "a", Trace()) == 0
    assert "trace" not in open_study(tmp_path / "a")


def test_store_needs_the_analyses_that_it_was_begun_with(tmp_path):
    run(tmp_path / "a", Trace())
    with pytest.raises(StudyError, match="begun with the analysis trace, which is not available"):
        run(tmp_path / "a")


def test_an_empty_folder_can_become_that_of_a_study(tmp_path):
    (tmp_path / "a").mkdir()
    assert run(tmp_path / "a") == 2


def test_differences_between_studies_are_named_one_by_one(tmp_path):
    run(tmp_path / "a")
    other = Study(Small(examples=14), widths=(5, 50), temperatures=(1.0,))
    message = (
        r"\(options, examples: the folder has 12, this run 14\)\. .* own settings to resume it"
    )
    with pytest.raises(StudyError, match=message):
        run_study(other, tmp_path / "a")


def test_results_of_code_that_has_changed_are_refused(tmp_path, monkeypatch):
    """The same task with the same options draws something else now."""
    run(tmp_path / "a")
    realise = Small.realise

    def changed(self, seed):
        realisation = realise(self, seed)
        inputs = realisation.train.inputs.copy()
        inputs[3, 1] *= 1.01
        return dataclasses.replace(
            realisation, train=dataclasses.replace(realisation.train, inputs=inputs)
        )

    monkeypatch.setattr(Small, "realise", changed)
    with pytest.raises(StudyError, match=r"its code or a file has changed: training inputs\)") as e:
        run(tmp_path / "a")
    assert "own settings" not in str(e.value)
    monkeypatch.setattr(Small, "realise", realise)
    assert run(tmp_path / "a") == 0


class Taken(Trace):
    variables = (Variable("accuracy", (), "trace, under a name that the study has"),)


def test_a_name_that_the_study_has_is_refused(tmp_path):
    with pytest.raises(StudyError, match="two variables named accuracy"):
        run(tmp_path / "a", Taken())
    assert list(tmp_path.iterdir()) == []


def arrays_of(situation):
    """Arrays that an analysis sees, by name."""
    arrays = {"xi": situation.xi, "labels": situation.labels}
    realisation, solution = situation.realisation, situation.solution
    for name, examples in realisation.example_sets().items():
        arrays |= {f"{name} inputs": examples.inputs, f"{name} labels": examples.labels}
    for number, layer in enumerate(realisation.layers):
        arrays |= {f"queries {number}": layer.queries, f"keys {number}": layer.keys}
    arrays["order parameter"] = solution.order_parameter
    for number, factor in enumerate(solution.factors):
        arrays |= {f"factor {number}": factor, f"U {number}": solution.order_parameters[number]}
    return arrays | {"history": solution.action_history, "norms": solution.gradient_history}


class Writing(Trace):
    """Analysis that tries to write into every array, and notes where it could."""

    def __init__(self):
        self.written, self.tried = [], set()

    def compute(self, situation):
        for name, array in arrays_of(situation).items():
            self.tried.add(name)
            try:
                array *= 2
            except ValueError:
                continue
            self.written.append(name)
        return super().compute(situation)


def test_no_array_that_an_analysis_sees_can_be_written(tmp_path):
    analysis, without = Writing(), run(tmp_path / "a").load()
    dataset = run(tmp_path / "b", analysis).load()
    assert analysis.written == []
    assert {"xi", "long inputs", "keys 1", "order parameter", "factor 2"} <= analysis.tried
    for name in without:
        xr.testing.assert_identical(dataset[name], without[name])


def test_a_write_is_reported_under_the_name_of_the_analysis(tmp_path):
    class Careless(Trace):
        def compute(self, situation):
            np.sort(situation.xi)  # a copy
            situation.solution.order_parameter.sort()

    with pytest.raises(AnalysisError, match=r"analysis 'trace' failed: ValueError: .*read-only"):
        run(tmp_path / "a", Careless())
