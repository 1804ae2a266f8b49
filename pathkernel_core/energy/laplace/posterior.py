"""Gaussian posterior of the outputs of classes, with covariances, for new examples.

In Laplace's approximation, with the Π of :mod:`pathkernel_core.energy.laplace.mode`,

    ⟨f(x)⟩ = k(x)ᵀ a,      ⟨δf δfᵀ⟩ = K(x, x) − k(x)ᵀ Π k(x).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    is_true,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.kernel_index import KernelIndex, PairIndex
from pathkernel_core.energy.laplace.kernels import kernel_of_features
from pathkernel_core.energy.laplace.structure import Factors, Structure
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood
from pathkernel_core.energy.posterior import rotated
from pathkernel_core.energy.rows import by_output
from pathkernel_core.system.errors import NotPositiveDefiniteError


@dataclass(frozen=True, eq=False)
class ClassPosterior(ABC):
    """Posterior of the outputs of classes; new examples as for :class:`Predictor`.

    Attributes
    ----------
    likelihood : ClassLikelihood
        Turns moments into probabilities.
    """

    likelihood: ClassLikelihood
    root = None

    @abstractmethod
    def mean(self, new: Array, factor: Array, basis: Array | None = None) -> Array:
        """Mean (P_new, C)."""

    @abstractmethod
    def joint_moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean (P_new, C) and covariances of the outputs (P_new, C, C)."""

    def moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean and variance (Eq. 29, 30), (P_new, C) each."""
        mean, covariances = self.joint_moments(new, own, factor, basis)
        return mean, _variances(covariances)

    def probabilities(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Mean and variance (P_new, C), probabilities and their errors (P_new, classes)."""
        mean, covariances = self.joint_moments(new, own, factor, basis)
        classes = self.likelihood.probabilities(mean, covariances)
        return mean, _variances(covariances), classes.values, classes.error


def _variances(covariances: Array) -> Array:
    """Variances (P, C) of covariances (P, C, C); rounding may leave −1e-17."""
    xp = array_namespace(covariances=covariances)
    return xp.clip(xp.linalg.diagonal(covariances), min=0.0)


@dataclass(frozen=True, eq=False)
class InputCross:
    """Kernels of new examples by their attentioned inputs.

    Attributes
    ----------
    features : array, shape (P, n, N_0)
        Scaled features of the training examples.
    """

    features: Array

    def kernels(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None
    ) -> tuple[Array, Array]:
        """Kernels of new with training examples (P_new·C, P·C), with themselves (P_new, C, C)."""
        evaluate = compile_function(_kernels_of_inputs, array_namespace(xi=new))
        return evaluate(new, self.features, factor, basis)

    def check(self, covariances: Array, sizes: Array) -> None:
        """Pass: kernels of inputs are always those of the same examples."""


@dataclass(frozen=True, eq=False)
class GivenCross:
    """Kernels of new examples as a user gives them.

    Attributes
    ----------
    index : PairIndex or BranchIndex
        Of what kernels are given.
    """

    index: KernelIndex

    def kernels(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None
    ) -> tuple[Array, Array]:
        """Kernels of new with training examples (P_new·C, P·C), with themselves (P_new, C, C)."""
        evaluate = compile_function(_given_kernels, array_namespace(xi=new), static=("index",))
        return evaluate(new, own, factor, index=self.index)

    def check(self, covariances: Array, sizes: Array) -> None:
        """Raise an error if variances are negative beyond rounding of the kernels' sizes."""
        xp = array_namespace(covariances=covariances)
        rounding = math.sqrt(float(xp.finfo(covariances.dtype).eps))
        excess = xp.linalg.diagonal(covariances) + rounding * xp.linalg.diagonal(sizes)
        if not is_true(xp.all(excess >= 0)):
            example = int(xp.argmin(xp.min(excess, axis=1)))
            raise NotPositiveDefiniteError(
                "cross and own are not kernels of the same new examples with these training "
                f"examples: the variance of the outputs on new example {example} is negative; "
                "compute both from the same inputs"
            )


@dataclass(frozen=True, eq=False)
class CrossPosterior(ClassPosterior):
    """Posterior from the kernels of new and training examples.

    Attributes
    ----------
    crossing : InputCross or GivenCross
    structure : Structure
        Of the training examples, and of new ones.
    coefficients : array, shape (P, C)
        a of the mode f = K a.
    factors : tuple of arrays
        Of the structure, at the mode.
    """

    crossing: InputCross | GivenCross
    structure: Structure
    coefficients: Array
    factors: Factors

    def mean(self, new: Array, factor: Array, basis: Array | None = None) -> Array:
        """Mean (P_new, C), from the kernels with the training examples."""
        cross, _ = self._kernels(new, None, factor, basis)
        return self.structure.multiply(cross, self.coefficients)

    def joint_moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean (P_new, C) and covariances of the outputs (P_new, C, C)."""
        cross, prior = self._kernels(new, own, factor, basis)
        mean, covariances = self.of_kernels(cross, prior)
        self.crossing.check(covariances, prior)
        return mean, covariances

    def of_kernels(self, cross: Array, prior: Array) -> tuple[Array, Array]:
        """Mean (P_new, C) and covariances (P_new, C, C) by the kernels of the outputs.

        Those with the training examples, and a priori, as the structure has them.
        """
        evaluate = compile_function(
            _cross_moments, array_namespace(cross=cross), static=("structure",)
        )
        arrays = cross, prior, self.coefficients, self.factors
        return evaluate(*arrays, structure=self.structure)

    def _kernels(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None
    ) -> tuple[Array, Array]:
        reduced = self.structure.reduce_factor(factor, self.coefficients.shape[1])
        return self.crossing.kernels(new, own, reduced, basis)


def _cross_moments(
    cross: Array, prior: Array, coefficients: Array, factors: Factors, *, structure: Structure
) -> tuple[Array, Array]:
    prior = structure.expand_blocks(prior, coefficients.shape[1])
    return structure.multiply(cross, coefficients), prior - structure.explain(factors, cross)


def prior_covariances(xi: Array, factor: Array) -> Array:
    """Covariances of the outputs a priori, (P, C, C), of attentioned inputs (P, n, N_0)."""
    xp, (examples, paths, width) = array_namespace(xi=xi), xi.shape
    outputs = factor.shape[0] // paths
    kernels = matmul(xi, xp.matrix_transpose(xi)) / (paths * width)  # (P, n, n)
    u = by_output(matmul(factor, xp.matrix_transpose(factor)), outputs, xp)
    flat = matmul(xp.reshape(kernels, (examples, -1)), xp.matrix_transpose(u))
    return xp.reshape(flat, (examples, outputs, outputs))


def scaled_features(xi: Array, basis: Array | None) -> Array:
    """Features Φ of attentioned inputs (P, n, N_0), in the basis of the training examples."""
    scale = 1 / math.sqrt(xi.shape[1] * xi.shape[2])
    return scale * (xi if basis is None else rotated(xi, basis))


def _kernels_of_inputs(
    xi: Array, features: Array, factor: Array, basis: Array | None
) -> tuple[Array, Array]:
    new = scaled_features(xi, basis)
    return kernel_of_features(new, factor, features), prior_covariances(xi, factor)


def _given_kernels(
    cross: Array, own: Array | None, factor: Array, *, index: KernelIndex
) -> tuple[Array, Array | None]:
    xp = array_namespace(cross=cross)
    if isinstance(index, PairIndex):  # the factor may be that of one output for all
        index = PairIndex(index.paths, factor.shape[0] // index.paths)
    rows = index.cross(cross, factor)
    if own is None:
        return rows, None
    if not isinstance(index, PairIndex):
        return rows, index.own(own, factor)[:, :, None]
    u = by_output(matmul(factor, xp.matrix_transpose(factor)), index.outputs, xp) / index.paths
    flat = matmul(u, xp.reshape(own, (index.paths**2, -1)))
    blocks = xp.reshape(flat, (index.outputs, index.outputs, -1))
    return rows, xp.permute_dims(blocks, (2, 0, 1))
