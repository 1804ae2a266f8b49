"""Figures of real small stores, against the numbers in the stores."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgba
from PIL import Image

from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_core.attention import AttentionProduct
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets.schema import STATUS_CODES
from pathkernel_datasets.store import StoreError, open_store
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study
from pathkernel_views import figures
from pathkernel_views.drawing import even_rows, sheet, task_words
from pathkernel_views.figure_files import write_figures
from pathkernel_views.figures import NothingToPlot, save_figures
from pathkernel_views.panels import Bars, head_bars, path_ticks

pytestmark = pytest.mark.filterwarnings("error")

NAMES = ("accuracy", "order_parameters", "alignment", "kernels", "head_scores")


@dataclass(frozen=True)
class Toy(Task):
    """Noisy sequences around a direction that carries the label."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "A toy"
    widths: ClassVar[tuple[float, ...]] = (5, 50, 500)
    temperatures: ClassVar[tuple[float, ...]] = (0.1,)

    classes: int = option(1, "outputs")
    many_heads: bool = option(False, "layers of four heads")

    def realise(self, seed):
        generator = np.random.default_rng(seed)

        def draw(count):
            kinds = np.arange(count) % max(self.classes, 2)
            inputs = generator.standard_normal((count, 4, 5))
            inputs[np.arange(count), :, kinds] += 1.0
            labels = np.eye(self.classes)[kinds] if self.classes > 1 else 1.0 - 2.0 * kinds
            return Examples(inputs, labels)

        return Realisation(
            layers=[
                AttentionProduct(generator.standard_normal((heads, 5, 5)))
                for heads in ((4, 4) if self.many_heads else (3, 1))
            ],
            readout="mean",
            train=draw(12),
            test_sets={"near": draw(20), "far": draw(8)},
            sub_networks={"first head": ((1,), (1,)), "two heads": ((1, 2), (1,))},
        )


def heading(figure):
    return figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")


class Stop(Exception):
    pass


def make(path, task=None, stop=None, seeds=(0, 1, 2), analyses=True, **study):
    def report(progress):
        if stop is not None and progress.done >= stop and "N =" in progress.doing:
            raise Stop

    study = Study(task or Toy(), seeds=seeds, **study)
    with contextlib.suppress(Stop):
        run_study(study, path, analyses=pathkernel_analyses() if analyses else (), report=report)
    return open_store(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def plain(folder):
    return make(folder / "plain.zarr")


@pytest.fixture(scope="module")
def several(folder):
    return make(folder / "several.zarr", temperatures=(0.01, 0.3, 3.0), seeds=(0, 1))


@pytest.fixture(scope="module")
def classes(folder):
    return make(folder / "classes.zarr", Toy(classes=3), seeds=(4,))


@pytest.fixture(scope="module")
def many(folder):
    return make(folder / "many.zarr", Toy(many_heads=True), seeds=(4,), widths=tuple(range(5, 15)))


@pytest.fixture(scope="module")
def stopped(folder):
    return make(folder / "stopped.zarr", stop=4)


def lines(axis):
    return {line.get_label(): line for line in axis.get_lines()}


def theory(axis):
    return next(line for label, line in lines(axis).items() if label.startswith("theory"))


def band(collection):
    corners = collection.get_paths()[0].vertices
    return {
        float(x): (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max())
        for x in np.unique(corners[:, 0])
    }


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn(figure):
    """Panels without colour bars."""
    return [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]


# accuracy


def test_accuracy_shows_median_and_range(plain):
    figure = figures.measured(plain, "accuracy")
    at = plain.squeeze("temperature")
    assert [axis.get_title() for axis in figure.axes] == ["near", "far"]
    for axis, name in zip(figure.axes, ("near", "far")):
        values = at.accuracy.sel(test_set=name)
        line = theory(axis)
        np.testing.assert_array_equal(line.get_xdata(), plain.width)
        np.testing.assert_array_equal(line.get_ydata(), values.median("seed"))
        ranges = band(axis.collections[0])
        for width in plain.width.values:
            column = values.sel(width=width)
            assert ranges[width] == (float(column.min()), float(column.max()))
        limit = at.accuracy_gp.sel(test_set=name)
        assert set(lines(axis)["GP limit"].get_ydata()) == {float(limit.median())}
        assert lines(axis)["GP limit"].get_linestyle() == "--"
        box = axis.patches[0].get_extents().transformed(axis.transData.inverted())
        assert (box.y0, box.y1) == pytest.approx((float(limit.min()), float(limit.max())))
        for part in plain.sub_network.values:
            expected = at.accuracy_sub_network.sel(test_set=name, sub_network=part).median("seed")
            assert set(lines(axis)[f"{part} (GP limit)"].get_ydata()) == {float(expected)}
        assert axis.get_xscale() == "log"
        assert axis.get_xlabel() == "width N"
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["5", "50", "500"]
    assert figure.axes[0].get_ylabel() == "accuracy (fraction correct)"
    assert legend(figure) == [
        "theory, median and range of 3 seeds",
        "GP limit",
        "first head (GP limit)",
        "two heads (GP limit)",
    ]
    assert heading(figure) == "toy: accuracy, T = 0.1"


def test_accuracy_of_one_seed_has_the_binomial_error(plain):
    figure = figures.measured(plain.isel(seed=[1]), "accuracy")
    assert legend(figure)[0] == "theory ± binomial standard error"
    assert heading(figure) == "toy: accuracy, seed 1, T = 0.1"
    for axis, name, count in zip(figure.axes, ("near", "far"), (20, 8)):
        values = plain.accuracy.sel(test_set=name, seed=1).squeeze("temperature")
        ranges = band(axis.collections[0])
        for width, middle in zip(plain.width.values, values.values):
            error = np.sqrt(middle * (1 - middle) / count)
            if error:
                assert ranges[width] == pytest.approx((middle - error, middle + error))


def test_accuracy_at_the_temperature_of_largest_evidence(several):
    several = several.load().copy(deep=True)
    several.log_evidence[:] = -1.0
    for width, best in enumerate((2, 0, 1)):
        several.log_evidence[:, best, width] = 0.0
    figure = figures.measured(several, "accuracy", "evidence")
    chosen = [
        float(several.accuracy[:, best, width, 0].median()) for width, best in enumerate((2, 0, 1))
    ]
    np.testing.assert_array_equal(theory(figure.axes[0]).get_ydata(), chosen)
    assert "T of largest log evidence at each width (0.01 to 3)" in heading(figure)

    figure = figures.measured(several, "accuracy", temperature=0.3)
    expected = several.accuracy.sel(temperature=0.3, test_set="near").median("seed")
    np.testing.assert_array_equal(theory(figure.axes[0]).get_ydata(), expected)
    assert heading(figure) == "toy: accuracy, T = 0.3"
    with pytest.raises(ValueError, match="no temperature 7"):
        figures.measured(several, "accuracy", temperature=7)


def test_accuracy_of_a_stopped_run(stopped):
    figure = figures.measured(stopped, "accuracy")
    line = theory(figure.axes[0])
    np.testing.assert_array_equal(line.get_xdata(), [5, 50, 500])
    assert line.get_ydata()[1] == float(stopped.accuracy[0, 0, 1, 0])
    assert legend(figure)[0] == "theory, median and range of up to 2 seeds"
    stopped = stopped.load().copy(deep=True)
    stopped.status[:, :, 1] = 0
    np.testing.assert_array_equal(
        theory(figures.measured(stopped, "accuracy").axes[0]).get_xdata(), [5, 500]
    )


def test_points_that_did_not_converge_are_hollow(plain):
    plain = plain.load().copy(deep=True)
    plain.status[1, 0, 2] = STATUS_CODES["stalled"]
    figure = figures.measured(plain, "accuracy")
    marks = lines(figure.axes[0])["not converged in some seed"]
    np.testing.assert_array_equal(marks.get_xdata(), [500])
    assert to_rgba(marks.get_markerfacecolor()) == to_rgba("white")


def test_widths_may_come_in_any_order(plain):
    shuffled = plain.isel(width=[2, 0, 1])
    np.testing.assert_array_equal(
        theory(figures.measured(shuffled, "accuracy").axes[0]).get_xdata(), [5, 50, 500]
    )
    titles = [axis.get_title() for axis in drawn(figures.order_parameters(shuffled))]
    assert titles == ["N = 5", "N = 50", "N = 500"]
    assert legend(figures.head_scores(shuffled)) == ["N = 5", "N = 50", "N = 500"]


def test_one_width(plain, tmp_path):
    reported = []
    save_figures(plain.isel(width=[1]), tmp_path, report=reported.append)
    assert not any(": skipped, " in line for line in reported)
    assert legend(figures.head_scores(plain.isel(width=[1]))) == ["N = 50"]


# order parameters


def test_order_parameters_are_heat_maps_on_one_scale(plain):
    figure = figures.order_parameters(plain)
    panels = drawn(figure)
    assert [axis.get_title() for axis in panels] == ["N = 5", "N = 50", "N = 500"]
    assert len(figure.axes) == 4  # with one colour bar for all
    scale = float(np.abs(plain.order_parameter.sel(seed=0)).max())
    for axis, width in zip(panels, plain.width.values):
        (image,) = axis.get_images()
        expected = plain.order_parameter.sel(seed=0, width=width).squeeze("temperature")
        np.testing.assert_array_equal(image.get_array(), expected)
        assert image.get_clim() == (-scale, scale)
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == ["1-1", "2-1", "3-1"]
    assert heading(figure) == "toy: order parameter U, seed 0, T = 0.1"


def test_seed_asked_for(plain):
    axis = drawn(figures.order_parameters(plain, seed=2))[0]
    expected = plain.order_parameter.sel(seed=2, width=5).squeeze("temperature")
    np.testing.assert_array_equal(axis.get_images()[0].get_array(), expected)
    with pytest.raises(ValueError, match="no seed 9; it has 0, 1, 2"):
        figures.order_parameters(plain, seed=9)


def test_first_seed_that_is_computed(plain):
    plain = plain.load().copy(deep=True)
    plain.status[0] = 0
    plain.data_done[0] = 0
    for figure in (figures.order_parameters(plain), figures.kernels(plain)):
        assert "seed 1" in heading(figure)
    with pytest.raises(NothingToPlot, match="of seed 0 is not computed yet"):
        figures.order_parameters(plain, seed=0)


def test_order_parameters_of_several_outputs_are_one_matrix(classes):
    panels = drawn(figures.order_parameters(classes))
    shown = panels[0].get_images()[0].get_array()
    assert shown.shape == (9, 9)
    tensor = classes.order_parameter.sel(width=5).squeeze(("seed", "temperature"))
    assert shown[1 * 3 + 2, 2 * 3 + 0] == float(tensor[1, 2, 2, 0])
    np.testing.assert_array_equal(panels[0].get_yticks(), [1, 4, 7])


def test_many_widths_and_paths_stay_readable(many):
    figure = figures.order_parameters(many)
    panels = drawn(figure)
    assert len(panels) == 10
    rows = {round(axis.get_subplotspec().rowspan.start) for axis in panels}
    assert rows == {0, 1}
    labels = [tick.get_text() for tick in panels[0].get_yticklabels()]
    assert labels == [f"{first}-{second}" for first in range(1, 5) for second in range(1, 5)]
    assert len(drawn(figures.kernels(many))) == 16 + 2
    assert max(figure.get_size_inches()) < 12


def test_hundreds_of_paths_are_shown_less_their_limit_and_in_part(plain, monkeypatch):
    monkeypatch.setattr("pathkernel_views.path_figures._DIAGONAL", 2)
    monkeypatch.setattr("pathkernel_views.path_figures._KERNELS", 2)
    plain = plain.load().assign_attrs(variances=[3.0, 2.0, 0.25, 4.0])
    figure = figures.order_parameters(plain)
    panels = drawn(figure)
    assert "order parameter U less its limit, seed 0" in heading(figure)
    shown = plain.order_parameter.sel(seed=0).squeeze("temperature").transpose("width", ...)
    differences = shown.values - 2 * np.eye(shown.shape[-1])
    for axis, difference in zip(panels, differences):
        (image,) = axis.get_images()
        np.testing.assert_allclose(image.get_array(), difference)
        reach = max(np.percentile(np.abs(other), 99) for other in differences)
        assert image.get_clim() == pytest.approx((-reach, reach))
    figure = figures.kernels(plain)
    titles = [axis.get_title() for axis in drawn(figure)]
    paths = plain["path"].values
    assert titles[:2] == [f"path {paths[0]}", f"path {paths[-1]}"]
    assert f"2 of {len(paths)} paths" in heading(figure)


def test_scores_of_many_heads_and_layers_stay_readable():
    dataset = xr.Dataset(attrs={"label": "toy"})
    for heads, rows in (((64, 64), 1), ((2,) * 12, 2), ((100, 3), 1)):
        scores = [np.linspace(0, 1, count) for count in heads]
        figure = head_bars(dataset, "scores", [Bars(name, "black", scores) for name in "ab"])
        assert len({axis.get_subplotspec().rowspan.start for axis in figure.axes}) == rows
        assert max(figure.get_size_inches()) < 16
        for axis, count in zip(figure.axes, heads):
            assert len(axis.patches) == 2 * count
            room = axis.get_position().width * figure.get_size_inches()[0]
            assert len(axis.get_xticks()) <= max(2, 10 * room)


def test_unconverged_order_parameter_is_named(plain):
    plain = plain.load().copy(deep=True)
    plain.status[0, 0, 1] = STATUS_CODES["stalled"]
    titles = [axis.get_title() for axis in drawn(figures.order_parameters(plain))]
    assert titles[1] == "N = 50\n(not converged)"


def test_panels_name_their_temperatures_if_chosen(several):
    best = several.leave_one_out_squared_error.sum("seed").idxmin("temperature").values
    titles = [axis.get_title() for axis in drawn(figures.order_parameters(several))]
    assert titles == [f"N = {w:g}, T = {t:g}" for w, t in zip(several.width.values, best)]


# alignment


def test_alignment_of_smallest_width_and_limit(plain):
    figure = figures.alignment(plain)
    (axis,) = figure.axes
    shown = lines(axis)
    at = plain.isel(temperature=0, seed=0)
    np.testing.assert_array_equal(shown["N = 5"].get_ydata(), at.alignment.sel(width=5)[:10])
    np.testing.assert_array_equal(shown["GP limit"].get_ydata(), at.alignment_gp[:10])
    assert legend(figure) == ["N = 5", "GP limit"]
    assert "‖Y‖" in axis.get_ylabel()
    figure = figures.alignment(plain, components=4)
    assert len(lines(figure.axes[0])["N = 5"].get_ydata()) == 4


def test_alignment_is_for_one_output(classes):
    with pytest.raises(NothingToPlot, match="one output"):
        figures.alignment(classes)


# kernels


def test_kernels_of_paths_and_of_all_in_one(plain):
    figure = figures.kernels(plain)
    panels = drawn(figure)
    titles = ["path 1-1", "path 2-1", "path 3-1", "total, GP limit", "total, N = 5"]
    assert [axis.get_title() for axis in panels] == titles
    assert len(figure.axes) == 10  # every kernel has a scale and a colour bar of its own
    totals = plain.total_kernel_gp[0, 0], plain.total_kernel.sel(width=5)[0, 0]
    for kernel, axis in zip((*plain.same_path_kernel[0], *totals), panels, strict=True):
        image = axis.get_images()[0]
        np.testing.assert_array_equal(image.get_array(), kernel)
        low, high = np.percentile(kernel, [1, 99])
        assert image.get_clim() == (low, high)
        boundary = axis.get_lines()[0].get_ydata()[0]
        assert boundary == 5.5
    labels = [tick.get_text() for tick in panels[0].get_yticklabels()]
    assert labels == ["+1", "−1"]
    assert list(panels[0].get_yticks()) == [2.5, 8.5]


def test_total_kernels_that_are_not_computed_are_left_out(plain, classes):
    limit_alone = plain.load().copy(deep=True)
    limit_alone.status[0] = 0
    assert len(drawn(figures.kernels(limit_alone, seed=0))) == 4
    assert len(drawn(figures.kernels(limit_alone, seed=1))) == 5
    assert len(drawn(figures.kernels(classes))) == 3


def test_kernels_of_targets_that_are_no_classes(plain):
    plain = plain.load().copy(deep=True)
    plain.train_label[:] = np.linspace(1, -1, 12)
    axis = drawn(figures.kernels(plain))[0]
    assert not axis.get_lines()
    assert not len(axis.get_yticks())


# head scores


def test_head_scores_of_unequal_layers(plain):
    figure = figures.head_scores(plain)
    assert [axis.get_title() for axis in figure.axes] == ["layer 1", "layer 2"]
    assert [len(axis.patches) for axis in figure.axes] == [9, 3]
    at = plain.head_score.squeeze("temperature").median("seed")
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    expected = [at.sel(width=width, layer=1).values for width in (5, 50, 500)]
    np.testing.assert_array_equal(heights, np.concatenate(expected))
    assert legend(figure) == ["N = 5", "N = 50", "N = 500"]
    assert heading(figure) == "toy: head scores, median and range of 3 seeds, T = 0.1"
    whiskers = figure.axes[0].collections[0].get_segments()[0][:, 1]
    column = plain.head_score.isel(temperature=0).sel(width=5, layer=1, head=1)
    assert list(whiskers) == pytest.approx([float(column.min()), float(column.max())])


def test_head_scores_say_how_many_of_the_widths_they_show(many):
    figure = figures.head_scores(many)
    assert legend(figure) == ["N = 5", "N = 7", "N = 9", "N = 12", "N = 14"]
    assert "5 of 10 widths" in heading(figure).replace("\n", " ")


# what all figures share


@pytest.mark.parametrize(
    ("panels", "most", "rows"),
    [
        *((1, 3, [1]), (3, 3, [3]), (4, 3, [2, 2]), (5, 3, [3, 2]), (7, 3, [3, 2, 2])),
        *((7, 5, [4, 3]), (9, 5, [3, 3, 3]), (10, 5, [5, 5]), (11, 5, [4, 4, 3])),
    ],
)
def test_no_panel_stands_alone(panels, most, rows):
    assert even_rows(panels, most) == rows


def test_short_rows_stand_in_the_middle(plain):
    with sheet(plain, "panels", [3, 2], (2.0, 2.0)) as (figure, axes):
        pass
    figure.draw_without_rendering()
    middles = [np.mean([axis.get_position().x0, axis.get_position().x1]) for axis in axes]
    assert middles[3] == pytest.approx(np.mean(middles[:2]), abs=0.02)
    assert middles[4] == pytest.approx(np.mean(middles[1:3]), abs=0.02)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("toy", "toy"),
        ("hidden-markov, variant strong-noise", "hidden-markov, variant strong-noise"),
        ("images, heads net/network.safetensors, noise 0.5", "images, noise 0.5"),
        ("custom, data.npz, heads.npz", "custom"),
    ],
)
def test_titles_name_no_files(plain, label, words):
    assert task_words(plain.assign_attrs(label=label)) == words


def test_many_paths_are_labelled_as_far_as_they_can_be_read():
    ticks = path_ticks(np.array([str(number) for number in range(64)]))
    assert list(ticks.labels) == [str(number) for number in range(0, 64, 4)]
    assert list(ticks.places) == list(range(0, 64, 4))
    assert "every 4th is labelled" in ticks.name


# files


@dataclass(frozen=True)
class Saved:
    """Figures of a store in files, what was reported, and Matplotlib's settings around it."""

    folder: Path
    files: list
    reported: list
    settings: tuple


@pytest.fixture(scope="module")
def saved(plain, folder):
    place, reported, before = folder / "new" / "folder", [], dict(matplotlib.rcParams)
    files = save_figures(plain, place, report=reported.append)
    return Saved(place, files, reported, (before, dict(matplotlib.rcParams)))


def test_files_are_images_of_sensible_size(saved):
    expected = [f"{name}.{kind}" for name in NAMES for kind in ("png", "svg")]
    assert [file.name for file in saved.files] == expected
    assert sorted(path.name for path in saved.folder.iterdir()) == sorted(expected)
    assert saved.reported == []
    for file in saved.files:
        if file.suffix == ".svg":
            drawing = file.read_text(encoding="utf-8")
            assert "</svg>" in drawing
            assert drawing.index("fill: #ffffff") < drawing.index("axes_1"), "a page of its own"
            assert "<text" not in drawing, "text is drawn, so that it needs no font"
            continue
        with Image.open(file) as image:
            image.load()
            assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
            assert 400 <= image.width <= 2000
            assert 250 <= image.height <= 2000
            assert len(image.convert("L").getcolors()) > 10
            assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)


@pytest.mark.parametrize("name", ["several", "classes", "many", "stopped"])
def test_text_lies_inside_the_figure(name, request):
    dataset = request.getfixturevalue(name)
    make_figures = figures.study_figures(dataset)
    for name in NAMES:
        try:
            figure = make_figures[name]()
        except NothingToPlot:
            continue
        figure.draw_without_rendering()
        page, content = figure.bbox, figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        assert content.x0 > -1
        assert content.y0 > -1
        assert content.x1 < page.x1 + 1
        assert content.y1 < page.y1 + 1


def test_same_store_gives_the_same_files(plain, saved):
    first = [file.read_bytes() for file in saved.files]
    assert [file.read_bytes() for file in save_figures(plain, saved.folder)] == first


def test_what_is_skipped_is_said(classes, folder, tmp_path):
    reported = []
    files = save_figures(classes, tmp_path, report=reported.append)
    assert len(files) == 8
    assert [line for line in reported if ": skipped, " in line] == [
        "alignment: skipped, the alignment is computed for networks with one output only"
    ]
    bare = make(folder / "bare.zarr", analyses=False)
    reported.clear()
    assert len(save_figures(bare, tmp_path, report=reported.append)) == 4
    assert "alignment: skipped, the store holds no alignment and no alignment_gp" in reported


def test_files_of_others_are_left_and_what_a_kill_left_goes(plain, saved, tmp_path):
    mine, reported = tmp_path / "accuracy.svg", []
    mine.write_text("<svg>drawn by hand</svg>")
    (tmp_path / ".alignment.png.abc.partial").touch()
    (tmp_path / "kernels.png").write_bytes((saved.folder / "kernels.png").read_bytes())
    assert len(save_figures(plain, tmp_path, report=reported.append)) == len(saved.files) - 2
    assert mine.read_text() == "<svg>drawn by hand</svg>"
    assert reported == [
        f"accuracy: skipped, {mine} is there already, without the mark of pathkernel's figures; "
        "delete it (an older version set no mark), or choose another folder"
    ]
    names = {file.name for file in saved.files} - {"accuracy.png"}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_one_process_at_a_time_draws_into_a_folder(tmp_path):
    def draw():
        with pytest.raises(StoreError, match="another process is writing"):
            write_figures({}, tmp_path)
        raise NothingToPlot("seen")

    reported = []
    write_figures({"figure": draw}, tmp_path, reported.append)
    assert reported == ["figure: skipped, seen"]
    assert list(tmp_path.iterdir()) == []


def test_store_without_any_point(folder, tmp_path):
    nothing = make(folder / "nothing.zarr", stop=0)
    reported = []
    written = {file.stem for file in save_figures(nothing, tmp_path, report=reported.append)}
    assert written == {"accuracy", "kernels"}  # limits and data come first
    assert "order_parameters: skipped, order_parameter is not computed yet" in reported
    assert "head_scores: skipped, no width is computed yet" in reported
    nothing = nothing.load().copy(deep=True)
    nothing.reference_done[:] = 0
    with pytest.raises(NothingToPlot, match="no accuracy"):
        figures.measured(nothing, "accuracy")


def test_failed_write_leaves_nothing_behind(plain, tmp_path, monkeypatch):
    def fail(self, file, **options):
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("pathkernel_views.figure_files.FigureCanvasAgg.print_png", fail)
    with pytest.raises(OSError, match="disk full"):
        save_figures(plain, tmp_path)
    assert not list(tmp_path.iterdir())


def test_names_with_dollars_are_no_formulas(plain, tmp_path):
    r"""Matplotlib would read what is between them, and fail at ``\x``."""
    names = np.array(["a$\\x$b", *plain["test_set"].values[1:]], dtype=object)
    dataset = plain.assign_coords(test_set=("test_set", names))
    accuracy = figures.study_figures(dataset)["accuracy"]
    assert len(write_figures({"accuracy": accuracy}, tmp_path)) == 2


def test_a_figure_that_fails_is_a_warning(plain, tmp_path):
    def fail():
        raise ZeroDivisionError("of a stranger's view")

    reported = []
    accuracy = figures.study_figures(plain)["accuracy"]
    written = write_figures({"own": fail, "accuracy": accuracy}, tmp_path, reported.append)
    assert [file.name for file in written] == ["accuracy.png", "accuracy.svg"]
    assert reported == ["Warning: own is not drawn (ZeroDivisionError: of a stranger's view)."]
    with pytest.raises(ZeroDivisionError):  # nothing else was asked for
        write_figures({"own": fail}, tmp_path)


def test_settings_are_left_alone(saved):
    before, after = saved.settings
    assert after == before


def test_pyplot_is_not_imported():
    code = "import sys, pathkernel_views.figures; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
