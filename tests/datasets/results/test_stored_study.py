"""A stored study: its points, its data drawn again, its options and its files."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_analyses.alignment import KernelTaskAlignment
from pathkernel_analyses.heads import HeadScores
from pathkernel_core.contracts.hooks import Plugins
from pathkernel_core.contracts.options import option
from pathkernel_datasets.errors import NotInStudyError, StudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.run.run_study import compute_study, run_study
from pathkernel_datasets.study.identity import identity_of
from pathkernel_datasets.study.study import Study
from pathkernel_datasets.testing import SmallTask

PLUGINS = Plugins(tasks={SmallTask.name: SmallTask})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study to look at."""
    path = tmp_path_factory.mktemp("whole") / "study"
    compute_study(Study(SmallTask(), (10, 100), (0.1, 1.0), (0, 3)), path)
    return path


def test_a_study_without_results(whole):
    study = StoredStudy(whole, PLUGINS)
    assert study.results == []
    assert not study.holds("parts")
    with pytest.raises(StudyError, match=r"has no parts; its results are: none"):
        study.result("parts")


def test_points_and_their_data(whole):
    study = StoredStudy(whole, PLUGINS)
    at = study.point(100, 1.0, 3)
    assert (at.width, at.temperature, at.seed) == (100, 1, 3)
    with pytest.raises(NotInStudyError, match="the study has no seed 2; it has 0, 3"):
        study.point(100, 1.0, 2)
    rebuilt = study.rebuild(at)
    assert rebuilt.network.widths == (100, 100, 100)
    drawn = SmallTask().realise(3).train.labels
    np.testing.assert_array_equal(rebuilt.data.labels, drawn)
    assert study.task(examples=6).examples == 6


def test_prior_variances_of_a_study(tmp_path):
    """U is what the core gives with them, they are part of the study, and it is drawn anew so."""
    variances, grid = (1.5, 0.5, 0.8, 2.0), ((10,), (0.5,), (0,))
    path = tmp_path / "study"
    study, seen = Study(SmallTask(), *grid, variances=variances), []
    dataset = run_study(study, path, analyses=(), report=seen.append)
    assert sum("gradient" in progress.numbers for progress in seen) > 2, "a minimisation is told"
    drawn = SmallTask().realise(0)
    xi = pk.attentioned_inputs(drawn.train.inputs, drawn.layers, drawn.readout)
    network = pk.Network(drawn.heads, 10, variances)
    solution = pk.minimise_action(pk.Problem(xi, drawn.train.labels), network, 0.5)
    np.testing.assert_allclose(dataset.order_parameter.squeeze(), solution.order_parameter, 1e-6)
    study = StoredStudy(path, PLUGINS)
    assert study.rebuild(study.point(10)).network.variances == variances
    with pytest.raises(StudyError, match=r"variances: the folder has \[1.5, 0.5, 0.8, 2.0\]"):
        run_study(Study(SmallTask(), *grid), path, analyses=())
    assert Study(SmallTask(), variances=(2,)).variances == 2
    assert identity_of(Study(SmallTask())) == identity_of(Study(SmallTask(), variances=1.0))
    with pytest.raises(ValueError, match="variances must be positive and finite, but is -1"):
        Study(SmallTask(), variances=(1, -1, 1, 1))
    with pytest.raises(ValueError, match="variances must be one number or 4 numbers"):
        run_study(Study(SmallTask(), *grid, variances=(1, 2)), tmp_path / "b")


def test_skip_connections_of_a_study(tmp_path):
    """U, labels, scores and predictions are the core's; stores without them are as they were."""
    grid, path, skips = ((10, 30), (0.5,), (0,)), tmp_path / "study", (0.7, None)
    study = Study(SmallTask(), *grid, skips=skips)
    dataset = run_study(study, path, analyses=[HeadScores(), KernelTaskAlignment()])
    drawn = SmallTask().realise(0)
    layers, test = drawn.layers, drawn.test_sets["test"]
    xi, new = (
        pk.attentioned_inputs(inputs, layers, drawn.readout, skips=skips)
        for inputs in (drawn.train.inputs, test.inputs)
    )
    network = pk.Network(drawn.heads, 10, skips=skips)
    solution = pk.minimise_action(pk.Problem(xi, drawn.train.labels), network, 0.5)
    point = dataset.isel(seed=0, temperature=0).sel(width=10)
    assert list(point.path.values) == ["skip-1", "skip-2", "1-1", "1-2", "2-1", "2-2"]
    assert list(point.path_layer_1.values) == [0, 0, 1, 1, 2, 2]
    assert list(point["head"].values) == list(network.head_labels)
    np.testing.assert_allclose(point.order_parameter, solution.order_parameter, 1e-6)
    np.testing.assert_allclose(point.head_score, solution.head_scores, 1e-6)
    np.testing.assert_allclose(point.skip_score, solution.skip_scores, 1e-6)
    np.testing.assert_allclose(point.predictor_mean[0], solution.predict(new).mean, 1e-5, 1e-9)
    # the alignment is that of the kernel which the predictor has
    factor = solution.posterior[1].reshape(6, 1, 6)
    kernel = np.einsum("mpi,pak,qak,nqi->mn", xi, factor, factor, xi) / (6 * 4)
    values = np.linalg.eigvalsh(kernel)[::-1]
    np.testing.assert_allclose(point.kernel_eigenvalue, values, rtol=1e-6, atol=1e-9)

    stored = StoredStudy(path, PLUGINS)
    assert stored.rebuild(stored.point(10)).network == network
    with pytest.raises(StudyError, match=r"skips: the folder has \[0.7, none\], this run none"):
        run_study(Study(SmallTask(), *grid), path, analyses=())
    assert "skips" not in identity_of(Study(SmallTask()))
    assert Study(SmallTask(), skips=(None, None)) == Study(SmallTask())
    assert Study(SmallTask(), skips=(0.7,)).on_grid({"seed": (1,)}).skips == 0.7
    assert Study(SmallTask(), skips=np.array(0.7)).skips == 0.7
    for strengths in ((1, 1, None), (1, 1, 1)):
        with pytest.raises(ValueError, match="one for each of 2 layers, but has 3"):
            run_study(Study(SmallTask(), *grid, skips=strengths), tmp_path / "b")
    with pytest.raises(ValueError, match="skips must hold at least one value"):
        Study(SmallTask(), skips=())
    with pytest.raises(TypeError, match=r"skips must be one number, but is '0\.7'"):
        Study(SmallTask(), skips="0.7")


@dataclass(frozen=True)
class FromFile(SmallTask):
    """A task of a file, whose content counts and not its place."""

    name = "from-file"
    numbers: str = option("numbers.txt", "file of numbers")

    def provenance(self):
        return {"numbers": Path(self.numbers).read_text()}


def test_files_are_found_again_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("numbers.txt").write_text("one two")
    run_study(Study(FromFile(), (10,), (1.0,)), "study", analyses=())
    monkeypatch.chdir(tmp_path / "there")
    plugins = Plugins(tasks={FromFile.name: FromFile})
    study = StoredStudy("../here/study", plugins)
    assert study.rebuild(study.point(10)).data.xi.shape[1] == 4
    named = FromFile(numbers="../here/numbers.txt")
    assert compute_study(Study(named, (10,), (1.0,)), study.path, analyses=()) == 0
    moved = tmp_path / "here" / "study"
    moved = moved.rename(tmp_path / "there" / "study")
    (tmp_path / "here" / "numbers.txt").rename(tmp_path / "there" / "numbers.txt")
    monkeypatch.chdir(tmp_path)
    study = StoredStudy(moved, plugins)
    assert study.task().numbers == str(tmp_path / "there" / "numbers.txt")
    study.rebuild(study.point(10))
    Path("there/numbers.txt").write_text("three")
    with pytest.raises(StudyError, match='provenance, numbers: the folder has "one two"'):
        StoredStudy(moved, plugins).rebuild(study.point(10))


@pytest.mark.parametrize("sweep", [{}, {"examples": (6, 8)}])
def test_a_dataset_that_was_copied_alone_opens_and_says_what_is_missing(tmp_path, sweep):
    run_study(Study(SmallTask(), (10,), (0.1,), sweep=sweep), tmp_path / "whole")
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "whole" / "study.zarr", alone / "study.zarr")
    study = StoredStudy(alone, PLUGINS)
    assert study.dataset.identical(open_study(tmp_path / "whole"))
    assert (study.results, study.is_complete) == ([], True)
    if sweep:
        with pytest.raises(StudyError, match=r"no folder examples-6, that of examples 6, which th"):
            _ = study.singles
    else:
        assert study.singles == [study]
    with pytest.raises(StudyError, match=r"a study without its folder; move it to study\.zarr"):
        open_study(shutil.copytree(alone / "study.zarr", tmp_path / "study.zarr"))
