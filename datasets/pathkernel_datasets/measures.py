"""Measures of predictions, of classes and of real targets, and choices of a temperature by them.

A store has the measures of its examples' kind: a variable of each name, and with ``_gp`` and
``_sub_network`` those of the limits.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One measure of predictions on a test set.

    ``heading`` stands above a column, ``axis`` with the unit at an axis, ``form`` is the format of
    numbers in tables.
    """

    name: str
    long_name: str
    heading: str
    axis: str
    form: str = ".3f"
    units: str = "1"


MEASURES = {
    "classes": (
        Measure(
            "accuracy",
            "fraction of test examples classified correctly",
            "accuracy",
            "accuracy (fraction correct)",
        ),
    ),
    "targets": (
        Measure("r_squared", "R² on the test examples: 1 − MSE / variance of targets", "R²", "R²"),
        Measure(
            "mean_squared_error",
            "mean squared error (MSE) of the predictor's mean on the test examples",
            "MSE",
            "mean squared error",
            ".4g",
        ),
        Measure(
            "log_predictive_density",
            "mean log density of a test target, of the predictor's variance plus T",
            "ln p(y)",
            "log predictive density (nats)",
            ".2f",
            "nat",
        ),
    ),
}
"""Measures of every kind of examples, the first of which stands for them where one is shown."""


def kind_of(store: Container[str]) -> str:
    """Kind of the examples of a store, by the names of its variables."""
    return "classes" if "accuracy" in store else "targets"


def measures_of(store: Container[str]) -> tuple[Measure, ...]:
    """Measures that a store has, by the names of its variables."""
    return MEASURES[kind_of(store)]


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
"""Ways to choose a temperature; the first that a store has is the default (docs/temperature.md)."""

_OF_TARGETS = CHOICES | {
    "validation": Choice("smallest validation error", "mean_squared_error_validation", -1),
    "paper": Choice("smallest mean squared error on the first test set", "mean_squared_error", -1),
    "test": Choice(
        "smallest mean squared error on each test set itself, which is optimistically biased",
        "mean_squared_error",
        -1,
    ),
}

WORDS = tuple(name for name in CHOICES if name != "test")
"""Names of the choices that give one temperature for all test sets."""


def choices_of(store: Container[str]) -> dict[str, Choice]:
    """Ways to choose a temperature of a store, by the names of its variables."""
    return CHOICES if kind_of(store) == "classes" else _OF_TARGETS
