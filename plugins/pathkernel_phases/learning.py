"""Learning curves: measured squared errors, and the average case from the kernel's spectrum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import xarray as xr

from pathkernel_core.arrays.backend import Array, to_host
from pathkernel_core.paths.input_kernels import total_kernel
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import scaled_order_parameter
from pathkernel_core.prediction.average_case import (
    average_case_error,
    feature_spectrum,
    kernel_spectrum,
)
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.swept_option import swept_option

NAME = "learning-curves"
_MEASURED = "mean squared error on test examples"
_AVERAGE = "mean squared error of the average case, from the spectrum of the kernel"


def missing_seeds(study: StoredStudy, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
    """Compute the learning curves of every seed that the study lacks.

    Raises
    ------
    ValueError
        If the study does not sweep ``examples``.
    """
    dataset = study.dataset
    if swept_option(dataset) != "examples":
        raise ValueError(
            "learning curves need a study of several numbers of training examples; run it again "
            "with, for example, --examples 26,50,100,200,400"
        )
    if dataset.attrs.get("token_kernel", "linear") != "linear":
        raise ValueError(
            "the average case needs the kernel between test examples, which a study with "
            f"--token-kernel {dataset.attrs['token_kernel']} does not compute; run one without"
        )
    grid, missing = _grid(study), lacking_seeds(study)
    singles = dict(zip(grid["examples"].tolist(), study.singles))
    for done, seed in enumerate(missing):
        errors = []
        for number, (examples, single) in enumerate(singles.items()):
            progress = done + number / len(singles)
            report(Progress(int(progress), len(missing), f"seed {seed}, {examples} examples"))
            points = {dim: grid[dim] for dim in ("temperature", "width")}
            errors.append(_errors(single, seed, examples, points))
        yield f"seed-{seed}", xr.concat(errors, xr.Variable("examples", grid["examples"]))


def lacking_seeds(study: StoredStudy) -> list[int]:
    """Seeds of the study without learning curves on its whole grid."""
    return [seed for seed in study.dataset["seed"].values.tolist() if not _is_stored(study, seed)]


def _grid(study: StoredStudy) -> dict[str, np.ndarray]:
    return {name: study.dataset[name].values for name in ("examples", "temperature", "width")}


def _is_stored(study: StoredStudy, seed: int) -> bool:
    if not study.holds(f"{NAME}/seed-{seed}"):
        return False
    stored = study.result(f"{NAME}/seed-{seed}").to_dataset()
    return all(np.array_equal(stored[name], values) for name, values in _grid(study).items())


def _errors(
    study: StoredStudy, seed: int, examples: int, grid: dict[str, np.ndarray]
) -> xr.Dataset:
    """Errors of a study of one number of examples, dims (temperature, width) and in the limit.

    The study may have been extended by itself: only the points of a ``grid`` are taken.
    """
    dataset = study.dataset.sel(grid | {"seed": seed}).isel(test_set=0).load()
    temperatures, widths = dataset["temperature"].values, dataset["width"].values
    rebuilt = study.rebuild(Point(float(widths[0]), float(temperatures[0]), seed))
    network = rebuilt.network
    # the distribution is that of the test examples, since U was fitted to the training labels. Too
    # few of them let features fit the noise of their labels: with 924 features, 1,000 test examples
    # hide the peak of the error
    xi, labels = next(iter(rebuilt.data.test_sets.values()))
    spectrum_at = _spectra(network, xi, to_host(labels) - rebuilt.data.offset)

    def average(order_parameter: np.ndarray, temperature: float) -> float:
        if not np.isfinite(order_parameter).all():
            return np.nan
        return average_case_error(*spectrum_at(order_parameter), examples, float(temperature))

    spectrum = spectrum_at(np.diag(network.limit_diagonal))
    order_parameters = dataset["order_parameter"].transpose("temperature", "width", ...).values
    averages = [
        [average(matrix, temperature) for matrix in row]
        for temperature, row in zip(temperatures, order_parameters)
    ]
    of_limit = [average_case_error(*spectrum, examples, float(t)) for t in temperatures]
    error = (dataset["predictor_mean"] - dataset["test_label"]) ** 2
    error_gp = (dataset["predictor_mean_gp"] - dataset["test_label"]) ** 2
    return xr.Dataset(
        {
            "error": error.mean("example")
            .transpose("temperature", "width")
            .assign_attrs(long_name=_MEASURED),
            "average_case_error": (("temperature", "width"), averages, {"long_name": _AVERAGE}),
            "error_gp": error_gp.mean("example").assign_attrs(long_name=_MEASURED),
            "average_case_error_gp": (("temperature",), of_limit, {"long_name": _AVERAGE}),
        },
        {"temperature": temperatures, "width": widths},
    ).drop_vars(["seed", "test_set"], errors="ignore")


def _spectra(
    network: Network, xi: Array, labels: np.ndarray
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Spectrum of the kernel on some examples, as a function of the order parameter."""
    count, paths, width = xi.shape
    variance = network.kernel_variance

    def of_kernel(order_parameter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = scaled_order_parameter(network, order_parameter)
        return kernel_spectrum(to_host(total_kernel(xi, weights, variance=variance)), labels)

    # the nonzero eigenvalues of ΦΦᵀ and ΦᵀΦ are the same: the smaller matrix is diagonalised, and
    # in feature space the means over examples serve every order parameter
    if count <= paths * width:
        return of_kernel
    features = to_host(xi).reshape(count, -1) / np.sqrt(paths * width)
    gram = (features.T @ features / count).reshape(paths, width, paths, width)
    projections = (features.T @ labels / count).reshape(paths, width)
    label_square = float(np.mean(labels**2))

    def of_features(order_parameter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = scaled_order_parameter(network, order_parameter)
        # not Cholesky: with a skip of strength 0 the scaled U is singular
        eigenvalues, vectors = np.linalg.eigh(variance * weights)
        factor = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))  # of U = F Fᵀ
        mixed = np.einsum("pa,piqj,qb->aibj", factor, gram, factor, optimize=True)
        mixed = mixed.reshape(paths * width, -1)
        return feature_spectrum(mixed, (factor.T @ projections).reshape(-1), label_square)

    return of_features


def stored_learning_curves(study: StoredStudy) -> xr.Dataset:
    """Learning curves of a study, dims (seed, examples, temperature, width)."""
    nodes = study.result(NAME).children.items()
    seeds = {int(str(name).removeprefix("seed-")): node.to_dataset() for name, node in nodes}
    seeds = dict(sorted(seeds.items()))
    return xr.concat(seeds.values(), xr.Variable("seed", list(seeds)), combine_attrs="drop")
