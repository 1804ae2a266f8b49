"""Several values of an option as a table and figures, against the numbers in the store."""

import io

import numpy as np
import pytest
from rich.console import Console

from pathkernel_datasets.store import open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import compute_study
from pathkernel_datasets.swept import by_value
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_views.figure_files import NothingToPlot
from pathkernel_views.figures import study_figures
from pathkernel_views.swept_figure import swept
from pathkernel_views.tables import rich_table

pytestmark = pytest.mark.filterwarnings("error")

EXAMPLES = (4, 8, 32)


def computed(path, **settings):
    task = HiddenMarkov(examples=4, test_examples=6)
    compute_study(Study(task, (10,), **settings), path, analyses=())
    return open_store(path)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("swept") / "chains.zarr"
    return computed(path, seeds=(0, 1), sweep={"examples": EXAMPLES})


def test_the_table_has_the_rows_of_every_value(dataset):
    stream = io.StringIO()
    Console(file=stream, width=100).print(rich_table(dataset))
    lines = stream.getvalue().splitlines()
    assert "examples 4, 8 and 32" in lines[0]
    rows = [line.split() for line in lines if line.rstrip().endswith("ok")]
    assert [row[:2] for row in rows[1:4]] == [["GP", "limit"], ["good", "0.01"], ["good", "+"]]
    for value, row in zip(EXAMPLES, rows[::4], strict=True):
        found = dataset.sel(examples=value)
        action, accuracy = float(found.action.median()), float(found.accuracy.median())
        assert row[:4] == [str(value), "N", "=", "10"]
        assert row[5:7] == [f"{action:.4f}", f"{accuracy:.3f}"]


def test_the_figure_shows_every_value(dataset):
    (axis,) = swept(dataset, "accuracy").axes
    drawn = {each.get_label(): each.lines[0].get_xydata() for each in axis.containers}
    assert set(drawn) == {"N = 10", "GP limit"}
    for name, label in (("accuracy", "N = 10"), ("accuracy_gp", "GP limit")):
        middles = dataset[name].median("seed").values.ravel()
        np.testing.assert_allclose(drawn[label][:, 1], middles)
        np.testing.assert_allclose(drawn[label][:, 0], EXAMPLES, rtol=0.05)
    assert axis.get_xscale() == "log"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["4", "8", "32"]


def test_a_single_seed_has_binomial_errors(dataset):
    (axis,) = swept(dataset.isel(seed=[0]), "accuracy").axes
    bars = axis.containers[0].lines[2][0].get_segments()
    middle = dataset.accuracy.isel(seed=0).values.ravel()
    error = np.sqrt(middle * (1 - middle) / 6)
    np.testing.assert_allclose([np.ptp(ends[:, 1]) for ends in bars], 2 * error)


def test_figures_of_each_value_lie_in_folders_of_their_names(dataset):
    figures = study_figures(dataset)
    wanted = {"accuracy_against_examples", "examples-4/accuracy", "examples-32/kernels"}
    assert wanted <= set(figures)
    assert "examples 8" in figures["examples-8/accuracy"]().get_suptitle()
    with pytest.raises(NothingToPlot):
        swept(by_value(dataset)[4], "accuracy")


def test_words_stand_side_by_side_without_lines(tmp_path):
    dataset = computed(tmp_path / "chains.zarr", sweep={"readout": ("last", "mean")})
    (axis,) = swept(dataset, "accuracy").axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["last", "mean"]
    assert {each.lines[0].get_linestyle() for each in axis.containers} == {"None"}
