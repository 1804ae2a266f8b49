"""Interface of a form of the energy (Eq. 12, 34): all that the theory asks of one.

A form is evaluated at a factor B of the order parameter, U_1 = B Bᵀ, and returns the energy

    ln det(K + T1) + Yᵀ (K + T1)⁻¹ Y,        K = Φ (U_1 ⊗ 1) Φᵀ

with its gradient M − R with respect to U_1 on the host; of a likelihood other than the squared
loss, that of :mod:`pathkernel_core.energy.laplace.mode`. With C outputs the rows are (example,
output) and the paths (path, output), output fastest. Forms of independent branches take the square
roots (n,) of the diagonal of U_1 in place of B, and return the diagonal (n,) of M − R.

A new form is a file with a subclass of :class:`Form`. What it cannot do raises an error that says
which form can, as the methods here do that are not abstract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, Protocol, Self, cast

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    in_single_precision,
    to_host,
)
from pathkernel_core.energy.label_spectrum import LabelSpectrum
from pathkernel_core.energy.likelihoods.likelihood import Likelihood
from pathkernel_core.energy.likelihoods.squared import SQUARED
from pathkernel_core.energy.rows import explained_labels

InputGradient = Callable[[Array, Array], Array]
"""Scaled features (P, n, N_0) and labels (P, C) to the gradient with respect to the features."""


class Predictor(Protocol):
    """Gaussian posterior of the predictor at one order parameter, for new examples.

    They are given by attentioned inputs (P_new, n, N_0), or by kernels (n, n, P_new, P) with the
    training examples and ``own`` (n, n, P_new) of each with itself, (n, P_new, P) and (n, P_new)
    for independent branches.
    """

    @property
    def root(self) -> Array | None:
        """L of K + T1 = LLᵀ, (P·C, P·C); None in feature space."""

    def mean(self, new: Array, factor: Array, basis: Array | None = None) -> Array:
        """Mean (P_new, C) (Eq. 29)."""

    def moments(
        self, new: Array, own: Array | None, factor: Array, basis: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean and variance (Eq. 29, 30), (P_new, C) each."""


class EnergyCurvature(Protocol):
    """Changes of the energy's gradient M − R, (n·C, n·C) on the host, at one order parameter.

    With A = K + T1, H = Φᵀ A⁻¹ Φ and z = Φᵀ A⁻¹ Y the energy has the gradient M − R, where M sums H
    over inputs and R = z zᵀ. A change dA of A changes them by

        dH = −Φᵀ A⁻¹ dA A⁻¹ Φ,      dz = −Φᵀ A⁻¹ dA A⁻¹ Y,      dA = Φ (dU ⊗ 1) Φᵀ + dT 1.

    A product costs about as much as two or three evaluations of the energy.
    """

    def along(self, direction: np.ndarray) -> np.ndarray:
        """Return the change of the gradient for a symmetric change dU (n·C, n·C)."""

    def with_temperature(self) -> np.ndarray:
        """Return the derivative of the gradient with respect to T."""

    def with_labels(self, change: np.ndarray) -> np.ndarray:
        """Return the change of the gradient for a change of the labels, (P, C)."""


class Form(ABC):
    """Form of the energy, for minimisers, predictors and samplers.

    Attributes
    ----------
    name : str
        "examples", "features" or "kernels", as :class:`pathkernel_core.Problem` has it.
    is_of_kernels : bool
        Whether kernels were given in place of attentioned inputs.
    has_pairs : bool
        Whether there are kernels of different paths; if not, branches must be independent.
    holds_examples : bool
        Whether every training example is stored, and not only sums over them.
    likelihood : Likelihood
        What labels are. That of classes has no temperature: methods ignore theirs, NaN by
        convention.
    """

    name: str
    likelihood: Likelihood = SQUARED
    is_of_kernels = False
    has_pairs = True
    holds_examples = True

    @property
    @abstractmethod
    def array(self) -> Array:
        """The array that has library, dtype and device."""

    @property
    @abstractmethod
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n).

        Of independent branches those of every path with itself, (n,).
        """

    @property
    def full_kernels(self) -> Array:
        """Kernels of all pairs of paths, divided by n, (n, n, P, P)."""
        raise ValueError(
            f"the form {self.name!r} does not give kernels of all pairs of paths; build the "
            "problem by Problem.from_kernels"
        )

    def for_descent(self) -> Self:
        """Form for evaluations one after another, which may start from what the last one saw.

        Itself, unless a form searches iteratively; results differ by rounding only.
        """
        return self

    @cached_property
    def in_single_precision(self) -> Self:
        """Same form with copies of its arrays in float32, half of their memory, made when needed.

        What does not fit into the range of float32 becomes infinite or 0.
        """
        arrays = {field.name: getattr(self, field.name) for field in fields(cast("Any", self))}
        return replace(cast("Any", self), **{n: _in_single(v) for n, v in arrays.items()})

    @abstractmethod
    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient M − R with respect to U_1 = factor factorᵀ, on the host.

        The factor (n·C, n·C) is lower triangular. The features of its rows are multiplied by scales
        (n·C, 1), which may be 0. Independent branches have no scales.

        Raises
        ------
        NotPositiveDefiniteError
            If K + T1 is not positive definite.
        """

    def evaluate_energy(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray | None]:
        """Energy as of :meth:`energy_and_gradient`, for a caller that needs no gradient.

        The gradient is None where it would cost as much as the energy, or more.
        """
        return self.energy_and_gradient(factor, temperature, scales)

    def check_size(self) -> None:
        """Raise a TooLargeError if an evaluation at some order parameter is too large."""
        return

    def pays_together(self, points: int) -> bool:
        """Whether evaluations of so many order parameters are faster together."""
        return False

    def energies_and_gradients(
        self,
        factors: Sequence[np.ndarray],
        temperatures: Sequence[float],
        scales: Sequence[np.ndarray | None],
    ) -> list[tuple[float, np.ndarray]]:
        """Energies and gradients at several order parameters, by default one after another."""
        return [self.energy_and_gradient(*point) for point in zip(factors, temperatures, scales)]

    def evaluate(self, factor: Array, temperature: Array) -> tuple[Array, Array]:
        """Energy () and its gradient M − R (n·C, n·C), traceable by ``jax.jit``.

        The factor (n·C, r) of U_1 = factor factorᵀ may have any number of columns. NaN if K + T1 is
        not positive definite.
        """
        raise ValueError(
            f"the form {self.name!r} cannot be evaluated at a factor that has no inverse; build "
            'Problem with space="examples" or space="kernels"'
        )

    @abstractmethod
    def energy(self, factor: Array, temperature: Array) -> Array:
        """Energy (), differentiable in all arguments by PyTorch and JAX."""

    @abstractmethod
    def posterior(self, factor: np.ndarray, temperature: float) -> Predictor:
        """Gaussian posterior of the predictor at U_1 = factor factorᵀ.

        Raises
        ------
        NotPositiveDefiniteError
            If K + T1 is not positive definite.
        """

    def curvature(self, factor: np.ndarray, temperature: float) -> EnergyCurvature:
        """Second derivatives of the energy at U_1 = factor factorᵀ, as products with directions.

        Parameters
        ----------
        factor : array, shape (n·C, n·C)
            Lower triangular, with the prior variance σ²_0 and the scales of paths.
        temperature : float
        """
        raise ValueError(
            f"the form {self.name!r} does not give second derivatives of the energy; they need the "
            "form of a network with shared=True"
        )

    def input_gradient(
        self, posterior: Predictor, factor: np.ndarray, basis: Array | None
    ) -> InputGradient:
        """Function for the gradient −½ ∂energy/∂Φ with respect to features, at a fixed U_1.

        Parameters
        ----------
        posterior : Predictor
            At U_1 = factor factorᵀ.
        factor : array, shape (n·C, n·C)
        basis : array, shape (N_0, rank), or None
            Orthonormal basis that the training examples were rotated into.

        Raises
        ------
        ValueError
            If there are no inputs.
        """
        raise ValueError(
            f"the form {self.name!r} does not give gradients with respect to inputs; build Problem "
            'with space="examples" or space="features"'
        )

    @abstractmethod
    def explained_labels(
        self,
        posterior: Predictor,
        factor: np.ndarray,
        temperature: float,
        examples: tuple[Array, np.ndarray],
        basis: Array | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of leave-one-out: A⁻¹Y (P, C) and the blocks of A⁻¹ on its diagonal (P, C, C).

        With A = K + T1, of the posterior at U_1 = factor factorᵀ. ``examples`` are attentioned
        inputs (P, n, N_0) and labels (P, C), which only a form needs that does not hold them.
        """

    @abstractmethod
    def has_labels(self, labels: np.ndarray, rounding: float) -> bool:
        """Whether labels (P, C) are those of the form, up to rounding relative to the largest."""

    @abstractmethod
    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² Φ_π Φ_πᵀ, for coefficients c (n,) of paths."""

    @abstractmethod
    def keep_paths(self, paths: np.ndarray) -> Form:
        """Same form for a sub-network of these paths."""


def _in_single(value: Any) -> Any:
    """Attribute of a form in float32, if it is an array or another form."""
    if isinstance(value, Form):
        return value.in_single_precision
    return in_single_precision(value) if getattr(value, "ndim", 0) else value  # not numbers


class ExamplesForm(Form):
    """Form that holds every training example.

    Attributes
    ----------
    labels : array, shape (P, C)
    """

    labels: Array

    def explained_labels(
        self,
        posterior: Predictor,
        factor: np.ndarray,
        temperature: float,
        examples: tuple[Array, np.ndarray],
        basis: Array | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of leave-one-out from L of K + T1 = LLᵀ, see :meth:`Form.explained_labels`."""
        root = posterior.root
        evaluate = compile_function(explained_labels, array_namespace(root=root))
        coefficients, blocks = evaluate(root, self.labels)
        return to_host(coefficients), to_host(blocks)

    def has_labels(self, labels: np.ndarray, rounding: float) -> bool:
        """Whether labels (P, C) are those of the form, up to rounding relative to the largest."""
        own = to_host(self.labels)
        return bool(np.allclose(own, labels, rtol=0, atol=rounding * abs(own).max()))
