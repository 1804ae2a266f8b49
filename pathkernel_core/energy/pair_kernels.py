"""Energy of kernels that are given for every pair of paths, in place of attentioned inputs.

The theory needs no inputs: with any positive semidefinite kernel C_ππ'(x, x') between path π of an
example and path π' of another, the kernel of the network is

    K(x, x') = (σ²_0/n) Σ_ππ' U_ππ' C_ππ'(x, x'),

and all that follows from it, too. Two linear maps do the work: a matrix over paths *mixes* the
kernels into one of examples, and weights of pairs of examples *sum* them into one of paths. Each is
a product with the packed kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    compile_function,
    from_host,
    invert_triangular,
    is_finite,
    is_true,
    log_determinant,
    packed_order,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.kernel_batches import SharedKernels
from pathkernel_core.energy.kernel_energy import (
    by_output,
    kernel_space,
    multiplicities,
    pairs_of_paths,
    sums_of_pairs,
)
from pathkernel_core.energy.label_spectrum import LabelSpectrum, kernel_spectrum
from pathkernel_core.energy.spaces import explained_labels, not_positive_definite
from pathkernel_core.system.errors import NotPositiveDefiniteError


@dataclass(frozen=True, eq=False)
class PairSpace(SharedKernels):
    """Energy of given kernels, from a Cholesky factor of K + T1, P·C × P·C.

    Parameters
    ----------
    kernels : array, shape (n(n+1)/2, P(P+1)/2) or (n², P²)
        Kernels divided by n: packed, and both orders of a pair added, for one output; in full for
        several.
    labels : array, shape (P, C)
    """

    kernels: Array
    labels: Array
    name = "kernels"

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.kernels

    @property
    def n_paths(self) -> int:
        """Number n of paths."""
        pairs = self.kernels.shape[0]
        return math.isqrt(pairs if self.labels.shape[1] > 1 else 2 * pairs)

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        evaluate = compile_function(_summed_kernels, array_namespace(kernels=self.kernels))
        return evaluate(self.kernels, self.labels)

    @property
    def full_kernels(self) -> Array:
        """Kernels of all pairs of paths, divided by n, (n, n, P, P).

        Of one output with C_ππ'(x, x') and C_ππ'(x', x) replaced by their mean, which is all that
        the theory needs.
        """
        evaluate = compile_function(_full_kernels, array_namespace(kernels=self.kernels))
        return evaluate(self.kernels, self.labels)

    def evaluate(self, factor: Array, temperature: Array) -> tuple[Array, Array]:
        """Energy () and its gradient M − R (n·C, n·C), traceable by ``jax.jit``.

        See :meth:`pathkernel_core.energy.spaces.ExampleSpace.evaluate`.
        """
        return kernel_space(self.kernels, self.labels, factor, temperature)

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient M − R with respect to U_1 = factor factorᵀ, on the host.

        Scales as in :meth:`pathkernel_core.energy.spaces.ExampleSpace.energy_and_gradient`.
        """
        evaluate = compile_function(
            kernel_space, array_namespace(kernels=self.kernels), static=("lower",)
        )
        scaled = from_host(factor if scales is None else scales * factor, self.kernels)
        energy, gradient = evaluate(
            self.kernels, self.labels, scaled, from_host(temperature, self.kernels), lower=True
        )
        energy = float(energy)
        if not math.isfinite(energy):
            raise self._not_positive_definite(scaled, temperature)
        gradient = to_host(gradient)
        return energy, gradient if scales is None else scales * gradient * scales.T

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""
        xp = array_namespace(kernels=self.kernels)
        root, coefficients = _factorised(self.kernels, self.labels, factor, temperature)
        return log_determinant(root, xp) + xp.sum(xp.reshape(self.labels, (-1,)) * coefficients)

    def posterior(self, factor: np.ndarray, temperature: float) -> KernelPosterior:
        """Gaussian posterior of the predictor at U_1 = factor factorᵀ."""
        factor = from_host(factor, self.kernels)
        evaluate = compile_function(_factorised, array_namespace(kernels=self.kernels))
        root, coefficients = evaluate(
            self.kernels, self.labels, factor, from_host(temperature, self.kernels)
        )
        if not is_true(is_finite(coefficients)):
            raise self._not_positive_definite(factor, temperature)
        return KernelPosterior(coefficients, root)

    def explained_labels(self, root: Array) -> tuple[np.ndarray, np.ndarray]:
        """(K + T1)⁻¹ Y (P, C) and the blocks of (K + T1)⁻¹ on its diagonal (P, C, C), from L."""
        coefficients, blocks = compile_function(explained_labels, array_namespace(root=root))(
            root, self.labels
        )
        return to_host(coefficients), to_host(blocks)

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² C_ππ, for coefficients c (n,) of paths."""
        xp = array_namespace(kernels=self.kernels)
        weights = from_host(np.diag(scales**2), self.kernels)
        kernel = compile_function(mixed_kernels, xp)(self.kernels, weights, self.labels)
        return kernel_spectrum(kernel, self.labels)

    def keep_paths(self, paths: np.ndarray) -> PairSpace:
        """Same form for a sub-network of these paths."""
        outputs, number = self.labels.shape[1], self.n_paths
        _, indices, _ = pairs_of_paths(number, outputs)
        left, _, _ = pairs_of_paths(len(paths), outputs)
        xp, (rows, columns) = array_namespace(kernels=self.kernels), paths[left].T
        # of one output a pair has one entry, whatever the order of its paths
        entries = from_host(indices[rows * number + columns], self.kernels, xp.int64)
        kept = xp.take(self.kernels, entries, axis=0)
        return replace(self, kernels=(number / len(paths)) * kept)  # kernels carry 1/n

    def _not_positive_definite(self, factor: Array, temperature: float) -> NotPositiveDefiniteError:
        kernel = _of_rows(self.kernels, factor, self.labels)
        return not_positive_definite(kernel, temperature)


@dataclass(frozen=True, eq=False)
class KernelPosterior:
    """Gaussian posterior of the predictor, given by kernels of new and training examples.

    Attributes
    ----------
    coefficients : array, shape (P·C,)
        (K + T1)⁻¹ Y.
    root : array, shape (P·C, P·C)
        L of K + T1 = LLᵀ.
    """

    coefficients: Array
    root: Array

    def mean(self, cross: Array, factor: Array) -> Array:
        """Mean (P_new, C) (Eq. 29), from kernels (n, n, P_new, P) of new and training examples."""
        xp = array_namespace(cross=cross)
        return compile_function(_mean, xp)(cross, factor, self.coefficients)

    def moments(self, cross: Array, own: Array, factor: Array) -> tuple[Array, Array]:
        """Mean and variance (Eq. 29, 30), (P_new, C) each.

        ``own`` (n, n, P_new) has the kernels of each new example with itself.
        """
        xp = array_namespace(cross=cross, own=own)
        return compile_function(_moments, xp)(cross, own, factor, self.coefficients, self.root)


def mixed_kernels(kernels: Array, weights: Array, labels: Array) -> Array:
    """Σ_ππ' w_ππ' C_ππ' of symmetric weights (n, n), shape (P, P)."""
    xp, outputs = array_namespace(kernels=kernels), labels.shape[1]
    pairs, _, _ = pairs_of_paths(weights.shape[0], outputs)
    entries = from_host(pairs @ (weights.shape[0], 1), kernels, xp.int64)
    of_pairs = xp.take(xp.reshape(weights, (1, -1)), entries, axis=1)
    return _unpacked(matmul(of_pairs, kernels), labels.shape[0], outputs)[0, ...]


def rows_kernel(kernels: Array, order_parameter: Array, labels: Array) -> Array:
    """Kernel of the rows (example, output), (P·C, P·C), of U (n·C, n·C)."""
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    paths = order_parameter.shape[0] // outputs
    pairs, _, _ = pairs_of_paths(paths, outputs)
    entries = from_host(pairs @ (paths, 1), kernels, xp.int64)
    of_pairs = xp.take(by_output(order_parameter, outputs, xp), entries, axis=1)
    blocks = _unpacked(matmul(of_pairs, kernels), examples, outputs)
    blocks = xp.reshape(blocks, (outputs, outputs, examples, examples))
    return xp.reshape(xp.permute_dims(blocks, (2, 0, 3, 1)), (examples * outputs, -1))


def summed_kernels(kernels: Array, weights: Array, labels: Array) -> Array:
    """Sums over pairs of rows Σ w C, (n·C, n·C), of symmetric weights (P·C, P·C)."""
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    if outputs > 1:
        return sums_of_pairs(kernels, xp.matrix_transpose(by_output(weights, outputs, xp)), outputs)
    entries = from_host(packed_order(examples)[0], kernels, xp.int64)
    packed = xp.take(xp.reshape(weights, (-1,)), entries, axis=0)
    twice = from_host(multiplicities(examples), kernels)
    return sums_of_pairs(kernels, (twice * packed)[:, None], outputs)


def _unpacked(mixed: Array, examples: int, outputs: int) -> Array:
    """Rows of packed or full matrices as matrices, (rows, P, P)."""
    xp = array_namespace(mixed=mixed)
    if outputs == 1:
        indices = from_host(packed_order(examples)[1], mixed, xp.int64)
        mixed = xp.take(mixed, indices, axis=1)
    return xp.reshape(mixed, (-1, examples, examples))


def _of_rows(kernels: Array, factor: Array, labels: Array) -> Array:
    xp = array_namespace(kernels=kernels)
    return rows_kernel(kernels, matmul(factor, xp.matrix_transpose(factor)), labels)


def _factorised(
    kernels: Array, labels: Array, factor: Array, temperature: Array
) -> tuple[Array, Array]:
    return factorised(_of_rows(kernels, factor, labels), labels, temperature)


def factorised(kernel: Array, labels: Array, temperature: Array) -> tuple[Array, Array]:
    """L of K + T1 = LLᵀ for K (P·C, P·C), and (K + T1)⁻¹ Y (P·C,)."""
    xp = array_namespace(kernel=kernel)
    root = cholesky(add_to_diagonal(kernel, temperature, xp), xp)
    inverse = invert_triangular(root, xp)
    half = matmul(inverse, xp.reshape(labels, (-1,)))
    return root, matmul(half, inverse)


def _summed_kernels(kernels: Array, labels: Array) -> Array:
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    full = np.arange(examples) * (examples + 1)
    diagonal = packed_order(examples)[2] if outputs == 1 else full
    summed = xp.sum(xp.take(kernels, from_host(diagonal, kernels, xp.int64), axis=1), axis=1)
    paths = math.isqrt(summed.shape[0] if outputs > 1 else 2 * summed.shape[0])
    _, indices, share = pairs_of_paths(paths, outputs)
    taken = xp.take(summed, from_host(indices, kernels, xp.int64), axis=0)
    sums = xp.reshape(from_host(share, kernels) * taken, (paths, paths))
    return (sums + xp.matrix_transpose(sums)) / 2  # full kernels differ by rounding


def _full_kernels(kernels: Array, labels: Array) -> Array:
    xp, (examples, outputs) = array_namespace(kernels=kernels), labels.shape
    paths = math.isqrt(kernels.shape[0] if outputs > 1 else 2 * kernels.shape[0])
    _, indices, share = pairs_of_paths(paths, outputs)
    pairs = xp.take(kernels, from_host(indices, kernels, xp.int64), axis=0)
    full = _unpacked(from_host(share[:, None], kernels) * pairs, examples, outputs)
    return xp.reshape(full, (paths, paths, examples, examples))


def _mean(cross: Array, factor: Array, coefficients: Array) -> Array:
    xp = array_namespace(cross=cross)
    kernel = _cross_rows(cross, factor)
    outputs = factor.shape[0] // cross.shape[0]
    return xp.reshape(matmul(kernel, coefficients), (-1, outputs))


def _moments(
    cross: Array, own: Array, factor: Array, coefficients: Array, root: Array
) -> tuple[Array, Array]:
    xp = array_namespace(cross=cross)
    kernel = _cross_rows(cross, factor)
    paths, outputs = cross.shape[0], factor.shape[0] // cross.shape[0]
    mean = xp.reshape(matmul(kernel, coefficients), (-1, outputs))
    u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp)
    same = from_host(np.arange(outputs) * (outputs + 1), own, xp.int64)
    of_output = xp.take(u, same, axis=0) / paths  # (C, n²)
    prior = xp.matrix_transpose(matmul(of_output, xp.reshape(own, (paths**2, -1))))
    half = solve_triangular(root, xp.matrix_transpose(kernel), xp)
    explained = xp.reshape(xp.sum(half**2, axis=0), mean.shape)
    # rounding may leave -1e-17 where the examples determine the output
    return mean, xp.clip(prior - explained, min=0.0)


def _cross_rows(cross: Array, factor: Array) -> Array:
    """Kernel of rows of new and of training examples, (P_new·C, P·C)."""
    xp, (paths, _, new, examples) = array_namespace(cross=cross), cross.shape
    outputs = factor.shape[0] // paths
    u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp) / paths
    blocks = matmul(u, xp.reshape(cross, (paths**2, -1)))
    blocks = xp.reshape(blocks, (outputs, outputs, new, examples))
    return xp.reshape(xp.permute_dims(blocks, (2, 0, 3, 1)), (new * outputs, -1))
