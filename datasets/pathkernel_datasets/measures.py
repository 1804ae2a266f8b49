"""How well test examples are predicted: what is measured of classes, and what of real targets.

A store has the measures of its examples' kind: a variable of each name, and with ``_gp`` and
``_sub_network`` those of the limits.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One measure of predictions on a test set.

    Attributes
    ----------
    name : str
        Of the variable.
    long_name : str
    heading : str
        Of a column of numbers.
    axis : str
        Label of an axis, with the unit.
    form : str
        Format of the numbers in tables.
    units : str
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
