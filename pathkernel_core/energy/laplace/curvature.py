"""Curvature of the energy of classes, by differences of its gradient."""

from __future__ import annotations

import numpy as np
import scipy

from pathkernel_core.energy.form import Form

_STEP = 2e-3  # relative; four points leave an error of its fourth power


class DifferenceCurvature:
    """Changes of the energy's gradient by central differences of fourth order, to about ten digits.

    Closed forms would need the fourth derivatives of the likelihood. A product costs four
    evaluations of the energy.

    Parameters
    ----------
    form : Form
    factor : array, shape (n·C, n·C)
        Lower triangular, with the prior variance σ²_0 and the scales of paths, which may be 0.
    """

    def __init__(self, form: Form, factor: np.ndarray):
        self._form = form.for_descent()
        matrix = factor @ factor.T
        self._rows = np.flatnonzero(matrix.diagonal() > 0)
        self._root = np.linalg.cholesky(matrix[np.ix_(self._rows, self._rows)])
        self._scales = (matrix.diagonal() > 0).astype(float)[:, None]

    def along(self, direction: np.ndarray) -> np.ndarray:
        """Return the change of the gradient for a symmetric change dU (n·C, n·C)."""
        block = direction[np.ix_(self._rows, self._rows)]
        half = scipy.linalg.solve_triangular(self._root, block, lower=True)
        relative = scipy.linalg.solve_triangular(self._root, half.T, lower=True)
        size = np.abs(np.linalg.eigvalsh((relative + relative.T) / 2)).max()
        if not size > 0:
            return np.zeros_like(direction)
        step = _STEP / size
        near = self._gradient(step * relative) - self._gradient(-step * relative)
        far = self._gradient(2 * step * relative) - self._gradient(-2 * step * relative)
        return (8 * near - far) / (12 * step)

    def _gradient(self, relative: np.ndarray) -> np.ndarray:
        """Gradient at L (1 + d) Lᵀ."""
        moved = self._root @ np.linalg.cholesky(np.eye(len(relative)) + (relative + relative.T) / 2)
        factor = np.eye(len(self._scales))
        factor[np.ix_(self._rows, self._rows)] = moved
        return self._form.energy_and_gradient(factor, np.nan, self._scales)[1]

    def with_temperature(self) -> np.ndarray:
        """Refuse: there is no temperature."""
        raise ValueError(
            f"the {self._form.likelihood.name} likelihood has no temperature to respond to; "
            "the response to variances takes its place"
        )

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        """Refuse: classes do not change by small amounts."""
        raise ValueError(
            f"labels of the {self._form.likelihood.name} likelihood are classes, which do not "
            "change by small amounts"
        )
