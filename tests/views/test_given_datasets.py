"""Views of datasets that a user has cut, copied, or opened by other libraries."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pathkernel_analyses.plugin import pathkernel_analyses
from pathkernel_datasets.errors import NotInStudyError
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.selection import Selection
from pathkernel_datasets.testing import SMALL_STUDY
from pathkernel_datasets.variables.swept_option import by_value
from pathkernel_views import study_charts
from pathkernel_views.report import write_report
from pathkernel_views.study_tables import study_frame
from pathkernel_views.study_views import still_charts, study_views
from pathkernel_views.table import Table, frame_of

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a study, and of one with two values of an option."""
    folder = tmp_path_factory.mktemp("given")
    studies = {
        "single": SMALL_STUDY,
        "swept": dataclasses.replace(SMALL_STUDY, temperatures=(1.0,), sweep={"examples": (8, 12)}),
    }
    for name, study in studies.items():
        run_study(study, folder / name, analyses=pathkernel_analyses())
    return {name: folder / name for name in studies}


def show_frames(monkeypatch):
    """Make charts the frames that they would show: Altair takes long."""
    for name in ("lines", "heatmaps", "bars", "network"):
        monkeypatch.setattr(study_charts, name, lambda frame, *_, **__: frame)
    monkeypatch.setattr(study_charts, "chart_grid", lambda *frames: pd.concat(frames))


@pytest.fixture(autouse=True)
def frames_for_charts(monkeypatch):
    show_frames(monkeypatch)


def views_of(dataset, **settings):
    """All that can be shown of a dataset, by name."""
    shown = {}
    for view in study_views(dataset, **settings):
        name = view if isinstance(view, str) else view.name
        shown[name] = view.frame if isinstance(view, Table) else view
    charts = [view for view in shown.values() if hasattr(view, "draw")]
    shown |= {chart.name: chart.draw() for chart in charts}
    for value, single in by_value(dataset).items():
        shown[f"gains {value}"] = frame_of(finite_width_gain(single))
        u = Selection(single).point("order_parameter").transpose(..., "path", "path_dual")
        shown[f"U {value}"] = pd.DataFrame(u.values.reshape(-1, u.sizes["path_dual"]))
    return shown


def assert_same(shown, expected):
    assert list(shown) == list(expected)
    for name, frame in expected.items():
        if isinstance(frame, pd.DataFrame):
            settings = {"check_dtype": False, "check_column_type": False, "obj": name}
            pd.testing.assert_frame_equal(shown[name], frame, **settings)


def copied(dataset, path, folder):
    return dataset.copy(deep=True)


def by_xarray(dataset, path, folder):
    return xr.open_zarr(path / "study.zarr", chunks=None)


def by_dask(dataset, path, folder):
    pytest.importorskip("dask")
    sizes = {"seed": 1, "temperature": 1, "width": 1, "path": 1, "example": 5, "test_set": 1}
    return xr.open_zarr(path / "study.zarr", chunks={}).chunk(sizes)


def written_again(dataset, path, folder):
    dataset.drop_encoding().to_zarr(folder / "again.zarr", zarr_format=2)
    return xr.open_zarr(folder / "again.zarr", chunks=None)


def as_netcdf(engine):
    def write(dataset, path, folder):
        pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
        empty = [dim for dim, size in dataset.sizes.items() if not size]
        # NetCDF-3 holds no empty dimension
        dataset.drop_dims(empty).load().to_netcdf(folder / "study.nc", engine=engine)
        return xr.open_dataset(folder / "study.nc", engine=engine)

    return write


def transposed(dataset, path, folder):
    return dataset.transpose(*reversed(list(dataset.dims)))


WAYS = {
    function.__name__: function
    for function in (copied, by_xarray, by_dask, written_again, transposed)
}
WAYS |= {engine: as_netcdf(engine) for engine in ("scipy", "netcdf4", "h5netcdf")}


@pytest.fixture(scope="module")
def expected(folders):
    with pytest.MonkeyPatch.context() as patch:
        show_frames(patch)
        return {name: views_of(open_study(path)) for name, path in folders.items()}


@pytest.mark.parametrize(
    "way",
    [
        way if way in ("copied", "by_dask", "scipy") else pytest.param(way, marks=pytest.mark.slow)
        for way in WAYS
    ],
)
def test_a_copy_has_the_same_views(folders, expected, tmp_path, way):
    name = "single" if way == "by_dask" else "swept"
    path = folders[name]
    given = WAYS[way](open_study(path), path, tmp_path)
    assert_same(views_of(given), expected[name])


CUTS = {
    "widths": lambda dataset: dataset.sel(width=[10]),
    "seeds": lambda dataset: dataset.isel(seed=[1]),
    "paths": lambda dataset: dataset.sel(path=["1-2", "2-2"]),
    "both dimensions of paths": lambda dataset: dataset.isel(path=[3, 1], path_dual=[3, 1]),
    "examples": lambda dataset: dataset.isel(example=slice(2, 5), train_example=slice(4)),
    "order": lambda dataset: dataset.isel(width=[1, 0], seed=[1, 0]),
    "variables": lambda dataset: dataset.drop_vars(["head_score", "same_path_kernel"]),
}


@pytest.mark.parametrize(
    "cut",
    [
        cut if cut in ("paths", "order") else pytest.param(cut, marks=pytest.mark.slow)
        for cut in CUTS
    ],
)
def test_a_part_has_views_of_its_own(folders, cut):
    whole = open_study(folders["swept"])
    part = CUTS[cut](whole)
    shown = views_of(part)
    frame, of_whole = shown["study"], study_frame(whole)
    assert set(frame["width"].dropna()) == set(part["width"].values)
    if cut == "widths":
        same = of_whole[of_whole["width"] != 100].reset_index(drop=True)
        pd.testing.assert_frame_equal(frame, same)
    drawn = shown["order_parameters"].query("panel == 'N = 10' and examples == 12")
    drawn = drawn[drawn["seed"] == part["seed"].values[0]]
    assert set(drawn["path"]) == set(drawn["path_dual"]) == set(part["path"].values.tolist())
    at = {"width": 10, "temperature": 1.0, "seed": part["seed"].values[0], "examples": 12}
    u, pairs = whole["order_parameter"].sel(at).load(), zip(drawn["path"], drawn["path_dual"])
    wanted = [u.sel(path=path, path_dual=dual).item() for path, dual in pairs]
    np.testing.assert_array_equal(drawn["U"], wanted)


def test_a_single_value_of_an_option_is_its_study(folders):
    dataset = open_study(folders["swept"])
    alone = by_value(dataset)[8]
    assert_same(views_of(dataset.sel(examples=8)), views_of(alone))
    one = dataset.isel(examples=[0], width=[0])
    assert set(study_frame(one)["examples"]) == {8}
    folders_of_charts = {chart.name.partition("/")[0] for chart in still_charts(one)}
    assert folders_of_charts == {"accuracy_against_examples", "examples-8"}


def test_what_lacks_a_dimension_is_refused_with_a_remedy(folders):
    dataset = open_study(folders["single"])
    message = r"no dimension 'width', .* select with a list, as in dataset\.isel\(width=\[0\]\)"
    for function in (
        lambda given: list(study_views(given)),
        finite_width_gain,
        Selection,
        study_frame,
    ):
        with pytest.raises(NotInStudyError, match=message):
            function(dataset.sel(width=10))


def test_charts_without_attributes_say_so_and_the_rest_is_shown(folders):
    views = study_views(open_study(folders["single"]).drop_attrs())
    shown = {view.name: view for view in views if not isinstance(view, str)}
    assert len(shown["study"].frame) > 0
    with pytest.raises(ValueError, match="lost its attributes; keep them"):
        shown["order_parameters"].draw()


def test_a_report_of_a_cut_dataset(folders, tmp_path, monkeypatch):
    monkeypatch.undo()
    dataset = xr.open_zarr(folders["swept"] / "study.zarr", chunks=None).sel(width=[10])
    views = [view for view in study_views(dataset) if getattr(view, "name", "") != "kernels"]
    write_report(dataset, folders["swept"], {"study": views[:4]}, tmp_path / "page.html")
    assert "pathkernel study swept" in (tmp_path / "page.html").read_text(encoding="utf-8")
