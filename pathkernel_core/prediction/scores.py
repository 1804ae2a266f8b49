"""Scores of a predictor, and alignment of a kernel with the task."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    real_floating,
    to_host,
)
from pathkernel_core.arrays.products import matmul


def accuracy(mean: Array, labels: Array) -> float:
    """Fraction of examples classified correctly, between 0 and 1.

    The class is the sign of the mean predictor of one output (0 is wrong), or the output with the
    largest mean.

    Parameters
    ----------
    mean : array, shape (P,) or (P, C)
        Mean predictor.
    labels : array of the same shape
        Targets, ±1 for one output.
    """
    xp = array_namespace(mean=mean, labels=labels)
    if mean.shape != labels.shape:
        raise ValueError(
            f"labels must have the shape of mean, {tuple(mean.shape)}, "
            f"but has {tuple(labels.shape)}"
        )
    if mean.shape[0] == 0:
        raise ValueError("mean has no examples; pass at least one")
    several = mean.ndim == 2 and mean.shape[1] > 1
    if not several and bool(xp.any(labels == 0)):
        raise ValueError(
            "labels of one output must be positive or negative, such as ±1, but contain 0"
        )
    right = mean * labels > 0
    if several:
        right = xp.argmax(mean, axis=1) == xp.argmax(labels, axis=1)
    return float(xp.mean(xp.astype(right, xp.float64)))


@dataclass(frozen=True)
class Regression:
    """Errors of predicted real targets.

    Attributes
    ----------
    mean_squared_error : float
        Mean over examples and outputs of (y − f)².
    r_squared : float
        1 − mean squared error / variance of the targets, both means over examples and outputs; NaN
        for constant targets.
    log_predictive_density : float
        Mean over examples and outputs of ln N(y | f, v + T), in nats, for predictor's mean f and
        variance v, and the temperature T as observation noise.
    """

    mean_squared_error: float
    r_squared: float
    log_predictive_density: float


def regression(mean: Array, variance: Array, labels: Array, temperature: float) -> Regression:
    """Mean squared error, R² and log predictive density of real targets.

    Parameters
    ----------
    mean, variance : array, shape (P,) or (P, C)
        Moments of the predictor (Eq. 29, 30).
    labels : array of the same shape
        Targets.
    temperature : float
        Variance T of the observation noise.

    Raises
    ------
    ValueError
        If the shapes differ, or there are no examples.
    """
    mean, variance, labels = _of_one_shape(mean=mean, variance=variance, labels=labels)
    return Regression(
        mean_squared_error(mean, labels),
        r_squared(mean, labels),
        log_predictive_density(mean, variance, labels, temperature),
    )


def mean_squared_error(mean: Array, labels: Array) -> float:
    """Mean squared error of predicted real targets; arguments as for :func:`regression`."""
    mean, labels = _of_one_shape(mean=mean, labels=labels)
    return float(np.mean((labels - mean) ** 2))


def r_squared(mean: Array, labels: Array) -> float:
    """R² of predicted real targets, NaN for constant ones; arguments as for :func:`regression`."""
    mean, labels = _of_one_shape(mean=mean, labels=labels)
    if not np.ptp(labels, axis=0).any():  # the variance of equal numbers may not round to 0
        return math.nan
    return 1 - mean_squared_error(mean, labels) / float(np.mean(np.var(labels, axis=0)))


def log_predictive_density(
    mean: Array, variance: Array, labels: Array, temperature: float
) -> float:
    """Mean log density of real targets, in nats; arguments as for :func:`regression`."""
    mean, variance, labels = _of_one_shape(mean=mean, variance=variance, labels=labels)
    squared, noisy = (labels - mean) ** 2, variance + temperature
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.mean(-0.5 * (squared / noisy + np.log(2 * math.pi * noisy))))


def _of_one_shape(**arrays: Array) -> list[np.ndarray]:
    """Arrays in double precision, if they have one shape and at least one example."""
    converted = [
        to_host(real_floating(name, array)).astype(np.float64) for name, array in arrays.items()
    ]
    shapes = [array.shape for array in converted]
    if len(set(shapes)) > 1 or not converted[0].size:
        *names, last_name = arrays
        *others, last_shape = map(str, shapes)
        raise ValueError(
            f"{', '.join(names)} and {last_name} must have one shape and at least one example, but "
            f"have {', '.join(others)} and {last_shape}"
        )
    return converted


@dataclass(frozen=True, eq=False)
class Alignment:
    """Principal components of a kernel and their overlap with the labels.

    Attributes
    ----------
    eigenvalues : array, shape (components,)
        In decreasing order.
    overlaps : array, shape (components,)
        Cosines |v_i·Y| / ‖Y‖, between 0 and 1; their squares sum to at most 1.
    """

    eigenvalues: np.ndarray
    overlaps: np.ndarray


def kernel_task_alignment(kernel: Array, labels: Array, components: int | None = None) -> Alignment:
    """Overlap of the kernel's leading principal components with the labels.

    Parameters
    ----------
    kernel : array, shape (P, P)
        Total kernel of the training examples, without the temperature.
    labels : array, shape (P,)
        Targets.
    components : int, optional
        Number of components, from the largest eigenvalue down; all by default.
    """
    if components is not None and components < 1:
        raise ValueError(f"components must be at least 1, or None for all, but is {components}")
    xp = array_namespace(kernel=kernel, labels=labels)
    kernel, labels = real_floating("kernel", kernel), real_floating("labels", labels)
    if labels.ndim != 1 or kernel.shape != (labels.shape[0], labels.shape[0]):
        raise ValueError(
            f"kernel must have shape (P, P) and labels (P,), but have {tuple(kernel.shape)} "
            f"and {tuple(labels.shape)}"
        )
    if not bool(xp.any(labels != 0)):
        raise ValueError("labels are all zero, so nothing can be aligned with them")
    labels = xp.astype(labels, kernel.dtype, copy=False)
    if isinstance(kernel, np.ndarray):
        from scipy.linalg import eigh  # can compute a subset; slow to import

        first = 0 if components is None else max(0, len(kernel) - components)
        values, vectors = eigh(kernel, subset_by_index=(first, len(kernel) - 1))
    else:
        values, vectors = xp.linalg.eigh(kernel)
    overlaps = xp.abs(matmul(labels[None, :], vectors)[0, :]) / xp.linalg.vector_norm(labels)
    leading = slice(None, components)
    return Alignment(to_host(values)[::-1][leading], to_host(overlaps)[::-1][leading])
