"""Gaussian posterior of the predictor on attentioned inputs, and the span of training inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import Array, array_namespace, compile_function, to_host
from pathkernel_core.arrays.products import matmul, vecdot
from pathkernel_core.energy.rows import per_output

PREDICTION_ELEMENTS = 2**22  # features of new examples in memory at once, 32 MiB in float64


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian posterior of the predictor, for attentioned inputs of new examples.

    Attributes
    ----------
    weights : array, shape (n·C, N_0)
        (U ⊗ 1) z, so that the mean is Φ(x) · weights.
    explained : callable
        Variance explained by the training examples, for mixed features of new examples and the
        arrays: (rows, n·C, N_0) → (rows,), k(x)ᵀ (K + T1)⁻¹ k(x) of Eq. 30.
    arrays : tuple
        Further arguments of ``explained``: a matrix of the training examples, and numbers.
    root : array, shape (P·C, P·C), or None
        L of K + T1 = LLᵀ in example space.
    """

    weights: Array
    explained: Callable[..., Array]
    arrays: tuple[Array, ...]
    root: Array | None = None

    def mean(self, new: Array, factor: Array, basis: Array | None = None) -> Array:
        """Mean (P_new, C) (Eq. 29) of new examples (P_new, n, N_0).

        The training examples were rotated into the basis (N_0, rank); no factor is needed.
        """
        return compile_function(_mean, array_namespace(xi=new))(new, self.weights, basis)

    def moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean and variance (Eq. 29, 30) of new examples (P_new, n, N_0), (P_new, C) each.

        The posterior belongs to the factor (n·C, n·C); its training examples were rotated into the
        basis (N_0, rank). ``own`` is None.
        """
        evaluate = compile_function(_moments, array_namespace(xi=new), static=("explained",))
        return evaluate(new, factor, self.weights, basis, self.arrays, explained=self.explained)

    def covariances(
        self, new: Array, factor: Array, basis: Array | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean (P_new, C) and covariance of the outputs (P_new, C, C), on the host."""
        evaluate = compile_function(_covariances, array_namespace(xi=new), static=("explained",))
        arguments = new, factor, self.weights, basis, self.arrays
        mean, covariance = evaluate(*arguments, explained=self.explained)
        return to_host(mean), to_host(covariance)


def _moments(
    xi: Array,
    factor: Array,
    weights: Array,
    basis: Array | None,
    arrays: tuple[Array, ...],
    *,
    explained: Callable[..., Array],
) -> tuple[Array, Array]:
    xp = array_namespace(xi=xi)
    mean = _mean(xi, weights, basis)
    prior, mixed = _prior_variance(xi, factor, basis)
    # rounding may leave -1e-17 where the examples determine the output
    variance = xp.clip(prior - explained(mixed, *arrays), min=0.0)
    return mean, xp.reshape(variance, mean.shape)


def _covariances(
    xi: Array,
    factor: Array,
    weights: Array,
    basis: Array | None,
    arrays: tuple[Array, ...],
    *,
    explained: Callable[..., Array],
) -> tuple[Array, Array]:
    """Mean (P, C) and covariance of the outputs (P, C, C)."""
    xp = array_namespace(xi=xi)
    outputs = weights.shape[0] // xi.shape[1]
    _, mixed = _prior_variance(xi, factor, basis)
    by_output = [mixed[output::outputs, ...] for output in range(outputs)]

    def variance(rows: Array) -> Array:
        return xp.sum(rows**2, axis=(1, 2)) - explained(rows, *arrays)

    # spaces give variances only, which is enough: with s = f_c + f_d and d = f_c − f_d,
    # Cov(f_c, f_d) = [Var s − Var d] / 4
    pairs = {}
    for c, row in enumerate(by_output):
        pairs[c, c] = variance(row)
        for d, column in enumerate(by_output[:c]):
            pairs[c, d] = pairs[d, c] = (variance(row + column) - variance(row - column)) / 4
    covariance = xp.stack([pairs[pair] for pair in sorted(pairs)], axis=1)
    covariance = xp.reshape(covariance, (-1, outputs, outputs))
    return _mean(xi, weights, basis), covariance


def _mean(xi: Array, weights: Array, basis: Array | None) -> Array:
    """Φ(x) · weights, (P, C), as one product."""
    xp = array_namespace(xi=xi)
    examples, paths, width = xi.shape
    if basis is not None:  # the weights are turned back, and not all new examples forth
        weights = matmul(weights, xp.matrix_transpose(basis))
    by_output = xp.permute_dims(xp.reshape(weights, (paths, -1, width)), (0, 2, 1))
    by_output = xp.reshape(by_output, (paths * width, -1)) / math.sqrt(width * paths)
    return matmul(xp.reshape(xi, (examples, paths * width)), by_output)


def _prior_variance(xi: Array, factor: Array, basis: Array | None) -> tuple[Array, Array]:
    """Prior variance of each row, and the mixed features."""
    xp = array_namespace(xi=xi)
    full = per_output(xi, factor.shape[0] // xi.shape[1])
    scaled = factor / math.sqrt(xi.shape[1] * xi.shape[2])
    if factor.ndim == 1:  # the square roots of a diagonal U
        mixed = scaled[:, None] * full
    else:
        mixed = matmul(xp.matrix_transpose(scaled), full)
    # before the rotation: new examples have a prior variance outside the training inputs' span, too
    flat = xp.reshape(mixed, (mixed.shape[0], -1))
    return vecdot(flat, flat), mixed if basis is None else rotated(mixed, basis)


def inputs_span(xi: Array, xp: Any) -> Array | None:
    """Orthonormal basis of the inputs' span, if it saves at least a tenth of the dimensions."""
    values, vectors = compile_function(_principal_axes, xp)(xi)
    values, width = to_host(values), xi.shape[2]
    rank = int((values > values[-1] * width * np.finfo(values.dtype).eps).sum())
    if not 0 < rank <= 0.9 * width:  # otherwise not worth that results differ by rounding
        return None
    return xp.astype(vectors[:, width - rank :], xi.dtype)


def _principal_axes(xi: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the second moment Σ ξξᵀ over examples and paths.

    Always in float64, where the squared rounding of single-precision inputs stays below a weak
    signal.
    """
    xp = array_namespace(xi=xi)
    double = xp.astype(xp.reshape(xi, (-1, xi.shape[2])), xp.float64, copy=False)
    moment = matmul(xp.matrix_transpose(double), double)
    # without a basis in case of overflow: the energy then reports it
    finite = xp.all(xp.isfinite(moment))
    values, vectors = xp.linalg.eigh(xp.where(finite, moment, xp.zeros_like(moment)))
    return values, vectors


def rotated(xi: Array, basis: Array) -> Array:
    """Inputs (P, n, N_0) in a basis (N_0, rank)."""
    xp = array_namespace(xi=xi)
    rows = matmul(xp.reshape(xi, (-1, xi.shape[2])), basis)
    return xp.reshape(rows, (*xi.shape[:2], basis.shape[1]))
