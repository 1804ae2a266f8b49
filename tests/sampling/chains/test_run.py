"""Sampling a study: interrupted or not the same draws, goals, refusals, and the command."""

import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import xarray as xr

pytest.importorskip("blackjax")
pytest.importorskip("arviz_stats")

from pickling_workers import Pickling

from pathkernel.main import main
from pathkernel_core import Examples, QueryKey, Realisation, Task
from pathkernel_core.contracts.hooks import Plugins, UnknownNameError, load_plugins
from pathkernel_datasets.errors import StudyError, StudyWarning
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.draws import ORDER_PARAMETER, SETTINGS, order_parameter_draws, runs
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.result_files import publish_parts, write_part
from pathkernel_datasets.results.run_result import run_result
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_sampling.chains.diagnostics import sampled_log_evidence
from pathkernel_sampling.chains.draw_variables import settings_of
from pathkernel_sampling.chains.ensemble import Chains
from pathkernel_sampling.chains.store import SampleRun, open_run
from pathkernel_sampling.corrections.correct import open_correction
from pathkernel_sampling.results import NextOrder, Samples
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_views.chart import Chart, save_charts
from pathkernel_views.table import Table

POINT = {"widths": (10,), "chains": 2, "warm_up": 30}
RUN = "samples/order-parameter/seed-0_T-0.01_N-10"
FILE, GROUP = "samples.zarr", "order-parameter/seed-0_T-0.01_N-10"


class Killed(BaseException):
    """As little to be caught as a signal."""


def fail(*arguments):
    raise Killed


def recorded(function, calls):
    """The function, which records its arguments."""
    return lambda *arguments: calls.append(arguments) or function(*arguments)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "study"
    run_study(Study(HiddenMarkov(examples=10, test_examples=20), [10, 100]), path)
    return path


@pytest.fixture
def study(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "study"))


@pytest.fixture(scope="module")
def sampled(original, tmp_path_factory):
    """Study with an uninterrupted run of 120 draws."""
    path = shutil.copytree(original, tmp_path_factory.mktemp("sampled") / "study")
    run_result(Samples(draws=120, **POINT), path)
    return path


@pytest.fixture(scope="module")
def reference(sampled):
    """All growing arrays of that run."""
    return arrays(sampled)


def arrays(path):
    tree = open_run(StoredStudy(path), RUN)
    return {
        f"{name}/{variable}": tree[name][variable].values
        for name in ("posterior", "predictions", "sample_stats", "unconstrained_posterior")
        for variable in tree[name].variables
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_draws_are_those_of_the_posterior(study, reference):
    draws = reference["posterior/order_parameter"]
    assert draws.shape == (2, 120, 4, 4)
    np.testing.assert_allclose(draws, np.swapaxes(draws, 2, 3), atol=1e-12)
    assert (np.linalg.eigvalsh(draws) > -1e-9).all()
    assert not np.array_equal(draws[0], draws[1]), "chains have keys of their own"
    assert reference["predictions/predictor_mean"].shape == (2, 12, 1, 20)
    # the expansion in 1/N knows nothing of the sampler
    run_result(NextOrder(widths=(10,)), study)
    expansion = open_correction(StoredStudy(study), Point(10, 0.01, 0))
    exact = expansion["order_parameter"] + expansion["order_parameter_correction"]
    error = draws.std((0, 1)) / np.sqrt(100)

    def agrees(mean):
        return bool((abs(mean - exact.values) < 4 * error + 0.05).all())

    assert agrees(draws.mean((0, 1)))
    assert not agrees(np.eye(4)), "draws from the prior would be told apart"


def test_the_predictor_is_that_of_its_draw(study, reference):
    from pathkernel_core import attentioned_inputs, total_kernel

    data = HiddenMarkov(examples=10, test_examples=20).realise(0)
    sets = (data.train, data.test_sets["test"])
    xi = np.concatenate(
        [attentioned_inputs(part.inputs, data.layers, data.readout) for part in sets]
    )
    for chain, index in ((0, 0), (1, 11)):
        draw = reference["predictions/draw"][index]
        u = reference["posterior/order_parameter"][chain, draw]
        kernel = total_kernel(xi, u)
        inner = kernel[:10, :10] + 0.01 * np.eye(10)
        across = kernel[10:, :10]
        mean = across @ np.linalg.solve(inner, data.train.labels)
        explained = np.einsum("ij,ji->i", across, np.linalg.solve(inner, across.T))
        predicted = reference["predictions/predictor_mean"][chain, index, 0]
        np.testing.assert_allclose(predicted, mean, rtol=1e-6, atol=1e-8)
        predicted = reference["predictions/predictor_variance"][chain, index, 0]
        np.testing.assert_allclose(
            predicted, np.diag(kernel)[10:] - explained, rtol=1e-5, atol=1e-7
        )


def test_plain_xarray_opens_all_draws_without_warnings(sampled, reference):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = xr.open_datatree(sampled / FILE, engine="zarr", chunks=None).load()
    for name, values in reference.items():
        np.testing.assert_array_equal(tree[f"{GROUP}/{name}"], values)
    for node in tree.subtree:
        for name, variable in node.variables.items():
            assert variable.attrs["long_name"], name


@pytest.mark.slow
def test_extended_by_workers_and_threads_gives_the_same_draws(study, reference, monkeypatch):
    key, used = Chains.key, []
    monkeypatch.setattr(Chains, "key", lambda *of: used.append(of[1:]) or key(*of))
    with Pickling(2) as executor:
        run_result(Samples(draws=15, **POINT), study, executor=executor)
    assert open_run(StoredStudy(study), RUN)["posterior"].sizes["draw"] == 20, "rounded up to thin"
    run_result(Samples(draws=70, jobs=2, **POINT), study)
    seen = []
    run_result(Samples(draws=70, **POINT), study, report=seen.append)
    assert seen == [], "nothing was left to do"
    run_result(Samples(draws=120, **POINT), study)
    assert_same(arrays(study), reference)
    assert sorted(used) == [(chain, step) for chain in (0, 1) for step in range(13)], "none twice"


def test_killed_between_blocks_gives_the_same_draws(study, reference, monkeypatch):
    left = [1, 1, 3]  # blocks before each kill

    def killed(*arguments):
        if left and left[0] == 0:
            left.pop(0)
            raise Killed
        if left:
            left[0] -= 1
        write_arrays(*arguments)

    monkeypatch.setattr("pathkernel_sampling.chains.store.write_arrays", killed)
    monkeypatch.setattr("pathkernel_sampling.chains.run._BLOCK_SECONDS", 0.0)  # many small blocks
    for draws in (10, 20, 50):
        with pytest.raises(Killed):
            run_result(Samples(draws=120, **POINT), study)
        stored = StoredStudy(study)
        assert runs(stored) == [RUN]
        assert not stored.holds(RUN)
        so_far = open_run(stored, RUN)["posterior"]["order_parameter"].values
        np.testing.assert_array_equal(so_far, reference[ORDER_PARAMETER][:, :draws])
        (other,) = order_parameter_draws(stored).values()
        np.testing.assert_array_equal(other, so_far)
    run_result(Samples(draws=120, **POINT), study)
    assert_same(arrays(study), reference)
    assert not (study / "pieces").exists()
    value, error = sampled_log_evidence(open_run(StoredStudy(study), RUN))
    leading = float(open_study(study)["log_evidence"].sel(seed=0, temperature=0.01, width=10))
    assert 0 < error < 1
    assert abs(value - leading) < 3, "the saddle is off by some nats"


def test_an_extension_that_is_killed_goes_on_from_its_blocks(sampled, tmp_path, monkeypatch):
    study = Path(shutil.copytree(sampled, tmp_path / "study"))
    before = sampled_log_evidence(open_run(StoredStudy(study), RUN))
    monkeypatch.setattr("pathkernel_sampling.chains.run._BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(SampleRun, "finish", fail)
    with pytest.raises(Killed):
        run_result(Samples(draws=150, **POINT), study)
    monkeypatch.undo()
    stored = StoredStudy(study)
    run = open_run(stored, RUN)
    assert run["posterior"].sizes["draw"] == 150
    assert np.isnan(sampled_log_evidence(run)).all(), "not of all draws"
    (draws,) = order_parameter_draws(stored).values()
    np.testing.assert_array_equal(draws, run["posterior"]["order_parameter"])
    blocks = study / "pieces" / RUN
    assert sorted(file.name for file in blocks.iterdir()) == ["120.npz", "130.npz", "140.npz"]
    with pytest.raises(StudyError, match="thin: they have 10, this run 5"):
        run_result(Samples(draws=150, **POINT | {"thin": 5}), study)
    (blocks / "140.npz").write_bytes(b"damage")
    used = []
    monkeypatch.setattr(Chains, "rounds", recorded(Chains.rounds, used))
    with pytest.warns(StudyWarning, match=r"140\.npz is damaged; a run computes it again"):
        run_result(Samples(draws=150, **POINT), study)
    assert {first for _, _, _, first, _ in used} == {14}, "one block is drawn again"
    assert_same(arrays(study), {name: run[name].values for name in arrays(study)})
    after = sampled_log_evidence(open_run(StoredStudy(study), RUN))
    assert after != before
    assert abs(after[0] - before[0]) < 4 * before[1]


def test_blocks_that_a_killed_process_left_are_removed(sampled, reference, tmp_path):
    study = Path(shutil.copytree(sampled, tmp_path / "study"))
    (blocks := study / "pieces" / RUN).mkdir(parents=True)
    (blocks / "0.npz").touch()
    run_result(Samples(draws=120, **POINT), study)
    assert not (study / "pieces").exists()
    assert_same(arrays(study), reference)


def test_damaged_draws_are_drawn_again(sampled, reference, tmp_path):
    path = Path(shutil.copytree(sampled, tmp_path / "study"))
    (path / FILE / GROUP / "posterior/order_parameter/c/0/0/0/0").write_bytes(b"damage")
    with pytest.warns(StudyWarning, match="order_parameter.*computed again"):
        run_result(Samples(draws=120, **POINT), path)
    assert_same(arrays(path), reference)


@pytest.mark.slow
def test_sigkill_loses_nothing_that_is_written(study, reference):
    code = (
        "import sys, pathkernel_sampling.chains.run as run;"
        "from pathkernel_datasets.results.run_result import run_result;"
        "from pathkernel_sampling.results import Samples;"
        "run._BLOCK_SECONDS = 0.0;"  # a block every few milliseconds
        f"run_result(Samples(draws=100_000, **{POINT}), sys.argv[1])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(study)], env=environment)
    try:
        end = time.monotonic() + 300
        seen = 0
        while seen < 40 and time.monotonic() < end:
            assert process.poll() is None, "the run ended by itself"
            if RUN in runs(StoredStudy(study)):
                run = open_run(StoredStudy(study), RUN)  # while it goes on
                seen = run["posterior"].sizes["draw"]
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 40 <= seen < 100_000
    killed = arrays(study)
    assert killed["posterior/draw"].size >= seen
    assert not np.isnan(killed["posterior/order_parameter"]).any()
    count = max(120, killed["posterior/draw"].size + 20)
    run_result(Samples(draws=count, **POINT), study)
    resumed = arrays(study)
    for name, values in killed.items():
        axis = slice(None, values.size if name.endswith("/draw") else None)
        kept = resumed[name][axis] if values.ndim == 1 else resumed[name][:, : values.shape[1]]
        np.testing.assert_array_equal(kept[: len(values)], values, err_msg=name)
    np.testing.assert_array_equal(
        resumed["posterior/order_parameter"][:, :120], reference["posterior/order_parameter"]
    )


def test_a_run_killed_in_its_warm_up_leaves_nothing(study, monkeypatch):
    monkeypatch.setattr("pathkernel_sampling.chains.chain.warm_up", fail)
    with pytest.raises(Killed):
        run_result(Samples(draws=120, **POINT), study)
    assert runs(StoredStudy(study)) == []
    assert not (study / "pieces").exists()


@pytest.mark.slow
def test_target_ess_stops_and_a_larger_one_goes_on(study):
    seen = []
    run_result(Samples(target_ess=60, **POINT), study, report=seen.append)
    first = open_run(StoredStudy(study), RUN)["posterior"].sizes["draw"]
    assert seen[-1].doing.endswith("complete")
    assert seen[-1].numbers["min ESS"] >= 60
    assert first >= 100, "few draws cannot tell their effective sample size"
    assert seen[0].total is None, "nothing tells yet how many draws it takes"
    assert all(progress.total is None or progress.total < 10_000 for progress in seen)
    run_result(Samples(target_ess=1e9, draws=first + 30, **POINT), study)
    assert open_run(StoredStudy(study), RUN)["posterior"].sizes["draw"] == first + 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (11,)}, "has no width 11; it has 10, 100"),
        ({"temperature": 0.5}, "no temperature 0.5"),
        ({"seed": 4}, "no seed 4"),
        ({"chains": 0}, "chains must be at least 1"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"target_ess": 0.0}, "target_ess must be at least 1"),
        ({"target_ess": np.nan}, "target_ess must be at least 1"),
        ({"chains": 3}, "chains: they have 2, this run 3"),
        ({"warm_up": 40}, "warm-up: they have 30, this run 40"),
        ({"thin": 5}, "thin: they have 10, this run 5"),
    ],
)
def test_what_cannot_be_done_is_refused(sampled, reference, changes, message):
    with pytest.raises((StudyError, ValueError), match=message):
        run_result(Samples(**POINT | {"draws": 140} | changes), sampled)
    assert_same(arrays(sampled), reference)


def test_unknown_sampler_gets_a_suggestion(study):
    with pytest.raises(UnknownNameError, match="Did you mean 'collapsed'"):
        run_result(Samples(sampler="colapsed", **POINT), study)


def test_a_study_of_other_data_is_refused(study, monkeypatch):
    monkeypatch.setattr(HiddenMarkov, "provenance", lambda self: {"file": "another"})
    with pytest.raises(StudyError, match="provenance"):
        run_result(Samples(**POINT), study)


def test_the_command_takes_several_widths_and_prints_what_is_stored(
    sampled, capsys, tmp_path, are_documented
):
    study = Path(shutil.copytree(sampled, tmp_path / "study"))
    run = open_run(StoredStudy(study), RUN)
    run.attrs[SETTINGS] = json.dumps(settings_of(run) | {"width": 100.0}, sort_keys=True)
    write_part(study, RUN.replace("N-10", "N-100"), run)
    publish_parts(study, "samples")
    options = ("--widths", "10,100", "--chains", "2", "--warm-up", "30", "--draws", "120")
    with pytest.raises(SystemExit) as exit_:
        main(["sample", str(study), *options, "--no-figures"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 0, err
    assert err == "", "stderr is no terminal: no progress belongs there"
    for words in ("1-1, 1-1", "R-hat", "saddle", "GP", "Nothing was left to compute"):
        assert words in out
    assert out.count("bridge sampling") == 2
    for width in (10, 100):
        group = GROUP.replace("N-10", f"N-{width}")
        assert f"Draws: {study / FILE}, group {group} " in " ".join(out.split())
    charts = [view for view in Samples().views(StoredStudy(study)) if isinstance(view, Chart)]
    names = "accuracy", "order_parameters", "differences", "predictors", "finite_width"
    assert {chart.name for chart in charts if not chart.detail} == {*names}, "traces on request"
    with pytest.raises(SystemExit):
        main(["show", str(study), "--json", "--only", "samples"])
    kept = json.loads(capsys.readouterr().out)
    assert are_documented(kept["tables"])
    entries, scores, *_ = kept["tables"]
    mean = open_run(StoredStudy(study), RUN)["posterior"]["order_parameter"].mean(("chain", "draw"))
    first = entries["rows"][0]
    assert (first["sampler"], first["width"], first["entry"]) == ("order-parameter", 10, "1-1, 1-1")
    assert first["mean"] == pytest.approx(float(mean[0, 0]), rel=1e-12)
    theory = open_study(study)["accuracy"].sel(width=10, temperature=0.01, seed=0)
    assert [row["accuracy_theory"] for row in scores["rows"]] == theory.values.tolist()
    assert any(line.startswith("Log evidence ln p(Y)") for line in kept["lines"])


@dataclass(frozen=True)
class Cycle(Task):
    """Three classes told by which token comes first."""

    name: ClassVar[str] = "cycle"
    summary: ClassVar[str] = "Three classes"

    def realise(self, seed):
        generator = np.random.default_rng(seed)
        layers = [QueryKey(*generator.normal(size=(2, 2, 3, 5)))]

        def examples(count):
            inputs = generator.normal(size=(count, 4, 5))
            return Examples(inputs, np.eye(3)[inputs[:, 0, :3].argmax(axis=1)])

        tests = {"many": examples(9), "few": examples(6)}
        return Realisation(layers, "mean", examples(12), tests)


class Shifted(Cycle):
    """The same inputs, with centred targets far from 0."""

    def realise(self, seed):
        drawn = super().realise(seed)
        for part in (drawn.train, *drawn.test_sets.values()):
            part.labels[:] += 50
        return dataclasses.replace(drawn, kind="targets", centred=True)


def drawn(chart):
    """Data of a chart."""
    (text,) = chart.altair().to_dict()["datasets"].values()
    return pd.read_csv(io.StringIO(text))


@pytest.mark.parametrize(
    ("sampler", "task", "chains"),
    [
        ("order-parameter", Cycle, 2),
        pytest.param("weights", Shifted, 1, marks=pytest.mark.slow),
    ],
)
def test_several_outputs_and_test_sets_of_unequal_length(
    tmp_path, monkeypatch, sampler, task, chains
):
    path = tmp_path / "study"
    run_study(Study(task(), [4, 10], [0.1]), path)
    plugins = Plugins(tasks={"cycle": task}, samplers=load_plugins().samplers)
    run_result(
        Samples(sampler=sampler, draws=40, **POINT | {"chains": chains}), path, plugins=plugins
    )
    (name,) = runs(StoredStudy(path))
    run = open_run(StoredStudy(path), name)
    few = sampler == "order-parameter"
    assert ("unconstrained_posterior" in run) == few, "only models of few dimensions keep those"
    assert few or np.isnan(sampled_log_evidence(run)).all()
    assert run["posterior"]["order_parameter"].dims[2:] == (
        *("path", "output", "path_dual", "output_dual"),
    )
    mean = run["predictions"]["predictor_mean"]
    assert mean.dims == ("chain", "draw", "test_set", "example", "output")
    assert mean.isnull().any(("chain", "draw", "output")).sum("example").values.tolist() == [0, 3]
    assert run["observed_data"]["label"].shape == (12, 3)
    monkeypatch.setattr("pathkernel_sampling.draws.charts.ROWS", 5)  # of three outputs, one path's
    views = list(Samples().views(StoredStudy(path)))
    entries, scores = (view for view in views if isinstance(view, Table))
    charts = {view.name: view for view in views if isinstance(view, Chart)}
    # one measure, or three
    assert len(save_charts(charts.values(), tmp_path / "figures", formats=("svg",))) == 5 + 2 * (
        not few
    )
    for name in ("order_parameters", "differences"):
        assert "the 1 strongest are shown" in charts[name].caption
        assert len(drawn(charts[name])) == 3 * (1 + (name == "order_parameters"))
    data = drawn(charts["predictors"])
    assert data.groupby("test_set", sort=False).size().to_dict() == {"many": 27, "few": 18}
    sides = {"label > 0", "label ≤ 0"} if task is Cycle else {"test example"}
    assert set(data["side"]) == sides
    assert len(scores.rows) == 2
    if task is Cycle:
        assert "accuracy,\nsampled ± error" in scores.headings
    else:
        assert abs(mean.mean() - 50) < 1, "what was centred is moved back"
        for heading in ("R²", "MSE", "ln p(y)"):
            assert f"{heading},\ntheory" in scores.headings
    assert len(entries.rows) == 15
