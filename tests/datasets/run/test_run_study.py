"""Studies: what a folder holds is what the core computes; bad studies are refused."""

from __future__ import annotations

import json
import warnings
import weakref

import numpy as np
import pytest
import xarray as xr
import zarr
from small_task import Small

import pathkernel_core as pk
from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.action import continuation
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.study import prepared
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.variables.quantities import STATUS_CODES


def run(path, task=None, **settings):
    study = Study(task or Small(), seeds=(3, 4), **settings)
    return compute_study(study, path, analyses=pathkernel_analyses())


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    path = tmp_path_factory.mktemp("complete") / "small"
    assert run(path) == 8
    return path


@pytest.fixture(scope="module")
def whole(complete):
    """What it holds."""
    return open_study(complete).load()


def recompute(seed, temperature, width, task=None):
    task = task or Small()
    realisation = task.realise(seed)
    tests = {
        name: (pk.attentioned_inputs(examples.inputs, realisation.layers, "mean"), examples.labels)
        for name, examples in realisation.test_sets.items()
    }
    xi = pk.attentioned_inputs(realisation.train.inputs, realisation.layers, "mean")
    problem = pk.Problem(xi, realisation.train.labels)
    network = pk.Network((2, 3), width, 1.3, outputs=task.outputs)
    return problem, network, tests, pk.minimise_action(problem, network, temperature)


def test_a_run_holds_the_data_of_one_seed(tmp_path, monkeypatch):
    """Those of the first seed too, which are drawn to compare the study with its folder."""
    realise, drawn, in_memory = Small.realise, [], []

    def realise_and_count(task, seed):
        in_memory.append(sum(reference() is not None for reference in drawn))
        realisation = realise(task, seed)
        drawn.append(weakref.ref(realisation.train.inputs))
        return realisation

    monkeypatch.setattr(Small, "realise", realise_and_count)
    sweep = {"variance": (1.0, 2.0)}
    study = Study(Small(), widths=(5,), temperatures=(1.0,), seeds=(3, 4, 5), sweep=sweep)
    compute_study(study, tmp_path / "variances", analyses=[])
    # the values of an option that is not of the task share their first seed until its last use
    assert in_memory == [0, 1, 1, 0, 0]


def test_the_dataset_holds_what_the_core_computes(whole):
    for seed in (3, 4):
        for temperature in (0.1, 1.0):
            for width in (5, 50):
                point = whole.sel(seed=seed, temperature=temperature, width=width)
                problem, network, tests, solution = recompute(seed, temperature, width)
                np.testing.assert_allclose(
                    point.order_parameter, solution.order_parameter, atol=1e-6
                )  # another start, the same minimum
                np.testing.assert_allclose(point.action, solution.action)
                np.testing.assert_allclose(point.entropy + point.energy, point.action)
                np.testing.assert_allclose(point.log_evidence, solution.log_evidence)
                gp = pk.gp_limit(problem, network, temperature)
                kept = [0, 1]  # head 1 of layer 1 with heads 1 and 2 of layer 2
                part = pk.gp_limit(
                    problem.keep_paths(kept), pk.Network((1, 2), width, 1.3), temperature
                )
                for name, (xi, labels) in tests.items():
                    here = point.sel(test_set=name)
                    prediction = solution.predict(xi)
                    count = len(labels)
                    np.testing.assert_allclose(
                        here.predictor_mean[:count], prediction.mean, atol=1e-6
                    )
                    assert np.isnan(here.predictor_mean[count:]).all()
                    np.testing.assert_array_equal(here.test_label[:count], labels)
                    assert here.accuracy == pk.accuracy(prediction.mean, labels)
                    assert here.accuracy_gp == pk.accuracy(gp.predict(xi).mean, labels)
                    expected = pk.accuracy(part.predict(xi[:, kept]).mean, labels)
                    assert here.accuracy_sub_network.sel(sub_network="first heads") == expected


def test_dataset_explains_itself(complete):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = xr.open_zarr(complete / "study.zarr")
    for name, variable in dataset.variables.items():
        assert len(variable.attrs["long_name"]) > len(name), name
        assert len(set(variable.dims)) == len(variable.dims), name
        if name in dataset.data_vars:
            assert "units" in variable.attrs, name
    assert list(dataset.path.values) == ["1-1", "1-2", "1-3", "2-1", "2-2", "2-3"]
    assert list(dataset.path_layer_2.values) == [1, 2, 3, 1, 2, 3]
    assert list(dataset.test_set.values) == ["long", "short"]
    assert dataset.attrs["heads_per_layer"] == [2, 3]
    assert dataset.attrs["backend"] == "numpy"
    assert json.loads(dataset.attrs["study"])["options"] == {"examples": 12, "outputs": 1}
    assert (dataset.status == STATUS_CODES["converged"]).all()
    meanings = dataset.status.attrs["flag_meanings"].split()
    assert meanings[dataset.status.attrs["flag_values"].index(1)] == "converged"


def test_analyses_are_stored_for_networks_and_their_limit(whole):
    assert whole.head_score.dims == ("seed", "temperature", "width", "head")
    assert list(whole["head"].values) == ["1-1", "1-2", "2-1", "2-2", "2-3"]
    assert list(whole["layer"].values) == [1, 1, 2, 2, 2]
    assert list(whole["number"].values) == [1, 2, 1, 2, 3]
    assert whole.head_score.max("head").values == pytest.approx(1)
    assert (whole.head_score_gp > 0).all()
    assert ((whole.alignment_gp**2).sum("component") <= 1 + 1e-12).all()
    kernel = whole.same_path_kernel.isel(seed=0, path=0).values
    np.testing.assert_allclose(kernel, kernel.T)
    assert (np.diff(whole.train_label.values) <= 0).all()


def test_total_kernels_are_sums_over_pairs_of_paths(whole):
    """Eq. 10 pair by pair, on the examples in the order of their labels."""
    study = whole.isel(seed=0, temperature=1)
    realisation = Small().realise(3)
    xi = pk.attentioned_inputs(realisation.train.inputs, realisation.layers, "mean")
    xi = xi[np.argsort(-realisation.train.labels, kind="stable")]
    paths, variance = xi.shape[1], Small.variances
    pairs = np.array([[pk.path_kernel(xi, xi, p, q) for q in range(paths)] for p in range(paths)])
    weights = study.order_parameter.isel(width=1).values
    expected = variance / paths * np.einsum("pq,pqmn->mn", weights, pairs)
    np.testing.assert_allclose(study.total_kernel.isel(width=1), expected, rtol=1e-10)
    limit = variance**4 / paths * np.einsum("ppmn->mn", pairs)  # σ² of V⁰, two layers, readout
    np.testing.assert_allclose(study.total_kernel_gp, limit, rtol=1e-10)


def test_several_outputs(tmp_path):
    path = tmp_path / "three"
    task = Small(outputs=3)
    run(path, task, widths=(20,), temperatures=(0.5,))
    dataset = open_study(path).load()
    point = dataset.isel(seed=0, temperature=0, width=0)
    assert point.order_parameter.dims == ("path", "output", "path_dual", "output_dual")
    *_, solution = recompute(3, 0.5, 20, task)
    np.testing.assert_allclose(
        point.order_parameter.values.reshape(18, 18), solution.order_parameter
    )
    assert point.predictor_mean.dims == ("test_set", "example", "output")
    assert ((point.accuracy >= 0) & (point.accuracy <= 1)).all()


def test_other_data_behind_the_same_options_is_another_study(complete):
    class Other(Small):
        def provenance(self):
            return {"file": "other"}

    with pytest.raises(StudyError, match="provenance"):
        run(complete, Other())


def test_failed_factorisation_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch):
    solver = continuation.solver

    def failing(descend, start, starts):
        if descend.action.network.width == 5:
            raise pk.NotPositiveDefiniteError("no")
        return (yield from solver(descend, start, starts))

    monkeypatch.setattr(continuation, "solver", failing)
    path = tmp_path / "small"
    run(path)
    dataset = open_study(path).load()
    assert (dataset.status.sel(width=5) == STATUS_CODES["not_positive_definite"]).all()
    assert np.isnan(dataset.action.sel(width=5)).all()
    assert (dataset.status.sel(width=50) == STATUS_CODES["converged"]).all()


def test_unconverged_points_are_marked(tmp_path, monkeypatch):
    descender = continuation.descender

    def impatient(problem, network, temperature, tolerance, max_evaluations, *rest):
        return descender(problem, network, temperature, tolerance, 2, *rest)

    monkeypatch.setattr(continuation, "descender", impatient)
    path = tmp_path / "small"
    run(path)
    assert (open_study(path).status == STATUS_CODES["max_evaluations"]).all()


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "small"
    zarr.open_group(path, mode="w", attributes={"mine": 1})
    files = sorted(path.rglob("*"))
    for use in (run, open_study):
        with pytest.raises(StudyError, match="no folder of a study"):
            use(path)
    assert files == sorted(path.rglob("*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widths": ()}, "widths must hold"),
        ({"widths": (5, 5)}, "widths holds a value twice"),
        ({"widths": (0,)}, "widths must be positive"),
        ({"widths": (float("nan"),)}, "widths must be positive"),
        ({"temperatures": (-1.0,)}, "temperatures must be positive"),
        ({"seeds": (-1,)}, "each of seeds must be at least 0 and below 2\\^63, but is -1"),
    ],
)
def test_bad_grids_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Study(Small(), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "nunpy"}, "Did you mean 'numpy'"),
        ({"dtype": "float46"}, "Did you mean 'float64'"),
    ],
)
def test_unknown_backends_suggest_the_nearest(tmp_path, settings, message):
    with pytest.raises(LookupError, match=message):
        run(tmp_path / "small", **settings)


def test_missing_backend_names_the_command(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(prepared.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'pip install "pathkernel\[jax\]"'):
        run(tmp_path / "small", backend="jax")


@pytest.mark.backend
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_array_libraries_fill_the_same_dataset(tmp_path, whole, backend):
    pytest.importorskip(backend)
    path = tmp_path / "small"
    run(path, backend=backend)
    mine, theirs = open_study(path).load(), whole
    for name in ("action", "order_parameter", "predictor_mean", "alignment", "head_score_gp"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6, atol=1e-7, err_msg=name)


def test_float32_is_computed_and_recorded(tmp_path, whole):
    path = tmp_path / "small"
    run(path, dtype="float32")
    mine, reference = open_study(path).load(), whole
    assert mine.attrs["dtype"] == "float32"
    assert (mine.status == STATUS_CODES["converged"]).all()
    np.testing.assert_allclose(mine.action, reference.action, rtol=1e-3)
