"""Energies at many order parameters at once, from the same kernels of pairs of paths.

A single evaluation in kernel space reads all kernels twice, as fast as the memory gives them. Of B
order parameters together the two readings are products of matrices, with B rows in place of one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    cholesky,
    compile_function,
    from_host,
    identity,
    inverses_of_triangular,
    is_jax_namespace,
    is_numpy_namespace,
    log_determinant,
    on_accelerator,
    packed_order,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.costs import TOGETHER, Sizes, reads_kernels_together
from pathkernel_core.energy.form import ExamplesForm
from pathkernel_core.energy.kernel_energy import multiplicities, weights_of_one_output
from pathkernel_core.energy.kernel_index import pairs_of_paths

_ELEMENTS = 2**25  # of the kernels K that are held at once, 256 MiB in float64


class SharedKernels(ExamplesForm):
    """Form of the energy whose evaluations can share one reading of the kernels.

    Attributes
    ----------
    kernels : array, shape (n(n+1)/2, P(P+1)/2)
        Packed kernels of all pairs of paths, for one output.
    labels : array, shape (P, C)
    """

    kernels: Array

    @property
    @abstractmethod
    def n_paths(self) -> int:
        """Number n of paths."""

    def pays_together(self, points: int) -> bool:
        """Whether evaluations of so many order parameters are faster together."""
        examples, outputs = self.labels.shape
        if on_accelerator(self.labels):
            return outputs == 1 and points > 1
        return reads_kernels_together(Sizes(examples, self.n_paths, 0, outputs), points)

    def energies_and_gradients(
        self,
        factors: Sequence[np.ndarray],
        temperatures: Sequence[float],
        scales: Sequence[np.ndarray | None],
    ) -> list[tuple[float, np.ndarray]]:
        """Energies and gradients M − R of one output, on the host; NaN if K + T1 is not positive.

        Parameters
        ----------
        factors : sequence of arrays, shape (n, n)
            Of the B order parameters.
        temperatures : sequence of float
        scales : sequence of arrays, shape (n, 1), or None
            Factors of the paths, see
            :meth:`pathkernel_core.energy.form.Form.energy_and_gradient`.
        """
        scaled = [f if s is None else s * f for f, s in zip(factors, scales)]
        values: list[tuple[float, np.ndarray]] = []
        for batch in batches(len(scaled), max(TOGETHER, _ELEMENTS // self.kernels.shape[1])):
            arrays = np.stack(scaled[batch]), list(temperatures[batch])
            values += _batch(self.kernels, self.labels, *arrays)
        return [
            (energy, gradient if s is None else s * gradient * s.T)
            for (energy, gradient), s in zip(values, scales)
        ]


def _batch(
    kernels: Array, labels: Array, factors: np.ndarray, temperatures: list[float]
) -> list[tuple[float, np.ndarray]]:
    xp, count = array_namespace(kernels=kernels), len(factors)
    if is_jax_namespace(xp):  # a program for each power of two, and not for every number of points
        extra = 2 ** math.ceil(math.log2(count)) - count
        factors = np.concatenate([factors, factors[-1:].repeat(extra, axis=0)])
        temperatures = temperatures + temperatures[-1:] * extra
    arrays = (from_host(values, kernels) for values in (factors, temperatures))
    energies, gradients = compile_function(_kernel_space, xp)(kernels, labels, *arrays)
    return list(zip(to_host(energies)[:count].tolist(), to_host(gradients)))


def _kernel_space(
    kernels: Array, labels: Array, factors: Array, temperatures: Array
) -> tuple[Array, Array]:
    """Energies (B,) and M − R (B, n, n) of factors (B, n, n)."""
    xp, (count, paths, _) = array_namespace(kernels=kernels), factors.shape
    pairs, indices, share = pairs_of_paths(paths, 1)
    u = matmul(factors, xp.matrix_transpose(factors))
    entries = from_host(pairs @ (paths, 1), kernels, xp.int64)
    u = xp.take(xp.reshape(u, (count, -1)), entries, axis=1)
    energies, weights = _weights(matmul(u, kernels), labels, temperatures, xp)
    sums = matmul(weights, kernels.T)
    indices, share = from_host(indices, kernels, xp.int64), from_host(share, kernels)
    return energies, xp.reshape(share * xp.take(sums, indices, axis=1), factors.shape)


def _weights(mixed: Array, labels: Array, temperatures: Array, xp: Any) -> tuple[Array, Array]:
    """Energies (B,), and weights of the packed kernels' entries in M − R, of packed K (B, ·)."""
    if is_numpy_namespace(xp):  # LAPACK's packed routines take one matrix, in place
        values = [
            weights_of_one_output(mixed[row : row + 1], labels, temperatures[row], xp)
            for row in range(len(mixed))
        ]
        return np.array([energy for energy, _ in values]), np.stack([w[:, 0] for _, w in values])
    examples, labels = labels.shape[0], labels[:, 0]
    entries, indices, _ = packed_order(examples)
    matrices = xp.take(mixed, from_host(indices, mixed, xp.int64), axis=1)
    matrices = xp.reshape(matrices, (-1, examples, examples))
    matrices = matrices + temperatures[:, None, None] * identity(examples, mixed, xp)
    lower = cholesky(matrices, xp)
    roots = inverses_of_triangular(lower, xp)
    half = matmul(roots, labels)
    solved = xp.sum(roots * half[:, :, None], axis=1)
    weights = matmul(xp.matrix_transpose(roots), roots) - solved[:, :, None] * solved[:, None, :]
    flat = xp.reshape(weights, (weights.shape[0], -1))
    packed = xp.take(flat, from_host(entries, mixed, xp.int64), axis=1)
    energies = log_determinant(lower, xp) + xp.sum(half**2, axis=1)
    return energies, from_host(multiplicities(examples), mixed) * packed
