"""Studies: what a store holds is what the core computes, whatever interrupted it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from pathkernel_datasets.pieces import PieceFiles
from pathkernel_datasets.publishing import publish_groups

import pathkernel_core as pk
from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core import atomic, continuation
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets import computing, publishing
from pathkernel_datasets.errors import StoreError, StoreWarning
from pathkernel_datasets.quantities import STATUS_CODES
from pathkernel_datasets.reading import open_study
from pathkernel_datasets.run_study import compute_study
from pathkernel_datasets.study import Study
from pathkernel_datasets.workers import workers


@dataclass(frozen=True)
class Small(Task):
    """Linear labels on random tokens; layers of 2 and 3 heads, two test sets of unequal size."""

    name: ClassVar[str] = "small"
    summary: ClassVar[str] = "Small synthetic task"
    widths: ClassVar[tuple[float, ...]] = (5, 50)
    temperatures: ClassVar[tuple[float, ...]] = (0.1, 1.0)
    variances: ClassVar[float] = 1.3

    outputs: int = option(1, "network outputs")
    examples: int = option(12, "training examples")

    def realise(self, seed):
        generator = np.random.default_rng(seed)

        def examples(count):
            inputs = generator.standard_normal((count, 4, 3))
            scores = inputs.sum(axis=1) @ teacher
            if self.outputs == 1:
                return Examples(inputs, np.sign(scores[:, 0]))
            largest = scores == scores.max(axis=1, keepdims=True)
            return Examples(inputs, np.where(largest, 1.0, -1.0))

        teacher = generator.standard_normal((3, self.outputs))
        layers = [
            pk.QueryKey(
                generator.standard_normal((heads, 2, 3)), generator.standard_normal((heads, 2, 3))
            )
            for heads in (2, 3)
        ]
        return Realisation(
            layers,
            "mean",
            examples(self.examples),
            {"long": examples(9), "short": examples(5)},
            {"first heads": ((1,), (1, 2))},
        )


def run(path, task=None, **settings):
    study = Study(task or Small(), seeds=(3, 4), **settings)
    return compute_study(study, path, analyses=pathkernel_analyses())


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    path = tmp_path_factory.mktemp("complete") / "small.zarr"
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
    problem = pk.PathKernels(xi, realisation.train.labels)
    network = pk.Network((2, 3), width, 1.3, outputs=task.outputs)
    return problem, network, tests, pk.minimise_action(problem, network, temperature)


def test_store_holds_what_the_core_computes(whole):
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
        dataset = xr.open_zarr(complete)
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
    path = tmp_path / "three.zarr"
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


class Interrupt(Exception):
    """Stands for whatever stops a run."""


def test_an_opened_store_is_edited_in_memory_alone(complete):
    dataset = open_study(complete)
    before = dataset.action.values.copy()
    dataset["action"][0] = np.nan
    assert np.isnan(dataset.action.values[0]).all()
    copied = dataset.copy(deep=True)
    assert np.isnan(copied.action.values[0]).all()
    assert np.array_equal(open_study(complete).action.values, before)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "float32"}, "dtype"),
        ({"task": Small(examples=14)}, "options"),
    ],
)
def test_two_studies_do_not_mix(complete, change, named):
    before = sorted((file, file.stat().st_mtime_ns) for file in complete.rglob("*"))
    with pytest.raises(StoreError, match=f"another study.*{named}"):
        run(complete, **change)
    assert before == sorted((file, file.stat().st_mtime_ns) for file in complete.rglob("*"))


@pytest.mark.parametrize("after", [1, 2, 5])
def test_interrupted_run_resumes_to_the_same_store(tmp_path, whole, monkeypatch, after):
    path = tmp_path / "small.zarr"
    write, calls = PieceFiles.write, []

    def failing(self, name, *given):
        calls.append(name)
        if len(calls) > after:  # the first is the template
            raise Interrupt
        write(self, name, *given)

    with monkeypatch.context() as patch:
        patch.setattr(PieceFiles, "write", failing)
        with pytest.raises(Interrupt):
            run(path)
    assert not path.exists()
    so_far = open_study(path)
    done = int((so_far.status != 0).sum())
    assert done == {1: 0, 2: 0, 5: 4}[after]
    computed = so_far.status != 0
    xr.testing.assert_equal(so_far.action.where(computed), whole.action.where(computed))
    assert run(path) == 8 - done
    xr.testing.assert_identical(open_study(path).load(), whole)
    assert run(path) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [".small.zarr.lock", "small.zarr"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_more_temperatures_leave_what_is_computed_as_it_is(tmp_path, whole, monkeypatch, jobs):
    path, names = tmp_path / "small.zarr", []
    assert run(path, temperatures=(0.1, 3.0)) == 8
    before = open_study(path).load()
    point_values = computing.point_values

    def counted(data, solution, analyses):
        names.append(solution.temperature)
        return point_values(data, solution, analyses)

    monkeypatch.setattr(computing, "point_values", counted)
    study = Study(Small(), temperatures=(0.1, 1.0, 3.0), seeds=(3, 4))
    with workers(jobs) as executor:
        settings = {"analyses": pathkernel_analyses(), "executor": executor}
        assert compute_study(study, path, **settings) == 4
    assert names == ([1.0] * 4 if jobs == 1 else [])
    grown = open_study(path).load()
    xr.testing.assert_equal(grown.sel(temperature=[0.1, 3.0]), before)
    xr.testing.assert_allclose(grown.action.sel(temperature=1.0), whole.action.sel(temperature=1.0))
    assert (grown.status == 1).all()
    assert (grown.reference_done == 1).all()


def test_an_interrupted_run_is_extended_by_temperatures(tmp_path, monkeypatch):
    path = tmp_path / "small.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "consolidate", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(path, temperatures=(0.1,))
    so_far = open_study(path).load()
    assert run(path, temperatures=(0.1, 1.0)) == 4
    xr.testing.assert_equal(open_study(path).sel(temperature=[0.1]).load(), so_far)


def test_a_full_disk_while_publishing_loses_nothing(tmp_path, whole, monkeypatch):
    path = tmp_path / "small.zarr"

    def full(*args, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "consolidate", full)
        with pytest.raises(OSError, match="No space"):
            run(path)
    assert not path.exists()
    xr.testing.assert_identical(open_study(path).load(), whole)
    assert run(path) == 0
    assert path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs two renames")
@pytest.mark.parametrize("after", [False, True])
def test_a_publication_leaves_the_old_store_or_the_new_at_every_moment(
    tmp_path, monkeypatch, after
):
    path = tmp_path / "small.zarr"
    small, large = (Study(Small(), widths, (0.5,), (3,)) for widths in ((10,), (5, 10)))
    compute_study(small, path, analyses=())
    exchange = atomic._exchange

    def killed(source, target):
        if after:
            assert exchange(source, target)
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_exchange", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a signal leaves no time for it
        with pytest.raises(Interrupt):
            compute_study(large, path, analyses=())
    assert xr.open_zarr(path).width.size == 1 + after
    assert open_study(path).width.size == 2, "the pieces are there"
    assert compute_study(large, path, analyses=()) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [".small.zarr.lock", "small.zarr"]
    assert open_study(path).status.values.tolist() == [[[1, 1]]]


def test_where_two_folders_cannot_be_exchanged_the_old_one_is_put_back(tmp_path, monkeypatch):
    path = tmp_path / "small.zarr"
    small, large = (Study(Small(), widths, (0.5,), (3,)) for widths in ((10,), (5, 10)))
    compute_study(small, path, analyses=())
    rename, calls = os.rename, []

    def killed(source, target):
        calls.append(target)
        if len(calls) > 1:  # the old store is out of its place, the new one is not there yet
            raise Interrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_exchange", lambda *folders: False)
        patch.setattr(os, "rename", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a signal leaves no time for it
        with pytest.raises(Interrupt):
            compute_study(large, path, analyses=())
    assert not path.exists()
    assert open_study(path).width.size == 2, "the pieces are there"
    assert compute_study(large, path, analyses=()) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [".small.zarr.lock", "small.zarr"]
    assert open_study(path).status.values.tolist() == [[[1, 1]]]


def test_a_damaged_piece_is_computed_again(tmp_path, whole, monkeypatch):
    path = tmp_path / "small.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "consolidate", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(path)
    files = PieceFiles(path, "study")
    damaged = files.folder / "seed-3_N-5.npz"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.warns(StoreWarning, match=r"the piece .*seed-3_N-5.npz is damaged"):
        assert run(path) == 2
    xr.testing.assert_identical(open_study(path).load(), whole)


def test_a_store_larger_than_memory_is_published_in_regions(tmp_path, whole, monkeypatch):
    for largest in (whole.nbytes // 2 + 1, 1000):
        monkeypatch.setattr(publishing, "_LARGEST_BLOCK", largest)
        monkeypatch.setattr(publishing, "_LARGEST_CHUNK", 1000)
        run(tmp_path / f"{largest}.zarr")
        xr.testing.assert_identical(open_study(tmp_path / f"{largest}.zarr").load(), whole)


def grid_of(dataset):
    return {dim: dataset[dim].values.tolist() for dim in ("seed", "temperature", "width")}


def test_a_store_grows_to_the_one_that_is_computed_at_once(tmp_path, monkeypatch):
    """Nothing again, byte for byte the same, with results beside it."""
    minimised = []

    def counting(problem, network, *given):
        minimised.append(network.width)
        return minimise(problem, network, *given)

    minimise = computing.minimise_from
    monkeypatch.setattr(computing, "minimise_from", counting)
    larger = ((3, 1, 4), (5, 10, 50, 100))
    for name, steps in {"grown": [((3, 4), (10, 100)), larger], "at_once": [larger]}.items():
        path = tmp_path / f"{name}.zarr"
        for seeds, asked in steps:
            before = len(minimised)
            computed = compute_study(Study(Small(), asked, (0.5,), seeds), path, analyses=())
            assert computed == len(minimised) - before
            if not (path / "result").exists():
                publish_groups(path, [("result", xr.Dataset({"number": ("place", np.ones(3))}))])
        assert len(minimised) == 12
        minimised.clear()
    grown, at_once = (
        {file.relative_to(tmp_path / name): file.read_bytes() for file in files if file.is_file()}
        for name in ("grown.zarr", "at_once.zarr")
        for files in [(tmp_path / name).rglob("*")]
    )
    assert grown == at_once
    assert xr.open_zarr(tmp_path / "grown.zarr", group="result", chunks=None).number.sum() == 3
    assert compute_study(Study(Small(), (50,), (0.5,), (4,)), tmp_path / "grown.zarr") == 0


def test_a_store_grows_in_temperatures_and_in_parts_of_both(tmp_path, whole):
    path = tmp_path / "small.zarr"
    analyses = pathkernel_analyses()
    assert compute_study(Study(Small(), (50,), (1.0,), (4,)), path, analyses=analyses) == 1
    with pytest.warns(
        StoreWarning, match="holds more values of seed and temperature and width than"
    ):
        grown = compute_study(Study(Small(), (5,), (0.1,), (3,)), path, analyses=analyses)
    assert grown == 7
    grown = open_study(path).load()
    assert grid_of(grown) == {"seed": [4, 3], "temperature": [1.0, 0.1], "width": [50.0, 5.0]}
    for name in ("seed", "temperature", "width"):
        grown = grown.sortby(name)
    for name, values in whole.data_vars.items():
        np.testing.assert_array_equal(grown[name], values, err_msg=name)


def test_two_runs_on_one_store_do_no_harm(tmp_path, whole):
    path, runs = tmp_path / "small.zarr", []

    def second(progress):
        if not runs and progress.total:
            runs.append(progress)
            run(path)

    compute_study(Study(Small(), seeds=(3, 4)), path, analyses=pathkernel_analyses(), report=second)
    xr.testing.assert_identical(open_study(path).load(), whole)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".small.zarr.lock", "small.zarr"]


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_followed_also_one_that_leads_nowhere_yet(tmp_path, there):
    link, target = tmp_path / "link.zarr", tmp_path / "scratch" / "small.zarr"
    target.parent.mkdir()
    (target.parent / ".small.zarr.abc.partial").mkdir()  # of a run that was killed
    link.symlink_to(target)
    if there:
        target.mkdir()
    for widths in ((10,), (10, 20)):
        assert compute_study(Study(Small(), widths, (0.5,)), link, analyses=()) == 1
    assert link.is_symlink()
    assert open_study(link).width.size == 2
    names = [file.name for file in target.parent.iterdir()]
    assert sorted(names) == [".small.zarr.lock", "small.zarr"]


def test_other_data_behind_the_same_options_is_another_study(complete):
    class Other(Small):
        def provenance(self):
            return {"file": "other"}

    with pytest.raises(StoreError, match="provenance"):
        run(complete, Other())


def test_failed_factorisation_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch):
    minimise = continuation.minimise_action

    def failing(problem, network, temperature, **settings):
        if network.width == 5:
            raise pk.NotPositiveDefiniteError("no")
        return minimise(problem, network, temperature, **settings)

    monkeypatch.setattr(continuation, "minimise_action", failing)
    path = tmp_path / "small.zarr"
    run(path)
    dataset = open_study(path).load()
    assert (dataset.status.sel(width=5) == STATUS_CODES["not_positive_definite"]).all()
    assert np.isnan(dataset.action.sel(width=5)).all()
    assert (dataset.status.sel(width=50) == STATUS_CODES["converged"]).all()


def test_unconverged_points_are_marked(tmp_path, monkeypatch):
    minimise = continuation.minimise_action
    monkeypatch.setattr(
        continuation,
        "minimise_action",
        lambda *args, **settings: minimise(*args, **settings, max_evaluations=2),
    )
    path = tmp_path / "small.zarr"
    run(path)
    assert (open_study(path).status == STATUS_CODES["max_evaluations"]).all()


def test_a_store_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "small.zarr"
    zarr.open_group(path, mode="w", attributes={"mine": 1})
    files = sorted(path.rglob("*"))
    for use in (run, open_study):
        with pytest.raises(StoreError, match="no store of pathkernel"):
            use(path)
    assert files == sorted(path.rglob("*"))


def test_no_store_says_how_to_make_one(tmp_path):
    with pytest.raises(StoreError, match="pathkernel run"):
        open_study(tmp_path / "none.zarr")


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        run(tmp_path / "nowhere" / "small.zarr")


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
        run(tmp_path / "small.zarr", **settings)


def test_missing_backend_names_the_command(tmp_path, monkeypatch):
    from pathkernel_datasets import array_libraries

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(array_libraries.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'pip install "pathkernel\[jax\]"'):
        run(tmp_path / "small.zarr", backend="jax")


@pytest.mark.backend
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_array_libraries_fill_the_same_store(tmp_path, whole, backend):
    pytest.importorskip(backend)
    path = tmp_path / "small.zarr"
    run(path, backend=backend)
    mine, theirs = open_study(path).load(), whole
    for name in ("action", "order_parameter", "predictor_mean", "alignment", "head_score_gp"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6, atol=1e-7, err_msg=name)


def test_float32_is_computed_and_recorded(tmp_path, whole):
    path = tmp_path / "small.zarr"
    run(path, dtype="float32")
    mine, reference = open_study(path).load(), whole
    assert mine.attrs["dtype"] == "float32"
    assert (mine.status == STATUS_CODES["converged"]).all()
    np.testing.assert_allclose(mine.action, reference.action, rtol=1e-3)
