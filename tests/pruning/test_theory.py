"""Points of a study whose order parameters score heads, and samples at them."""

import warnings

import numpy as np
import pytest
import xarray as xr
import zarr

from pathkernel_core import Network, head_scores
from pathkernel_datasets.store import StoreError
from pathkernel_pruning.theory import sampled_scores, score_grid, theory_points, theory_scores
from pathkernel_sampling.point import GridPoint

WIDTHS, TEMPERATURES, SEEDS = (10.0, 40.0, 100.0), (0.1, 0.5), (0, 7)
NETWORK = Network((2, 2), 10)


@pytest.fixture
def study():
    """What of a study is read, with the largest log evidence at N = 100, T = 0.5."""
    generator = np.random.default_rng(0)
    factors = generator.normal(size=(2, 2, 3, 4, 6))
    evidence = -np.arange(12.0).reshape(2, 2, 3)[:, ::-1, ::-1]
    point = ("seed", "temperature", "width")
    return xr.Dataset(
        {
            "order_parameter": ((*point, "path", "path_dual"), factors @ factors.swapaxes(-1, -2)),
            "log_evidence": (point, evidence),
            "log_evidence_gp": (point[:2], evidence[..., 0]),
            "status": (point, np.ones((2, 2, 3), dtype=int)),
            "reference_done": (point[:2], np.ones((2, 2), dtype=int)),
        },
        {"seed": list(SEEDS), "temperature": list(TEMPERATURES), "width": list(WIDTHS)},
        {"heads_per_layer": [2, 2]},
    )


def test_points_of_largest_evidence_and_of_the_paper(study):
    assert theory_points(study) == [GridPoint(100, 0.5, 0), GridPoint(10, 0.5, 0)]
    assert theory_points(study, seed=7) == [GridPoint(100, 0.5, 7), GridPoint(10, 0.5, 7)]
    assert theory_points(study, temperature=0.1)[0] == GridPoint(100, 0.1, 0)
    assert theory_points(study, widths=(40, 10)) == [GridPoint(40, 0.5, 0), GridPoint(10, 0.5, 0)]
    study["log_evidence"].loc[{"width": 10, "temperature": 0.1, "seed": 0}] = 1
    assert theory_points(study) == [GridPoint(10, 0.1, 0)], "the paper's width only once"
    study["status"].loc[{"width": 10, "temperature": 0.1, "seed": 0}] = 0
    assert theory_points(study)[0] == GridPoint(100, 0.5, 0), "what is not computed has no evidence"


def test_points_that_are_missing(study):
    with pytest.raises(StoreError, match="no width 20; it has 10, 40, 100"):
        theory_points(study, widths=(20,))
    with pytest.raises(StoreError, match="no temperature 3"):
        theory_points(study, temperature=3)
    with pytest.raises(StoreError, match="no seed 3; it has 0, 7"):
        theory_points(study, seed=3)
    study["status"].loc[{"width": 40}] = 0
    with pytest.raises(StoreError, match=r"no order parameter at N = 40, T = 0\.5, seed 0; go on"):
        theory_points(study, widths=(40,))
    study["status"][:] = 0
    with pytest.raises(StoreError, match="no point of the study is computed yet"):
        theory_points(study)


def test_scores_over_the_grid(study):
    study["status"].loc[{"width": 40, "temperature": 0.1}] = 0
    study["order_parameter"].loc[{"width": 10, "temperature": 0.5}] = np.nan
    grid = score_grid(study, 7)
    assert grid.shape == (2, 3, 4)
    for t, temperature in enumerate(TEMPERATURES):
        for w, width in enumerate(WIDTHS):
            if (width, temperature) in ((40, 0.1), (10, 0.5)):
                assert np.isnan(grid[t, w]).all()
                continue
            at = study.sel(seed=7, width=width, temperature=temperature)
            expected = np.concatenate(head_scores(NETWORK, at["order_parameter"].values))
            np.testing.assert_allclose(grid[t, w], expected)
            found = np.concatenate(theory_scores(study, GridPoint(width, temperature, 7)))
            np.testing.assert_allclose(found, expected)


def test_sampled_scores_are_those_of_the_mean(tmp_path, monkeypatch):
    store = tmp_path / "study.zarr"
    xr.Dataset(attrs={"schema_version": 1}).to_zarr(store, consolidated=False)
    monkeypatch.setattr("pathkernel_sampling.sample_store.check_store", lambda path: {})
    at = GridPoint(40, 0.5, 0)
    assert sampled_scores(store, at) is None
    generator = np.random.default_rng(0)
    labels = np.array(NETWORK.path_labels, dtype=np.dtypes.StringDType())
    means = {}
    for sampler in ("weights", "collapsed"):
        factors = generator.normal(size=(2, 30, 4, 6))
        draws = factors @ factors.swapaxes(-1, -2)
        means[sampler] = draws.mean(axis=(0, 1))
        posterior = xr.Dataset(
            {"order_parameter": (("chain", "draw", "path", "path_dual"), draws)},
            {"path": labels, "path_dual": labels},
        )
        group = f"samples/{sampler}/{at}"
        posterior.to_zarr(store, group=f"{group}/posterior", mode="a", consolidated=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an index that Zarr's specification lacks
            zarr.consolidate_metadata(store)
    for found, expected in zip(sampled_scores(store, at), head_scores(NETWORK, means["collapsed"])):
        np.testing.assert_allclose(found, expected)
    assert sampled_scores(store, GridPoint(10, 0.5, 0)) is None
