"""Diagnostics of draws whose answer is known."""

import json
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats
import xarray as xr

pytest.importorskip("arviz_stats")

from pathkernel_sampling.chains.diagnostics import (
    diagnose,
    distinct_entries,
    minimum_bulk_ess,
    predictor,
    sampled_predictor_scores,
)

CHAINS, DRAWS = 4, 1000
PATHS = ["1", "2"]


def tree(matrices, **changes):
    """Run of given U (chain, draw, path, path_dual)."""
    chains, draws = matrices.shape[:2]
    generator = np.random.default_rng(1)
    statistics = {
        "energy": generator.normal(size=(chains, draws)),
        "diverging": np.zeros((chains, draws), dtype=bool),
        "reached_max_tree_depth": np.zeros((chains, draws), dtype=bool),
        **changes,
    }
    numbers = {"chain": range(chains), "draw": range(draws)}
    means = generator.normal(size=(chains, draws // 10, 1, 30)) + 1.0
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {"order_parameter": (("chain", "draw", "path", "path_dual"), matrices)},
                coords={**numbers, "path": PATHS, "path_dual": PATHS},
            ),
            "sample_stats": xr.Dataset(
                {name: (("chain", "draw"), values) for name, values in statistics.items()},
                coords=numbers,
            ),
            "predictions": xr.Dataset(
                {
                    "predictor_mean": (("chain", "draw", "test_set", "example"), means),
                    "predictor_variance": (
                        ("chain", "draw", "test_set", "example"),
                        np.full(means.shape, 0.5),
                    ),
                },
                coords={"chain": range(chains), "test_set": ["test"]},
            ),
        }
    )


def independent(chains=CHAINS, draws=DRAWS):
    """Independent draws of a symmetric matrix of mean [[3, 1], [1, 2]]."""
    noise = np.random.default_rng(0).normal(size=(chains, draws, 2, 2))
    return np.array([[3.0, 1.0], [1.0, 2.0]]) + (noise + np.swapaxes(noise, 2, 3)) / 2


def test_independent_draws_pass():
    diagnostics = diagnose(tree(independent()))
    assert diagnostics.warnings() == []
    entries = diagnostics.entries
    assert list(entries["entry"].values) == ["1, 1", "2, 1", "2, 2"]
    assert (abs(entries["mean"] - [3, 1, 2]) < 5 * entries["mcse"]).all()
    np.testing.assert_allclose(entries["mcse"], entries["sd"] / np.sqrt(CHAINS * DRAWS), rtol=0.2)
    assert (entries["ess_bulk"] > 3000).all()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda u: u + np.arange(4)[:, None, None, None], "R-hat is"),
        (lambda u: np.cumsum(u - u.mean((0, 1)), axis=1), "bulk effective sample size"),
        (lambda u: u[:, :50], "tail effective sample size"),
        (lambda u: u[:1], "a single chain"),
        (lambda u: u[:, :3], "too few"),
    ],
)
def test_bad_draws_are_called_so(spoil, words):
    lines = diagnose(tree(spoil(independent()))).warnings()
    assert any(words in line for line in lines), lines


def test_the_worst_entry_is_named():
    matrices = independent()
    matrices[..., 1, 1] += np.arange(4)[:, None]
    (line,) = [x for x in diagnose(tree(matrices)).warnings() if "R-hat" in x]
    assert "U [2, 2]" in line


def test_trouble_of_the_sampler_is_counted():
    some = np.zeros((CHAINS, DRAWS), dtype=bool)
    some[0, :7] = True
    slow = np.cumsum(np.random.default_rng(2).normal(size=(CHAINS, DRAWS)), axis=1)
    diagnostics = diagnose(
        tree(independent(), diverging=some, reached_max_tree_depth=~some, energy=slow)
    )
    lines = "\n".join(diagnostics.warnings())
    assert "7 of 4000 trajectories diverged" in lines
    assert "3993 of 4000 trajectories were cut off" in lines
    assert "BFMI is" in lines
    assert "below 0.3 in 4 of 4 chains" in lines


def test_entries_of_several_outputs_keep_their_names():
    values = np.arange(16.0).reshape(2, 2, 2, 2)
    matrix = xr.DataArray(
        values + values.transpose(2, 3, 0, 1),
        dims=("path", "output", "path_dual", "output_dual"),
        coords={"path": PATHS, "output": [0, 1]},
    )
    entries = distinct_entries(matrix)
    assert entries.sizes == {"entry": 10}
    assert entries.sel(entry="2 1, 1 2") == matrix[1, 0, 0, 1]


def test_smallest_ess_over_chains_and_entries():
    matrices = independent()
    assert minimum_bulk_ess(matrices) == float(diagnose(tree(matrices)).entries["ess_bulk"].min())
    assert np.isnan(minimum_bulk_ess(matrices[:, :3]))
    matrices[..., 0, 1] = matrices[..., 1, 0] = np.repeat(matrices[:, ::10, 0, 1], 10, axis=1)
    assert minimum_bulk_ess(matrices) < 700


def test_variance_is_that_within_and_between_draws():
    run = tree(independent())
    moments = predictor(run)
    means = run["predictions"]["predictor_mean"]
    np.testing.assert_allclose(moments["mean"], means.mean(("chain", "draw")))
    np.testing.assert_allclose(moments["variance"], 0.5 + means.var(("chain", "draw")))
    np.testing.assert_allclose(moments["mcse"], 1 / np.sqrt(400), rtol=0.35)


def test_accuracy_is_that_of_the_mean_and_leaves_padding_out():
    run = tree(independent())
    labels = np.ones((1, 30))
    labels[0, :5] = -1
    labels[0, 28:] = np.nan
    scores = sampled_predictor_scores(
        run, xr.DataArray(labels, dims=("test_set", "example")), "classes"
    )
    assert float(scores["accuracy"][0]) == 23 / 28
    assert float(scores["accuracy_mcse"][0]) == 0, "every half chain has the same signs"


def test_accuracy_error_covers_the_truth():
    """Jackknife error against the spread over repetitions."""
    generator = np.random.default_rng(3)
    labels = xr.DataArray(np.ones((1, 200)), dims=("test_set", "example"))
    truth = generator.normal(size=200) * 0.1
    values, errors = [], []
    for _ in range(40):
        means = truth + generator.normal(size=(4, 50, 1, 200))
        run = xr.DataTree.from_dict(
            {
                "predictions": xr.Dataset(
                    {"predictor_mean": (("chain", "draw", "test_set", "example"), means)},
                    coords={"test_set": ["test"]},
                )
            }
        )
        scores = sampled_predictor_scores(run, labels, "classes")
        values.append(float(scores["accuracy"][0]))
        errors.append(float(scores["accuracy_mcse"][0]))
    assert 0.6 < np.mean(errors) / np.std(values) < 1.7


def targets_run(means, variances):
    """Run of predictions at T = 0.3."""
    dims = ("chain", "draw", "test_set", "example")
    held = {"predictor_mean": (dims, means), "predictor_variance": (dims, variances)}
    predictions = xr.Dataset(held, coords={"test_set": ["test"]})
    run = xr.DataTree.from_dict({"predictions": predictions})
    run.attrs["settings"] = json.dumps({"temperature": 0.3})
    return run


def test_scores_of_targets_are_those_of_the_mixture_of_draws():
    generator = np.random.default_rng(4)
    means = generator.normal(size=(2, 6, 1, 20)) + 5
    variances = generator.uniform(0.5, 1.5, means.shape)
    labels = generator.normal(size=(1, 20)) + 5
    labels[0, 17:] = np.nan
    run = targets_run(means, variances)
    scores = sampled_predictor_scores(
        run, xr.DataArray(labels, dims=("test_set", "example")), "targets"
    )
    y, drawn = labels[0, :17], means[:, :, 0, :17].reshape(12, 17)
    squared = ((y - drawn.mean(0)) ** 2).mean()
    assert float(scores["mean_squared_error"][0]) == pytest.approx(squared)
    assert float(scores["r_squared"][0]) == pytest.approx(1 - squared / y.var())
    noisy = variances[:, :, 0, :17].reshape(12, 17) + 0.3
    density = scipy.stats.norm.pdf(y, drawn, np.sqrt(noisy)).mean(0)
    assert float(scores["log_predictive_density"][0]) == pytest.approx(np.log(density).mean())


def test_error_of_targets_covers_the_truth():
    """Jackknife error of every measure against the spread over repetitions."""
    generator = np.random.default_rng(3)
    y = generator.normal(size=50)
    labels = xr.DataArray(y[None], dims=("test_set", "example"))
    truth = y + generator.normal(size=50)
    names = ("mean_squared_error", "r_squared", "log_predictive_density")
    values, errors = {name: [] for name in names}, {name: [] for name in names}
    for _ in range(40):
        means = truth + generator.normal(size=(4, 20, 1, 50))
        scores = sampled_predictor_scores(targets_run(means, 0 * means + 0.5), labels, "targets")
        for name in names:
            values[name].append(float(scores[name][0]))
            errors[name].append(float(scores[f"{name}_mcse"][0]))
    assert float(scores["mean_mcse"]) == float(scores["r_squared_mcse"][0]), "the first measure's"
    for name in names:
        assert 0.6 < np.mean(errors[name]) / np.std(values[name]) < 1.7, name


def test_table_shows_the_worst_entries_of_many(monkeypatch):
    from pathkernel_sampling.draws.views import Run, order_parameter_table

    class Missing(Run):
        """A run whose theory is not computed."""

        draws = tree(independent())
        settings: ClassVar = {"sampler": "weights", "width": 3.0, "temperature": 0.01, "seed": 0}
        nothing = draws["posterior"]["order_parameter"].mean(("chain", "draw")) * np.nan
        theory = xr.Dataset(
            {"order_parameter": nothing, "order_parameter_next": nothing, "status": 0}
        )

    run = Missing(None, "")
    run.draws["adaptation"] = xr.DataTree(xr.Dataset({"seconds": 2.0}))
    monkeypatch.setattr("pathkernel_sampling.draws.views.ROWS", 1)
    table = order_parameter_table(run)
    assert len(table.rows) == 1
    assert table.frame["r_hat"].tolist() == [run.entries["r_hat"].max()]
    assert "did not converge" in table.caption
    assert "next order" not in table.headings, "it is not computed"
    assert table.rows[0][1] == "-"
