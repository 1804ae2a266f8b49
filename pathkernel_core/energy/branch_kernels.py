"""Energy of independent branches whose kernels are given, in place of attentioned inputs.

The counterpart of :mod:`pathkernel_core.energy.pair_kernels`: of a diagonal order parameter only
the kernels of every path with itself are needed, K(x, x') = Σ_l u_l C_ll(x, x') / B.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    compile_function,
    fill_rows,
    from_host,
    is_finite,
    is_true,
    log_determinant,
    packed_order,
    real_floating,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.branch_spaces import energy_of_packed
from pathkernel_core.energy.costs import WHITENED
from pathkernel_core.energy.kernel_energy import pairs_of_paths
from pathkernel_core.energy.kernel_packing import EXACT_ROWS, MOST_KERNELS
from pathkernel_core.energy.label_spectrum import LabelSpectrum, kernel_spectrum
from pathkernel_core.energy.pair_kernels import KernelPosterior, PairSpace, factorised
from pathkernel_core.energy.spaces import explained_labels, not_positive_definite
from pathkernel_core.energy.statistics import check_given, check_labels
from pathkernel_core.system.errors import NotPositiveDefiniteError

_PROBES = 8  # random vectors whose quadratic forms are computed where there are more


@dataclass(frozen=True, eq=False)
class BranchKernelSpace:
    """Energy of given kernels of single branches, from a Cholesky factor of K + T1.

    Parameters
    ----------
    kernels : array, shape (n, P(P+1)/2)
        Packed kernels divided by n.
    labels : array, shape (P, 1)
    """

    kernels: Array
    labels: Array
    name = "kernels"

    @classmethod
    def of_pairs(cls, form: PairSpace) -> BranchKernelSpace:
        """Form with only the kernels of every path with itself, for one output."""
        pairs, _, _ = pairs_of_paths(form.n_paths, 1)
        same = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
        xp = array_namespace(kernels=form.kernels)
        return cls(
            xp.take(form.kernels, from_host(same, form.kernels, xp.int64), axis=0), form.labels
        )

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.kernels

    @property
    def summed_kernels(self) -> Array:
        """Kernels of every branch at the same example, summed over examples, (n,)."""
        xp = array_namespace(kernels=self.kernels)
        diagonal = from_host(packed_order(self.labels.shape[0])[2], self.kernels, xp.int64)
        return xp.sum(xp.take(self.kernels, diagonal, axis=1), axis=1)

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient (n,) with respect to u = factor², on the host."""
        evaluate = compile_function(energy_of_packed, array_namespace(kernels=self.kernels))
        arrays = from_host(factor, self.kernels), from_host(temperature, self.kernels)
        energy, gradient = evaluate(self.kernels, self.labels, *arrays)
        energy = float(energy)
        if not math.isfinite(energy):
            raise self._not_positive_definite(arrays[0], temperature)
        return energy, to_host(gradient)

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""
        xp = array_namespace(kernels=self.kernels)
        root, coefficients = _factorised(self.kernels, self.labels, factor, temperature)
        return log_determinant(root, xp) + xp.sum(self.labels[:, 0] * coefficients)

    def posterior(self, factor: np.ndarray, temperature: float) -> BranchKernelPosterior:
        """Gaussian posterior of the predictor at u = factor², (n,)."""
        evaluate = compile_function(_factorised, array_namespace(kernels=self.kernels))
        arrays = from_host(factor, self.kernels), from_host(temperature, self.kernels)
        root, coefficients = evaluate(self.kernels, self.labels, *arrays)
        if not is_true(is_finite(coefficients)):
            raise self._not_positive_definite(arrays[0], temperature)
        return BranchKernelPosterior(coefficients, root)

    def explained_labels(self, root: Array) -> tuple[np.ndarray, np.ndarray]:
        """(K + T1)⁻¹ Y (P, 1) and the diagonal of (K + T1)⁻¹ (P, 1, 1), from L."""
        evaluate = compile_function(explained_labels, array_namespace(root=root))
        coefficients, blocks = evaluate(root, self.labels)
        return to_host(coefficients), to_host(blocks)

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_l c² C_ll/B, for coefficients c (n,) of branches."""
        evaluate = compile_function(_kernel, array_namespace(kernels=self.kernels))
        return kernel_spectrum(
            evaluate(self.kernels, self.labels, from_host(scales, self.kernels)), self.labels
        )

    def keep_paths(self, paths: np.ndarray) -> BranchKernelSpace:
        """Same form for a sub-network of these branches."""
        xp = array_namespace(kernels=self.kernels)
        kept = xp.take(self.kernels, from_host(paths, self.kernels, xp.int64), axis=0)
        return replace(self, kernels=(self.kernels.shape[0] / len(paths)) * kept)

    def _not_positive_definite(self, factor: Array, temperature: float) -> NotPositiveDefiniteError:
        return not_positive_definite(_kernel(self.kernels, self.labels, factor), temperature)


@dataclass(frozen=True, eq=False)
class BranchKernelPosterior(KernelPosterior):
    """Gaussian posterior of the predictor, given by kernels of new and training examples."""

    def mean(self, cross: Array, factor: Array) -> Array:
        """Mean (P_new, 1) (Eq. 29), from kernels (n, P_new, P) of new and training examples."""
        kernel = compile_function(_mixed, array_namespace(cross=cross))(cross, factor)
        return matmul(kernel, self.coefficients)[:, None]

    def moments(self, cross: Array, own: Array, factor: Array) -> tuple[Array, Array]:
        """Mean and variance (Eq. 29, 30), (P_new, 1) each.

        ``own`` (n, P_new) has the kernels of each new example with itself.
        """
        xp = array_namespace(cross=cross, own=own)
        return compile_function(_moments, xp)(cross, own, factor, self.coefficients, self.root)


def branch_kernel_space(kernels: Array, labels: Array) -> BranchKernelSpace:
    """Energy of given kernels; see :meth:`pathkernel_core.Problem.from_branch_kernels`."""
    xp = array_namespace(kernels=kernels, labels=labels)
    check_given("kernels", kernels)
    shape = tuple(kernels.shape)
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(
            f"kernels must have shape (n, P, P), one matrix for each branch, but has {shape}; "
            "kernels of all pairs of paths are for from_kernels"
        )
    elements = shape[0] * (shape[1] * (shape[1] + 1) // 2)
    if elements > MOST_KERNELS:
        raise ValueError(
            f"the kernels of {shape[0]} branches between {shape[1]} examples have {elements:.2g} "
            f"elements, {elements / 2**27:.2g} GiB in float64, more than {MOST_KERNELS:.2g}; take "
            "fewer branches or examples, or give their inputs to Problem"
        )
    kernels = real_floating("kernels", kernels, ("n", "P", "P"))
    labels = check_labels(labels, "kernels", kernels, shape[1])
    if labels.shape[1] > 1:
        raise ValueError(
            f"labels have {labels.shape[1]} outputs, but independent branches have one, since u_l "
            "would be a matrix over outputs; give kernels of all pairs of paths to from_kernels"
        )
    rounding = math.sqrt(float(xp.finfo(kernels.dtype).eps))
    by_branch = batches(shape[0], max(1, WHITENED // shape[1] ** 2))

    def packed() -> Iterator[Array]:
        for batch in by_branch:  # which bounds copies
            part = kernels[batch, ...]
            _check_symmetric(part, shape, rounding)
            _check_positive(part, shape, rounding)
            yield compile_function(_packed, xp)(part, float(shape[0]))

    return BranchKernelSpace(fill_rows(packed(), shape[0]), labels)


def _check_symmetric(kernels: Array, shape: tuple[int, ...], rounding: float) -> None:
    xp = array_namespace(kernels=kernels)
    # branch by branch: a weak branch may be wrong beside a strong one
    deviations = xp.max(xp.abs(kernels - xp.matrix_transpose(kernels)), axis=(1, 2))
    if is_true(xp.any(deviations > rounding * xp.max(xp.abs(kernels), axis=(1, 2)))):
        deviation = float(xp.max(deviations))
        raise ValueError(
            f"kernels of shape {shape} must be symmetric, C_ll(x, x') = C_ll(x', x), but entries "
            f"differ by up to {deviation:.3g}"
        )


def _check_positive(kernels: Array, shape: tuple[int, ...], rounding: float) -> None:
    """Raise an error if kernels are seen not to be positive semidefinite."""
    xp = array_namespace(kernels=kernels)
    if shape[0] * shape[1] <= EXACT_ROWS:
        values = to_host(xp.linalg.eigvalsh(kernels))
    else:
        # vᵀCv of random vectors, and the diagonal: they cannot show that all are positive, but
        # refuse no kernel that is
        probes = np.random.default_rng(0).standard_normal((shape[1], _PROBES))
        vectors = from_host(probes, kernels)
        forms = to_host(xp.sum(vectors * matmul(kernels, vectors), axis=1))
        values = np.concatenate([forms, to_host(xp.linalg.diagonal(kernels))], axis=1)
    largest = np.abs(values).max(axis=1)
    worst = int(np.argmin(values.min(axis=1) + rounding * largest))
    if values[worst].min() < -rounding * largest[worst]:
        raise NotPositiveDefiniteError(
            f"kernels of shape {shape} must be positive semidefinite for every branch, but one has "
            f"an eigenvalue of at most {values[worst].min():.3g} beside values of "
            f"{largest[worst]:.3g}"
        )


def _packed(kernels: Array, branches: float) -> Array:
    xp = array_namespace(kernels=kernels)
    entries = from_host(packed_order(kernels.shape[-1])[0], kernels, xp.int64)
    halves = (kernels + xp.matrix_transpose(kernels)) / (2 * branches)
    return xp.take(xp.reshape(halves, (kernels.shape[0], -1)), entries, axis=1)


def _kernel(kernels: Array, labels: Array, factor: Array) -> Array:
    """K (P, P) from packed kernels."""
    xp, examples = array_namespace(kernels=kernels), labels.shape[0]
    packed = matmul(factor[None, :] ** 2, kernels)[0, :]
    indices = from_host(packed_order(examples)[1], kernels, xp.int64)
    return xp.reshape(xp.take(packed, indices, axis=0), (examples, examples))


def _factorised(
    kernels: Array, labels: Array, factor: Array, temperature: Array
) -> tuple[Array, Array]:
    return factorised(_kernel(kernels, labels, factor), labels, temperature)


def _mixed(kernels: Array, factor: Array) -> Array:
    """Σ_l u_l C_ll / B over the first axis."""
    xp = array_namespace(kernels=kernels)
    mixed = matmul(factor[None, :] ** 2, xp.reshape(kernels, (kernels.shape[0], -1)))
    return xp.reshape(mixed, kernels.shape[1:]) / kernels.shape[0]


def _moments(
    cross: Array, own: Array, factor: Array, coefficients: Array, root: Array
) -> tuple[Array, Array]:
    xp = array_namespace(cross=cross)
    kernel = _mixed(cross, factor)
    half = solve_triangular(root, xp.matrix_transpose(kernel), xp)
    # rounding may leave -1e-17 where the examples determine the output
    variance = xp.clip(_mixed(own, factor) - xp.sum(half**2, axis=0), min=0.0)
    return matmul(kernel, coefficients)[:, None], variance[:, None]
