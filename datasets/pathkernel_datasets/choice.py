"""Choosing a temperature, with and without a look at the test set.

The paper reports, for every width, the accuracy at the temperature that is best on the very test
set that is reported. That number is optimistic: it is the largest of several noisy ones. The log
evidence and the accuracy on validation examples choose without having seen the test set.
"""

from __future__ import annotations

import numpy as np

CHOICES = {
    "evidence": "largest log evidence",
    "validation": "largest validation accuracy",
    "test": "largest accuracy on the test set itself, which is optimistically biased",
}
"""Ways to choose a temperature, and what each goes by."""


def choose_temperatures(
    log_evidence: np.ndarray, accuracy: np.ndarray, accuracy_validation: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Index of the temperature that each choice takes.

    Equal accuracies, which are common on a finite set, are decided by the log evidence, and equal
    log evidences by the order of the temperatures.

    Parameters
    ----------
    log_evidence : array, shape (temperature, …)
        NaN where the kernel was not positive definite: such a temperature is never taken.
    accuracy : array, shape (temperature, …, test_set)
        Fraction of test examples classified correctly.
    accuracy_validation : array, shape (temperature, …), optional
        Fraction of validation examples classified correctly.

    Returns
    -------
    dict of str to int array, shape (…, test_set)
        By choice, "validation" among them if there is a validation accuracy; −1 where every
        temperature failed.
    """
    evidence = np.broadcast_to(np.asarray(log_evidence)[..., None], np.shape(accuracy))
    chosen = {"evidence": _largest(evidence, evidence)}
    if accuracy_validation is not None:
        validation = np.broadcast_to(np.asarray(accuracy_validation)[..., None], evidence.shape)
        chosen["validation"] = _largest(validation, evidence)
    chosen["test"] = _largest(np.asarray(accuracy), evidence)
    return chosen


def at_chosen(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Values at the temperatures chosen, NaN where there is none.

    Parameters
    ----------
    values : array, shape (temperature, …) or that with fewer axes behind the first
        For example the temperatures themselves.
    index : int array, shape (…)
        From :func:`choose_temperatures`.
    """
    values = np.asarray(values, dtype=float)
    values = values.reshape(values.shape + (1,) * (1 + index.ndim - values.ndim))
    values = np.broadcast_to(values, (len(values), *index.shape))
    taken = np.take_along_axis(values, np.maximum(index, 0)[None], axis=0)[0]
    return np.where(index >= 0, taken, np.nan)


def _largest(score: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Index along the first axis of the largest score, ties by evidence; −1 if all are NaN."""
    known = ~np.isnan(score) & ~np.isnan(evidence)
    score = np.where(known, score, -np.inf)
    tied = known & (score == score.max(axis=0))
    index = np.argmax(np.where(tied, evidence, -np.inf), axis=0)
    return np.where(known.any(axis=0), index, -1)
