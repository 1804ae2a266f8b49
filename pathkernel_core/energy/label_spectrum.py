"""Distribution of the labels over the eigenvectors of a kernel, from a few products with it.

Lanczos' method, started with the labels, gives a Gauss quadrature of sums Σ_k (v_k·Y)² f(λ_k) over
the eigenpairs of K in about thirty products, as much work as one evaluation of the energy. Started
with random vectors it estimates Σ_k f(λ_k). Of small matrices the eigenvectors are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    is_finite,
    is_true,
    join_batches,
    to_host,
)
from pathkernel_core.arrays.products import matmul

_EXACT = 256  # rows of a matrix whose eigenvectors take less time than Lanczos' method
_STEPS = 32
_PROBES = 4  # random vectors
_ROUNDING = 1e-12  # of the largest eigenvalue


@dataclass(frozen=True)
class Quadrature:
    """Quadrature Σ_k w_k f(λ_k) of a sum over the eigenvalues of a matrix."""

    nodes: np.ndarray
    weights: np.ndarray

    def scaled(self, factor: float) -> Quadrature:
        """Quadrature for the matrix times a positive factor."""
        return Quadrature(factor * self.nodes, self.weights)


@dataclass(frozen=True)
class LabelSpectrum:
    """Spectrum of a kernel K, and distribution of the labels over it.

    Attributes
    ----------
    labels : Quadrature
        Of Σ_k (v_k·Y)² f(λ_k), over eigenvalues and eigenvectors of K; weights sum to Σ Y².
    modes : Quadrature
        Of Σ_k f(λ_k) for f(0) = 0, estimated from random vectors.
    mean_diagonal : float
        Mean of the kernel's diagonal, which is the prior variance of an output.
    mean_label_square : float
        Mean of the squared labels.
    """

    labels: Quadrature
    modes: Quadrature
    mean_diagonal: float
    mean_label_square: float

    def scaled(self, factor: float) -> LabelSpectrum:
        """Spectrum of the kernel times a positive factor."""
        return LabelSpectrum(
            self.labels.scaled(factor),
            self.modes.scaled(factor),
            factor * self.mean_diagonal,
            self.mean_label_square,
        )

    def explained_share(self, temperature: float) -> float:
        """Share of the squared labels in the span of the features that the kernel explains.

        1 − T Yᵀ(K + T1)⁻¹Y / Σ Y² if they span all labels; NaN if none.
        """
        nodes, weights = self.labels.nodes, self.labels.weights
        attainable = weights[nodes > _ROUNDING * nodes.max(initial=0.0)].sum()
        with np.errstate(over="ignore", divide="ignore"):
            explained = (weights / (1 + temperature / nodes)).sum()
        return float(explained / attainable) if attainable > 0 else math.nan


def kernel_spectrum(kernel: Array, labels: Array) -> LabelSpectrum:
    """Spectrum of a kernel (P, P) that is in memory, with labels (P, C)."""
    xp = array_namespace(kernel=kernel)
    of_labels, modes = quadratures(kernel, labels)
    mean = float(xp.sum(xp.linalg.diagonal(kernel))) / kernel.shape[0]
    return LabelSpectrum(of_labels, modes, mean, float(xp.mean(labels**2)))


def quadratures(matrix: Array, start: Array) -> tuple[Quadrature, Quadrature]:
    """Quadratures as :func:`lanczos` has them, of a symmetric positive matrix in memory.

    Exact for small matrices, whose eigenvectors take less time.
    """
    if matrix.shape[0] > _EXACT or not is_true(is_finite(matrix)):
        return lanczos(_product, (matrix,), start)
    xp = array_namespace(matrix=matrix)
    values, powers = map(to_host, compile_function(_powers, xp)(matrix, start))
    nodes = np.maximum(values.astype(float), 0.0)  # rounding may make a zero eigenvalue negative
    of_start = Quadrature(nodes, powers.astype(float))
    return _sum([of_start]), Quadrature(nodes, np.ones(len(nodes)))


def _powers(matrix: Array, start: Array) -> tuple[Array, Array]:
    """Eigenvalues, and sums over the columns of ``start`` of squared components."""
    xp = array_namespace(matrix=matrix)
    values, vectors = xp.linalg.eigh(matrix)
    return values, xp.sum(matmul(xp.matrix_transpose(vectors), start) ** 2, axis=1)


def _product(vectors: Array, kernel: Array) -> Array:
    return matmul(kernel, vectors)


def lanczos(
    product: Callable[..., Array], arrays: tuple[Array, ...], start: Array
) -> tuple[Quadrature, Quadrature]:
    """Quadratures of Σ_k (v_k·start)² f(λ_k) and Σ_k f(λ_k) over the eigenpairs of an operator.

    Parameters
    ----------
    product : callable
        (vectors (rows, columns), *arrays) → the symmetric positive operator times the vectors.
    arrays : tuple of arrays
        Arguments of the product.
    start : array, shape (rows, C)
        A vector for each output; the first quadrature sums over them.
    """
    xp = array_namespace(start=start)
    rows, outputs = start.shape
    steps = min(_STEPS, rows)
    # of all vectors with independent entries, those of ±1 estimate a trace with the least variance
    probes = np.random.default_rng(0).choice([-1.0, 1.0], size=(rows, _PROBES))
    vectors, norms, basis = compile_function(_begin, xp)(
        start, from_host(probes, start), from_host(np.zeros((1, steps, 1)), start)
    )
    step = compile_function(_step, xp, static=("product",))
    diagonals, couplings = [], []
    for number in range(steps):
        # a mask that adds the vector to an empty row of the basis: JAX cannot assign in place,
        # and with the mask as an argument one compiled program serves all steps
        row = from_host(np.eye(steps)[number][:, None], start)
        basis, vectors, diagonal, coupling = step(basis, row, vectors, arrays, product=product)
        diagonals.append(to_host(diagonal))
        couplings.append(to_host(coupling))
    squares = to_host(norms).astype(float) ** 2
    squares[outputs:] /= _PROBES
    quadratures = [
        _gauss(diagonal, coupling, square)
        for diagonal, coupling, square in zip(
            np.array(diagonals, dtype=float).T, np.array(couplings, dtype=float)[:-1].T, squares
        )
    ]
    return _sum(quadratures[:outputs]), _sum(quadratures[outputs:])


def _begin(start: Array, probes: Array, zeros: Array) -> tuple[Array, Array, Array]:
    """Unit vectors, their original norms, and zeros for all vectors of the basis."""
    xp = array_namespace(start=start)
    vectors = join_batches([start, probes], axis=1)
    norms = xp.sqrt(xp.sum(vectors**2, axis=0))
    vectors = vectors / xp.where(norms > 0, norms, xp.ones_like(norms))
    return vectors, norms, zeros * xp.matrix_transpose(vectors)[:, None, :]


def _gauss(diagonal: np.ndarray, coupling: np.ndarray, total: float) -> Quadrature:
    """Gauss quadrature of a Lanczos run, with weights that sum to total."""
    if not (np.isfinite(diagonal).all() and np.isfinite(coupling).all()):
        return Quadrature(np.zeros(0), np.zeros(0))  # overflow, which the factorisation reports
    # nodes are eigenvalues of the tridiagonal matrix, weights the squared first components of its
    # eigenvectors (Golub and Welsch); rounding may make a zero eigenvalue negative
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal, coupling)
    return Quadrature(np.maximum(nodes, 0.0), total * vectors[0] ** 2)


def _sum(quadratures: Sequence[Quadrature]) -> Quadrature:
    nodes = np.concatenate([quadrature.nodes for quadrature in quadratures])
    weights = np.concatenate([quadrature.weights for quadrature in quadratures])
    return Quadrature(nodes[weights > 0], weights[weights > 0])


def _step(
    basis: Array,
    row: Array,
    vectors: Array,
    arrays: tuple[Array, ...],
    *,
    product: Callable[..., Array],
) -> tuple[Array, Array, Array, Array]:
    """One step of Lanczos' method for every column, orthogonalised against all before it."""
    xp = array_namespace(vectors=vectors)
    basis = basis + row * xp.matrix_transpose(vectors)[:, None, :]  # (columns, steps, rows)
    images = product(vectors, *arrays)
    diagonal, size = xp.sum(vectors * images, axis=0), xp.sqrt(xp.sum(images**2, axis=0))
    # against the whole basis: the three-term recurrence alone loses orthogonality as soon as a node
    # converges, and then finds it again as a ghost. Twice is enough for full precision
    columns = xp.matrix_transpose(images)[:, :, None]
    for _ in range(2):
        columns = columns - matmul(xp.matrix_transpose(basis), matmul(basis, columns))
    images = xp.matrix_transpose(columns[:, :, 0])
    norms = xp.sqrt(xp.sum(images**2, axis=0))
    # an exhausted Krylov space leaves only rounding
    ended = norms <= 100 * float(xp.finfo(images.dtype).eps) * size
    norms = xp.where(ended, xp.zeros_like(norms), norms)
    images = xp.where(ended, xp.zeros_like(images), images)
    return basis, images / xp.where(ended, xp.ones_like(norms), norms), diagonal, norms
