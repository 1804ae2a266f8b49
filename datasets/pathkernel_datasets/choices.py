"""Ways to choose a temperature, by name."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from pathkernel_datasets.measures import kind_of


@dataclass(frozen=True)
class Choice:
    """A way to choose a temperature.

    Attributes
    ----------
    words : str
        What the temperature has that is chosen.
    score : str
        Variable of the store that it goes by.
    sign : int
        1 if the largest is best, −1 if the smallest is.
    """

    words: str
    score: str
    sign: int = 1


CHOICES = {
    "validation": Choice("largest validation accuracy", "accuracy_validation"),
    "leave-one-out": Choice(
        "smallest leave-one-out squared error", "leave_one_out_squared_error", sign=-1
    ),
    "evidence": Choice("largest log evidence", "log_evidence"),
    "next-evidence": Choice("largest log evidence to next order in 1/N", "log_evidence_next"),
    "paper": Choice("largest accuracy on the first test set, as in the paper", "accuracy"),
    "test": Choice(
        "largest accuracy on each test set itself, which is optimistically biased", "accuracy"
    ),
}
"""Ways to choose a temperature; the first two that a store has need no look at its test sets, and
the first is the default (docs/temperature.md)."""

_OF_TARGETS = {
    "validation": Choice("smallest validation error", "mean_squared_error_validation", sign=-1),
    "paper": Choice(
        "smallest mean squared error on the first test set", "mean_squared_error", sign=-1
    ),
    "test": Choice(
        "smallest mean squared error on each test set itself, which is optimistically biased",
        "mean_squared_error",
        sign=-1,
    ),
}


def choices_of(store: Container[str]) -> dict[str, Choice]:
    """Ways to choose a temperature of a store, by the names of its variables."""
    return CHOICES if kind_of(store) == "classes" else CHOICES | _OF_TARGETS


WORDS = tuple(name for name in CHOICES if name != "test")
"""Choices that give one temperature for all test sets."""
