"""Exact forms of the energy at a diagonal order parameter, that of independent branches.

They are the forms of heads with shared weights, with the square roots (n,) of the diagonal in place
of the factor B of U, and with the diagonal (n,) of M − R. No array has n × n entries but the Gram
matrix of feature space, which has them anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    batches,
    cholesky,
    compile_function,
    fill_rows,
    from_host,
    gram_matrix,
    invert_triangular,
    is_finite,
    is_true,
    join_batches,
    log_determinant,
    packed_order,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.costs import WHITENED, Sizes, cheapest_form
from pathkernel_core.energy.examples import ExampleSpace
from pathkernel_core.energy.features import FeatureSpace, explained_by_features
from pathkernel_core.energy.form import Form
from pathkernel_core.energy.given_kernels import GivenKernels
from pathkernel_core.energy.kernel_energy import kernel_energy
from pathkernel_core.energy.label_spectrum import LabelSpectrum, kernel_spectrum
from pathkernel_core.energy.laplace.forms import LaplaceForm
from pathkernel_core.energy.posterior import Posterior
from pathkernel_core.energy.rows import not_positive_definite


def branch_form(form: Form) -> Form:
    """Form of the energy of independent branches from that of heads with shared weights.

    In example space, with the kernels of all branches in memory where that makes evaluations faster
    and takes at most 1 GiB in float64 or as much as the features; while made, twice that.
    """
    if isinstance(form, GivenKernels | LaplaceForm):
        return form.branches()
    if isinstance(form, FeatureSpace):
        return BranchFeatureSpace(form.gram, form.projections, form.label_square, form.n_examples)
    form = cast("ExampleSpace", form)
    examples, paths, width = form.features.shape
    in_memory = cheapest_form(Sizes(examples, paths, width, shared=False)) == "kernels"
    return BranchSpace(form.features, form.labels, in_memory)


@dataclass(frozen=True, eq=False)
class BranchSpace(ExampleSpace):
    """Example space at a diagonal order parameter.

    Either with the kernels of all branches in memory, or with the features by blocks of branches.

    Parameters
    ----------
    in_memory : bool
        Whether to store the kernels, P(P+1)/2 numbers for each branch, made when first needed.
    """

    in_memory: bool = False
    has_pairs = False
    curvature = Form.curvature  # refuses

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the form."""
        return "kernels" if self.in_memory else "examples"

    @property
    def summed_kernels(self) -> Array:
        """Kernels of every branch at the same example, summed over examples, (n,)."""
        return array_namespace(features=self.features).sum(self.features**2, axis=(0, 2))

    @cached_property
    def kernels(self) -> Array:
        """Packed kernels Φ_l Φ_lᵀ of all branches, (n, P(P+1)/2)."""
        examples, paths, _ = self.features.shape
        evaluate = compile_function(_packed_kernels, array_namespace(features=self.features))
        by_branch = batches(paths, max(1, WHITENED // examples**2))
        return fill_rows((evaluate(self.features[:, block, :]) for block in by_branch), paths)

    @property
    def _evaluation(self) -> tuple[Callable, tuple[Array, Array]]:
        if self.in_memory:
            return kernel_energy, (self.kernels, self.labels)
        return _branch_examples, (self.features, self.labels)

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""
        return _energy(self.features, self.labels, factor, temperature)[0]

    def posterior(self, factor: np.ndarray, temperature: float) -> Posterior:
        """Gaussian posterior of the predictor at u = factor², (n,)."""
        factor = from_host(factor, self.features)
        evaluate = compile_function(_posterior, array_namespace(features=self.features))
        weights, root = evaluate(
            self.features, self.labels, factor, from_host(temperature, self.features)
        )
        if not is_true(is_finite(weights)):
            raise not_positive_definite(self._kernel(self.features, factor), temperature)
        return Posterior(weights, _explained, (self.features, factor, root), root)

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_l c² Φ_l Φ_lᵀ, for coefficients c (n,) of branches."""
        # the kernel itself, P × P: Lanczos would read the features of thousands of branches often
        kernel = self._kernel(self.features, from_host(scales, self.features))
        return kernel_spectrum(kernel, self.labels)

    def _kernel(self, rows: Array, factor: Array) -> Array:
        return compile_function(_kernel, array_namespace(rows=rows))(rows, factor)


@dataclass(frozen=True, eq=False)
class BranchFeatureSpace(FeatureSpace):
    """Feature space at a diagonal order parameter."""

    has_pairs = False
    curvature = Form.curvature  # refuses

    @property
    def summed_kernels(self) -> Array:
        """Kernels of every branch at the same example, summed over examples, (n,)."""
        xp, (paths, width) = array_namespace(gram=self.gram), self.gram.shape[:2]
        squares = xp.linalg.diagonal(xp.reshape(self.gram, (paths * width,) * 2))
        return xp.sum(xp.reshape(squares, (paths, width)), axis=1)

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient (n,) with respect to u = factor², on the host."""
        evaluate = compile_function(_branch_features, array_namespace(gram=self.gram))
        mixed = from_host(factor, self.gram)
        log_det, fitted, gradient = evaluate(
            self.gram, self.projections, mixed, from_host(temperature, self.gram)
        )
        # Sylvester's identity, as for heads
        size = self.gram.shape[0] * self.gram.shape[1]
        energy = (self.n_examples - size) * math.log(temperature) + float(log_det)
        energy += (self.label_square - float(fitted)) / temperature
        if not math.isfinite(energy):
            raise not_positive_definite(_mixed_gram(self.gram, mixed), temperature)
        return energy, to_host(gradient) / factor**2

    def posterior(self, factor: np.ndarray, temperature: float) -> Posterior:
        """Gaussian posterior of the predictor at u = factor², (n,)."""
        evaluate = compile_function(_feature_posterior, array_namespace(gram=self.gram))
        factor = from_host(factor, self.gram)
        weights, inverse = evaluate(
            self.gram, self.projections, factor, from_host(temperature, self.gram)
        )
        if not is_true(is_finite(weights)):
            raise not_positive_definite(_mixed_gram(self.gram, factor), temperature)
        return Posterior(weights, explained_by_features, (inverse, temperature))


def _packed_kernels(features: Array) -> Array:
    """Kernels of some branches, (b, P(P+1)/2), from their features (P, b, N_0)."""
    xp = array_namespace(features=features)
    by_branch = xp.permute_dims(features, (1, 0, 2))
    kernels = matmul(by_branch, xp.matrix_transpose(by_branch))
    entries = from_host(packed_order(features.shape[0])[0], features, xp.int64)
    return xp.take(xp.reshape(kernels, (kernels.shape[0], -1)), entries, axis=1)


def _branch_examples(
    features: Array, labels: Array, factor: Array, temperature: Array, *, lower: bool = False
) -> tuple[Array, Array]:
    """Energy and M − R (n,) from features, by blocks of branches."""
    xp = array_namespace(features=features)
    energy, root, coefficients = _energy(features, labels, factor, temperature)
    gradient = []
    for _, of_block in _blocks(features):
        # M_l = |L⁻¹Φ_l|² and R_l = |Φ_lᵀ(K + T1)⁻¹Y|², by one triangular solve
        whitened = solve_triangular(root, _flat(of_block, xp), xp)
        fitted = matmul(xp.matrix_transpose(coefficients), whitened)[0, :]
        terms = xp.sum(whitened**2, axis=0) - fitted**2
        gradient.append(xp.sum(xp.reshape(terms, of_block.shape[1:]), axis=1))
    return energy, join_batches(gradient)


def _energy(
    features: Array, labels: Array, factor: Array, temperature: Array
) -> tuple[Array, Array, Array]:
    """Energy, with L of K + T1 = LLᵀ and L⁻¹ Y."""
    xp = array_namespace(features=features)
    root = cholesky(add_to_diagonal(_kernel(features, factor), temperature, xp), xp)
    coefficients = solve_triangular(root, labels, xp)
    return log_determinant(root, xp) + xp.sum(coefficients**2), root, coefficients


def _kernel(features: Array, factor: Array) -> Array:
    """K = Σ_l u_l Φ_l Φ_lᵀ."""
    xp = array_namespace(features=features)
    kernel = None
    for block, of_block in _blocks(features):
        mixed = _flat(of_block * factor[block][:, None], xp)
        product = gram_matrix(xp.matrix_transpose(mixed), xp)
        kernel = product if kernel is None else kernel + product
    return kernel


def _blocks(features: Array) -> Iterator[tuple[slice, Array]]:
    """Blocks of branches with their features (P, b, N_0), which bound the copies of them."""
    examples, paths, width = features.shape
    for block in batches(paths, max(1, WHITENED // (examples * width))):
        yield block, features if block == slice(0, paths) else features[:, block, :]


def _flat(features: Array, xp: Any) -> Array:
    return xp.reshape(features, (features.shape[0], -1))


def _posterior(
    features: Array, labels: Array, factor: Array, temperature: Array
) -> tuple[Array, Array]:
    """Weights of the mean (n, N_0), and L of K + T1 = LLᵀ."""
    xp = array_namespace(features=features)
    _, root, half = _energy(features, labels, factor, temperature)
    inverse = invert_triangular(root, xp)
    solved = matmul(xp.matrix_transpose(inverse), half)  # (K + T1)⁻¹ Y
    z = matmul(xp.matrix_transpose(solved), _flat(features, xp))
    return factor[:, None] ** 2 * xp.reshape(z, features.shape[1:]), root


def _explained(mixed: Array, features: Array, factor: Array, root: Array) -> Array:
    """|L⁻¹ k(x)|² of new examples with features mixed by the square roots of u, (rows, n, N_0)."""
    xp = array_namespace(mixed=mixed)
    # the other root of u goes to the new examples, too: they are fewer than the training examples
    new = _flat(mixed * factor[:, None], xp)
    across = matmul(_flat(features, xp), xp.matrix_transpose(new))
    return xp.sum(solve_triangular(root, across, xp) ** 2, axis=0)


def _branch_features(
    gram: Array, projections: Array, factor: Array, temperature: Array
) -> tuple[Array, Array, Array]:
    """Ln det B, qᵀBq and u (M − R) (n,), from one factorisation of B."""
    xp = array_namespace(gram=gram)
    log_det, half, inverse = _feature_energy(gram, projections, factor, temperature)
    paths, width = gram.shape[:2]
    q = xp.reshape(matmul(xp.matrix_transpose(inverse), half), (paths, width))
    # u M_l = Σ_i (1 − T B⁻¹)_li,li, by the columns of L⁻¹, as B⁻¹ = L⁻ᵀL⁻¹
    squares = xp.reshape(xp.sum(inverse**2, axis=0), (paths, width))
    return log_det, xp.sum(half**2), xp.sum(1 - temperature * squares - q**2, axis=1)


def _feature_energy(
    gram: Array, projections: Array, factor: Array, temperature: Array
) -> tuple[Array, Array, Array]:
    """Ln det B, L⁻¹ (√u ⊗ 1) ΦᵀY and L⁻¹ of B = LLᵀ = T1 + (√u ⊗ 1) ΦᵀΦ (√u ⊗ 1)."""
    xp = array_namespace(gram=gram)
    root = cholesky(add_to_diagonal(_mixed_gram(gram, factor), temperature, xp), xp)
    inverse = invert_triangular(root, xp)
    right = xp.reshape(factor[:, None, None] * projections, (-1, 1))
    return log_determinant(root, xp), matmul(inverse, right), inverse


def _mixed_gram(gram: Array, factor: Array) -> Array:
    xp = array_namespace(gram=gram)
    size = gram.shape[0] * gram.shape[1]
    mixed = factor[:, None, None, None] * gram * factor[:, None]
    return xp.reshape(mixed, (size, size))


def _feature_posterior(
    gram: Array, projections: Array, factor: Array, temperature: Array
) -> tuple[Array, Array]:
    """Weights of the mean (n, N_0), and L⁻¹ of B."""
    xp = array_namespace(gram=gram)
    _, half, inverse = _feature_energy(gram, projections, factor, temperature)
    q = matmul(xp.matrix_transpose(inverse), half)
    return factor[:, None] * xp.reshape(q, gram.shape[:2]), inverse
