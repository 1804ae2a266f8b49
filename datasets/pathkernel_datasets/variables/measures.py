"""Measures of predictions, of classes and of real targets, and choices of a temperature by them.

A measure is declared and computed here, of the theory's predictions and of draws. A study has the
measures of its examples' kind: a variable of each name, and with ``_gp`` and ``_sub_network`` those
of the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pathkernel_core.prediction.scores import (
    accuracy,
    log_predictive_density,
    mean_squared_error,
    r_squared,
)

if TYPE_CHECKING:  # help of commands does not need it
    import xarray as xr


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of the labels of some examples, by one solution or by draws.

    Attributes
    ----------
    means : array, shape (D, P) or (D, P, C)
        Mean output of each of D draws, or of the one solution.
    labels : array, shape (P,) or (P, C)
    variances : array of the shape of ``means``, optional
        Variances of the output, without noise; classes need none.
    temperature : float, optional
        Variance T of the observation noise; only densities need it.
    probabilities : array, shape (P, classes), optional
        Probabilities of the classes, of one solution of a likelihood that has them.
    probability_error : array, shape (P, classes), optional
        Error of their average over the Gaussian of the outputs.
    """

    means: np.ndarray
    labels: np.ndarray
    variances: np.ndarray | None = None
    temperature: float = math.nan
    probabilities: np.ndarray | None = None
    probability_error: np.ndarray | None = None

    @property
    def mean(self) -> np.ndarray:
        """Mean output over the draws."""
        return self.means.mean(0)


@dataclass(frozen=True)
class Measure:
    """One measure of predictions on a test set.

    Attributes
    ----------
    name, long_name : str
        Name and description of its variable in datasets.
    heading, axis : str
        Text above a column; and at an axis, with the unit.
    function : callable
        Predictions → float.
    form : str
        Format of numbers in tables.
    units : str
    validation : str
        Description of its variable of validation examples, ``NAME_validation``; empty if it has
        none.
    is_fraction : bool
        Whether it is a fraction of the examples, whose differences are in points, and which has a
        binomial standard error.
    """

    name: str
    long_name: str
    heading: str
    axis: str
    function: Callable[[Predictions], float]
    form: str = ".3f"
    units: str = "1"
    validation: str = ""
    is_fraction: bool = False


def _log_density(predictions: Predictions) -> float:
    """Mean log density of targets; of draws, that of their mixture."""
    means = predictions.means
    variances: Any = predictions.variances  # of targets they are always there
    labels, temperature = predictions.labels, predictions.temperature
    if len(means) == 1:
        return log_predictive_density(means[0], variances[0], labels, temperature)
    from scipy.special import logsumexp  # slow to import

    noisy = variances + temperature
    densities = -0.5 * ((labels - means) ** 2 / noisy + np.log(2 * np.pi * noisy))
    return float((logsumexp(densities, axis=0) - np.log(len(means))).mean())


CALIBRATION_BINS = 10
"""Bins of equal width in which the largest probability is compared with the fraction correct."""


@dataclass(frozen=True, eq=False)
class Reliability:
    """Examples by their largest probability, in bins of equal width between 0 and 1.

    Attributes
    ----------
    counts : array, shape (bins,)
        Number of examples in each bin.
    confidence, correct : array, shape (bins,)
        Mean largest probability, and fraction whose most probable class is their own; NaN in an
        empty bin.
    """

    counts: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    @property
    def error(self) -> float:
        """Expected calibration error (ECE): mean over examples of |confidence − correct|."""
        gaps = np.abs(self.confidence - self.correct)
        return float(np.nansum(self.counts * gaps) / self.counts.sum())


def class_indices(labels: np.ndarray) -> np.ndarray:
    """Classes (P,), from 0, of labels ±1 (P,), or of rows (P, C) with a single 1."""
    return (labels > 0).astype(int) if labels.ndim == 1 else labels.argmax(axis=1)


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> Reliability:
    """Compare probabilities (P, classes) with the labels of the examples, (P,) or (P, C)."""
    largest = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == class_indices(labels)
    # 1 is in the last bin
    bins = np.minimum((largest * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    counts, confidence, correct = (
        np.bincount(bins, weights, minlength=CALIBRATION_BINS)
        for weights in (None, largest, right.astype(float))
    )
    filled = np.where(counts > 0, counts, math.nan)
    return Reliability(counts, confidence / filled, correct / filled)


def _log_loss(predictions: Predictions) -> float:
    """Mean of −ln p of the example's own class."""
    probabilities: Any = predictions.probabilities
    own = probabilities[np.arange(len(probabilities)), class_indices(predictions.labels)]
    # a probability that underflows would make the mean infinite
    return float(-np.log(np.maximum(own, np.finfo(float).tiny)).mean())


def _calibration_error(predictions: Predictions) -> float:
    probabilities: Any = predictions.probabilities
    return reliability(probabilities, predictions.labels).error


_ACCURACY = Measure(
    "accuracy",
    "fraction of test examples classified correctly",
    "accuracy",
    "accuracy (fraction correct)",
    lambda predictions: accuracy(predictions.mean, predictions.labels),
    validation="fraction of validation examples classified correctly",
    is_fraction=True,
)

MEASURES = {
    "classes": (_ACCURACY,),
    "probabilities": (
        _ACCURACY,
        Measure(
            "log_loss",
            "mean of −ln p of the class of a test example",
            "log loss",
            "log loss (nats)",
            _log_loss,
            units="nat",
        ),
        Measure(
            "calibration_error",
            "expected calibration error (ECE) on the test examples: mean distance of the largest "
            f"probability from the fraction correct, in {CALIBRATION_BINS} bins of equal width of "
            "the largest probability",
            "ECE",
            "calibration error (ECE)",
            _calibration_error,
        ),
    ),
    "targets": (
        Measure(
            "r_squared",
            "R² on the test examples: 1 − MSE / variance of targets",
            "R²",
            "R²",
            lambda predictions: r_squared(predictions.mean, predictions.labels),
        ),
        Measure(
            "mean_squared_error",
            "mean squared error (MSE) of the predictor's mean on the test examples",
            "MSE",
            "mean squared error",
            lambda predictions: mean_squared_error(predictions.mean, predictions.labels),
            ".4g",
            validation="mean squared error on validation examples",
        ),
        Measure(
            "log_predictive_density",
            "mean log density of a test target, of the predictor's variance plus T",
            "ln p(y)",
            "log predictive density (nats)",
            _log_density,
            ".2f",
            "nat",
        ),
    ),
}
"""Measures of every kind of examples, the first of which stands for them where one is shown."""


def label_kind(dataset: Container[str]) -> str:
    """Kind of the examples of a study, by the names of its variables."""
    if "log_loss" in dataset:
        return "probabilities"
    return "classes" if _ACCURACY.name in dataset else "targets"


def has_temperature(dataset: xr.Dataset) -> bool:
    """Whether the likelihood of a study has a temperature; those of classes have none."""
    return "likelihood" not in dataset.attrs


def measures_of(dataset: Container[str]) -> tuple[Measure, ...]:
    """Measures that a study has, by the names of its variables."""
    return MEASURES[label_kind(dataset)]


@dataclass(frozen=True)
class Choice:
    """A way to choose a temperature: the largest ``sign`` times ``score``, a variable."""

    description: str
    score: str
    sign: int = 1


CHOICES = {
    "validation": Choice("largest validation accuracy", "accuracy_validation"),
    "leave-one-out": Choice(
        "smallest leave-one-out squared error", "leave_one_out_squared_error", -1
    ),
    "evidence": Choice("largest log evidence", "log_evidence"),
    "paper": Choice("largest accuracy on the first test set, as in the paper", "accuracy"),
    "test": Choice(
        "largest accuracy on each test set itself, which is optimistically biased", "accuracy"
    ),
}
"""Ways to choose a temperature; the first that a study has is the default (docs/temperature.md)."""

_OF_TARGETS = CHOICES | {
    "validation": Choice("smallest validation error", "mean_squared_error_validation", -1),
    "paper": Choice("smallest mean squared error on the first test set", "mean_squared_error", -1),
    "test": Choice(
        "smallest mean squared error on each test set itself, which is optimistically biased",
        "mean_squared_error",
        -1,
    ),
}

# of one temperature, which any takes: not the evidence, which narrow networks lack
_OF_PROBABILITIES = {name: CHOICES[name] for name in ("validation", "paper", "test")}

WORDS = tuple(name for name in CHOICES if name != "test")
"""Names of the choices that give one temperature for all test sets."""


def choices_of(dataset: Container[str]) -> dict[str, Choice]:
    """Ways to choose a temperature of a study, by the names of its variables."""
    of_kinds = {"targets": _OF_TARGETS, "probabilities": _OF_PROBABILITIES}
    return of_kinds.get(label_kind(dataset), CHOICES)
