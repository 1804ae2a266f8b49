"""Two classes by one output: p(y|f) = 1 / (1 + exp(−y f)), y = ±1."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import Array, array_namespace, is_true, real_floating
from pathkernel_core.energy.likelihoods.averages import average_sigmoid
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood, Probabilities
from pathkernel_core.energy.statistics import check_given


class Logistic(ClassLikelihood):
    """Classes −1 and +1 of one output, whose probabilities are columns in this order."""

    name = "logistic"

    def targets(self, labels: Array, name: str, array: Array, examples: int) -> Array:
        """Check labels ±1, (P,) or (P, 1)."""
        check_given("labels", labels)
        xp, shape = array_namespace(labels=labels, **{name: array}), tuple(labels.shape)
        if shape not in ((examples,), (examples, 1)):
            raise ValueError(
                f"labels of the logistic likelihood must have shape ({examples},), one for each "
                f'example of {name}, but has {shape}; several classes take likelihood="softmax"'
            )
        labels = xp.reshape(real_floating("labels", labels), (-1, 1))
        if not is_true(xp.all(xp.abs(labels) == 1)):
            wrong = labels[xp.abs(labels) != 1]
            raise ValueError(
                f"labels of the logistic likelihood must be −1 or 1, but {wrong.shape[0]} of "
                f"{examples} are not, such as {float(wrong[0]):g}; give 2 * labels - 1 for 0 and "
                '1, or likelihood="softmax" for classes 0, 1, 2, …'
            )
        return xp.astype(labels, array.dtype, copy=False)

    def search_temperature(self, temperature: float, outputs: int) -> float:
        """Return 1/W at f = 0."""
        return 4.0

    def search_labels(self, targets: Array) -> Array:
        """Return W⁻¹ ∂ ln p/∂f at f = 0."""
        return 2.0 * targets

    def log_density(self, outputs: Array, targets: Array) -> Array:
        """Sum of −ln(1 + exp(−y f))."""
        xp = array_namespace(outputs=outputs)
        return -xp.sum(_softplus(-targets * outputs, xp))

    def derivatives(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        """Gradient y p(−y|f) and root √(p(1|f) p(−1|f))."""
        xp = array_namespace(outputs=outputs)
        gradient = targets * sigmoid(-targets * outputs, xp)
        root = xp.sqrt(sigmoid(outputs, xp) * sigmoid(-outputs, xp))
        return gradient, root[:, :, None]

    def curvature_slope(self, outputs: Array, targets: Array, covariances: Array) -> Array:
        """Slope Σ W (1 − 2p)."""
        xp = array_namespace(outputs=outputs)
        one, other = sigmoid(outputs, xp), sigmoid(-outputs, xp)
        return covariances[:, :, 0] * one * other * (other - one)

    def as_signs(self, targets: Array) -> tuple[Array, np.ndarray]:
        """Return the labels, and the output itself."""
        return targets[:, 0], np.ones(1)

    def probabilities(self, mean: Array, covariances: Array) -> Probabilities:
        """Average by quadrature, of the classes −1 and +1."""
        xp = array_namespace(mean=mean)
        value, error = average_sigmoid(mean[:, 0], covariances[:, 0, 0])
        other, _ = average_sigmoid(-mean[:, 0], covariances[:, 0, 0])
        return Probabilities(xp.stack([other, value], axis=1), xp.stack([error] * 2, axis=1))


def sigmoid(x: Array, xp: Any) -> Array:
    """1 / (1 + e⁻ˣ), to full relative precision and without overflow."""
    decay = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, xp.ones_like(x), decay) / (1 + decay)


def _softplus(x: Array, xp: Any) -> Array:
    return xp.clip(x, min=0.0) + xp.log1p(xp.exp(-xp.abs(x)))


LOGISTIC = Logistic()
