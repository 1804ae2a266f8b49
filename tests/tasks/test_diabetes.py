"""Regression on scikit-learn's diabetes data, against its own Gaussian processes."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import pathkernel_core as pk
from pathkernel.main import main
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.heads_file import read_heads
from pathkernel_tasks.labels import read_labels

pytest.importorskip("sklearn", reason="scikit-learn holds the data and the reference")

from sklearn import metrics
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct

GUIDE = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The guide's example, run as it stands there, at one seed and fewer points."""
    _, _, section = GUIDE.partition("## Regression")
    (script,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[:1]
    (command,) = re.findall(r"^```sh\n(pathkernel run.*?)^```", section, re.MULTILINE | re.DOTALL)
    folder = tmp_path_factory.mktemp("diabetes")
    arguments = command.replace("\\\n", " ").split()[1:]
    arguments += ["--widths", "10", "--temperature", "0.3", "--seeds", "0", "--no-figures"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(script, {})
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
    assert exit_.value.code == 0
    return folder


@pytest.fixture(scope="module")
def study(folder):
    dataset = xr.open_zarr(folder / "diabetes" / "study.zarr", chunks=None)
    return dataset.isel(seed=0, temperature=0, test_set=0)


@pytest.fixture(scope="module")
def examples(folder):
    """Attentioned inputs, one row for each patient, and targets; for training, then for tests."""
    task = Custom(
        inputs=str(folder / "diabetes.npz"),
        heads=str(folder / "diabetes.safetensors"),
        test_fraction=0.25,
        readout="mean",
    )
    realisation = task.realise(0)
    layers = read_heads(folder / "diabetes.safetensors", 20).layers
    found = []
    for part in (realisation.train, realisation.test_sets["test"]):
        xi = pk.attentioned_inputs(part.inputs, layers, "mean")
        found.append((xi, part.labels))
    return found


def test_the_limit_is_the_gaussian_process_of_scikit_learn(study, examples):
    """Mean, deviation and log marginal likelihood to 1e-8, with the same kernel and noise."""
    (train, y), (test, wanted) = ((xi.reshape(len(xi), -1), labels) for xi, labels in examples)
    kernel = ConstantKernel(1 / train.shape[1]) * DotProduct(0, sigma_0_bounds="fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=0.3, optimizer=None).fit(train, y - y.mean())
    mean, deviation = theirs.predict(test, return_std=True)
    mean += y.mean()
    np.testing.assert_allclose(study.predictor_mean_gp, mean, rtol=0, atol=1e-8)
    likelihood = theirs.log_marginal_likelihood_value_
    np.testing.assert_allclose(study.log_evidence_gp, likelihood, rtol=0, atol=1e-8)
    error = metrics.mean_squared_error(wanted, mean)
    np.testing.assert_allclose(study.mean_squared_error_gp, error, atol=1e-8)
    np.testing.assert_allclose(study.r_squared_gp, metrics.r2_score(wanted, mean), atol=1e-8)
    noisy = deviation**2 + 0.3
    density = -0.5 * ((wanted - mean) ** 2 / noisy + np.log(2 * np.pi * noisy)).mean()
    np.testing.assert_allclose(study.log_predictive_density_gp, density, atol=1e-8)
    assert 0.3 < float(study.r_squared_gp) < 0.7


def test_the_theory_is_a_gaussian_process_with_the_renormalised_kernel(study, examples):
    """At the order parameter U of the store: also to 1e-8."""
    point = study.sel(width=10)
    root = np.linalg.cholesky(point.order_parameter.values)
    renormalised = [np.einsum("pns,nm->pms", xi, root).reshape(len(xi), -1) for xi, _ in examples]
    (_, y), (_, wanted) = examples
    kernel = ConstantKernel(1 / renormalised[0].shape[1]) * DotProduct(0, sigma_0_bounds="fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=0.3, optimizer=None)
    theirs.fit(renormalised[0], y - y.mean())
    mean, deviation = theirs.predict(renormalised[1], return_std=True)
    mean += y.mean()
    np.testing.assert_allclose(point.predictor_mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(point.predictor_variance, deviation**2, rtol=0, atol=1e-8)
    np.testing.assert_allclose(point.r_squared, metrics.r2_score(wanted, mean), atol=1e-8)


def test_patients_are_no_classes(study):
    """The data's own targets are whole numbers as floats, all positive: no sign tells anything."""
    assert not [name for name in study.variables if "accuracy" in name]
    found = read_labels({"labels": load_diabetes().target})
    assert found.kind == "targets"
    assert "say so with kind='classes'" in found.note
