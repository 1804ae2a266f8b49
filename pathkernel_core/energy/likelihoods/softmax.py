"""Several classes: p(class c|f) = exp f_c / Σ_d exp f_d, with an output for each class."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    from_host,
    is_integral,
    is_true,
    real_floating,
)
from pathkernel_core.energy.likelihoods.averages import average_sigmoid, average_softmax
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood, Probabilities
from pathkernel_core.energy.statistics import check_given

_MOST_CLASSES = 6000  # beyond, one example of each would be too large, and a slip likely


class Softmax(ClassLikelihood):
    """Classes 0 … C − 1, with targets that are rows of 0 and a 1."""

    name = "softmax"
    is_multinomial = True

    def targets(self, labels: Array, name: str, array: Array, examples: int) -> Array:
        """Check integer classes (P,), or rows (P, C) of 0 and a 1, where a class may be absent."""
        check_given("labels", labels)
        xp, shape = array_namespace(labels=labels, **{name: array}), tuple(labels.shape)
        if not shape or shape[0] != examples or len(shape) > 2 or 0 in shape:
            raise ValueError(
                f"labels of the softmax likelihood must have shape ({examples},), a class for each "
                f"example of {name}, or ({examples}, C), but has {shape}"
            )
        return _rows_of_classes(labels, array, xp) if len(shape) == 1 else _rows(labels, array, xp)

    def search_temperature(self, temperature: float, outputs: int) -> float:
        """Return 1/W at f = 0, orthogonal to equal shifts of all outputs."""
        return float(outputs)

    def search_labels(self, targets: Array) -> Array:
        """Return W⁻¹ ∂ ln p/∂f at f = 0, orthogonal to equal shifts of all outputs."""
        return targets.shape[1] * targets - 1.0

    def log_density(self, outputs: Array, targets: Array) -> Array:
        """Sum of f_y − ln Σ_c exp f_c."""
        xp = array_namespace(outputs=outputs)
        # from the output of the example's own class: a difference of large logits keeps its digits
        below = outputs - xp.sum(targets * outputs, axis=1, keepdims=True)
        largest = xp.max(below, axis=1, keepdims=True)
        sums = xp.sum(xp.exp(below - largest), axis=1, keepdims=True)
        return -xp.sum(largest + xp.log(sums))

    def derivatives(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        """Gradient y − p, and R = diag √p − p √pᵀ."""
        xp = array_namespace(outputs=outputs)
        p, rest = _probabilities(outputs, xp)
        gradient = targets * rest - (1 - targets) * p
        roots, same = xp.sqrt(p), from_host(np.eye(p.shape[1]), outputs)
        # the diagonal √p (1 − p) from 1 − p itself, as 1 − p of rounded p loses all digits at p = 1
        off_diagonal = -p[:, :, None] * roots[:, None, :]
        return gradient, xp.where(same > 0, (roots * rest)[:, None, :], off_diagonal)

    def curvature_slope(self, outputs: Array, targets: Array, covariances: Array) -> Array:
        """Slope W u with u = diag Σ − 2 Σ p, since ∂W_cd/∂f_e is made of W and p alone."""
        xp = array_namespace(outputs=outputs)
        p, _ = _probabilities(outputs, xp)
        fitted = xp.sum(covariances * p[:, None, :], axis=2)
        u = xp.linalg.diagonal(covariances) - 2 * fitted
        return p * (u - xp.sum(p * u, axis=1, keepdims=True))

    def class_probabilities(self, outputs: Array) -> Array:
        """Return the softmax of the outputs."""
        return _probabilities(outputs, array_namespace(outputs=outputs))[0]

    def as_signs(self, targets: Array) -> tuple[Array, np.ndarray]:
        """Two classes as the sign of the difference of the outputs."""
        if targets.shape[1] > 2:
            return super().as_signs(targets)
        return targets[:, 1] - targets[:, 0], np.array([-1.0, 1.0])

    def probabilities(self, mean: Array, covariances: Array) -> Probabilities:
        """Average by quadrature for two classes, by seeded draws for more."""
        if mean.shape[1] > 2:
            return Probabilities(*average_softmax(mean, covariances))
        # of two classes the difference of the outputs alone counts
        xp, difference = array_namespace(mean=mean), mean[:, 1] - mean[:, 0]
        variance = covariances[:, 0, 0] + covariances[:, 1, 1] - 2 * covariances[:, 0, 1]
        value, error = average_sigmoid(difference, variance)
        other, _ = average_sigmoid(-difference, variance)
        return Probabilities(xp.stack([other, value], axis=1), xp.stack([error] * 2, axis=1))


def _probabilities(outputs: Array, xp: Any) -> tuple[Array, Array]:
    """Probabilities p (P, C), and 1 − p with all its digits."""
    terms = xp.exp(outputs - xp.max(outputs, axis=1, keepdims=True))
    p = terms / xp.sum(terms, axis=1, keepdims=True)
    others = from_host(1.0 - np.eye(p.shape[1]), outputs)
    return p, xp.sum(p[:, None, :] * others, axis=2)


def _rows_of_classes(labels: Array, array: Array, xp: Any) -> Array:
    """Integer classes (P,) as rows of 0 and a 1."""
    shape = tuple(labels.shape)
    if not is_integral(labels.dtype, xp) or labels.dtype == xp.bool:
        is_text = getattr(labels.dtype, "kind", None) in ("U", "S", "T", "O")
        remedy = (
            "number their names, numpy.unique(labels, return_inverse=True)[1]"
            if is_text
            else "convert them to int64"
        )
        raise ValueError(
            f"labels of the softmax likelihood must be classes 0, 1, 2, … as integers, but labels "
            f"of shape {shape} have dtype {labels.dtype}; {remedy}"
        )
    lowest, highest = int(xp.min(labels)), int(xp.max(labels))
    if lowest < 0 or highest >= _MOST_CLASSES:
        raise ValueError(
            "labels of the softmax likelihood must be classes 0 … C − 1, but lie between "
            f"{lowest} and {highest}; number the classes from 0"
            + (', or set likelihood="logistic" for −1 and 1' if lowest == -1 else "")
        )
    if highest == 0:
        raise ValueError(
            f"labels of shape {shape} are all of class 0; the softmax likelihood needs at least "
            "two classes. If another class has no example, give rows (P, C) of 0 and a 1"
        )
    classes = from_host(np.arange(highest + 1), array, labels.dtype)
    return xp.astype(labels[:, None] == classes, array.dtype)


def _rows(labels: Array, array: Array, xp: Any) -> Array:
    """Rows of 0 and a 1, checked."""
    shape = tuple(labels.shape)
    rows = real_floating("labels", labels)
    is_row = xp.all((rows == 0) | (rows == 1), axis=1) & (xp.sum(rows, axis=1) == 1)
    if shape[1] < 2 or not is_true(xp.all(is_row)):
        raise ValueError(
            f"labels of shape {shape} of the softmax likelihood must be rows of 0 and a single 1, "
            "for at least two classes; or give the classes 0, 1, 2, … as integers of shape "
            f"({shape[0]},)"
        )
    return xp.astype(rows, array.dtype, copy=False)


SOFTMAX = Softmax()
