"""Forms of the energy of classes: an interface, and the two that mix kernels of examples.

All forms are exact rewritings of the same approximation, see
:mod:`pathkernel_core.energy.laplace.mode`. Those of this module know two linear maps: an order
parameter *mixes* the features or kernels into K (P·C, P·C), and weights ∂E/∂K are *summed* into the
gradient with respect to U_1.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    to_host,
)
from pathkernel_core.energy.examples import ExampleSpace
from pathkernel_core.energy.form import ExamplesForm, InputGradient, Predictor
from pathkernel_core.energy.given_kernels import GivenKernels
from pathkernel_core.energy.label_spectrum import LabelSpectrum
from pathkernel_core.energy.laplace.blocks import block_diagonal
from pathkernel_core.energy.laplace.class_blocks import CLASS_BLOCKS, is_common, keeps_digits
from pathkernel_core.energy.laplace.curvature import DifferenceCurvature
from pathkernel_core.energy.laplace.kernels import kernel_of_features, sums_of_features
from pathkernel_core.energy.laplace.mode import (
    NewtonPoint,
    kernel_mode,
    laplace_energy,
    laplace_weights,
)
from pathkernel_core.energy.laplace.posterior import CrossPosterior, GivenCross, InputCross
from pathkernel_core.energy.laplace.sizes import allows_class_blocks, check_rows
from pathkernel_core.energy.laplace.structure import DENSE, Structure
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood
from pathkernel_core.system.memory import check_memory

_COPIES = 4  # of a kernel while its outputs are put in order

Mode: TypeAlias = tuple[Array, NewtonPoint]
"""Variables of a form at the mode, and the point there."""


class ModeMemory:
    """Mode of the last evaluation of a descent, where the next one starts Newton's method."""

    start: Array | None = None


@dataclass(frozen=True, eq=False)
class LaplaceForm(ExamplesForm):
    """Energy of classes by Laplace's approximation, at a mode found by Newton's method.

    Attributes
    ----------
    labels : array, shape (P, C)
        Targets, as the likelihood has them.
    likelihood : ClassLikelihood
    memory : ModeMemory or None
        Of a descent, see :meth:`for_descent`. It saves steps and changes results by rounding only.
    """

    labels: Array
    likelihood: ClassLikelihood  # type: ignore[assignment]
    memory: ModeMemory | None = None

    def for_descent(self) -> Self:
        """Form for evaluations one after another, each from the mode of the one before."""
        return replace(self, memory=ModeMemory())

    def _from_memory(self, solve: Callable[[Array | None], Mode]) -> Mode:
        """Mode that a function finds from the last one, or from outputs of 0."""
        if self.memory is None:
            return solve(None)
        mode = solve(self.memory.start)
        self.memory.start = mode[0]
        return mode

    def branches(self) -> LaplaceForm:
        """Form of independent branches, for one output."""
        raise ValueError(
            f"independent branches (shared=False) with the {self.likelihood.name} likelihood need "
            "their kernels: give same_path_kernels(xi) to Problem.from_kernels, branches=True"
        )

    @abstractmethod
    def full_kernel(self, factor: np.ndarray) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), of a factor on the host."""

    @abstractmethod
    def training_probabilities(self, factor: np.ndarray) -> Array:
        """Probabilities of the classes of the training examples, (P, classes), posterior."""

    def energy(self, factor: Array, temperature: Array) -> Array:
        """Refuse: the mode is found on the host."""
        raise self._not_traceable

    def evaluate(self, factor: Array, temperature: Array) -> tuple[Array, Array]:
        """Refuse: the mode is found on the host."""
        raise self._not_traceable

    @property
    def _not_traceable(self) -> ValueError:
        return ValueError(
            f"the energy of the {self.likelihood.name} likelihood cannot be differentiated "
            "automatically, since its mode is found on the host; energy_and_gradient gives its "
            "derivative"
        )

    def curvature(self, factor: np.ndarray, temperature: float) -> DifferenceCurvature:
        """Second derivatives of the energy by differences, see :meth:`Form.curvature`."""
        if not self.has_pairs:
            super().curvature(factor, temperature)  # refuses
        return DifferenceCurvature(self, factor)

    def input_gradient(
        self, posterior: Predictor, factor: np.ndarray, basis: Array | None
    ) -> InputGradient:
        """Refuse: the closed form is that of the squared loss."""
        raise ValueError(
            "gradients with respect to inputs need the squared loss, not the "
            f"{self.likelihood.name} likelihood"
        )

    def explained_labels(
        self,
        posterior: Predictor,
        factor: np.ndarray,
        temperature: float,
        examples: tuple[Array, np.ndarray],
        basis: Array | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Refuse: there is no closed form without an example."""
        raise ValueError(
            "leave-one-out in closed form needs the squared loss, not the "
            f"{self.likelihood.name} likelihood; compare probabilities on validation examples"
        )

    def _search_labels(self) -> Array:
        return self.likelihood.search_labels(self.labels)


class KernelForm(LaplaceForm):
    """Form that mixes a kernel of examples, and factorises matrices of its size.

    It is the kernel K (P·C, P·C) of all rows; or the one (P, P) that the classes have in common,
    where the order parameter has such a structure.
    """

    @abstractmethod
    def kernel(self, factor: Array) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), at U_1 = factor factorᵀ."""

    @abstractmethod
    def common_kernel(self, factor: Array) -> Array:
        """Kernel (P, P) that independent outputs have in common, of a factor (n, n) of one."""

    @abstractmethod
    def sums(self, weights: Array) -> Array:
        """Gradient with respect to U_1 from symmetric weights ∂E/∂K (P·C, P·C)."""

    @abstractmethod
    def cross(self) -> InputCross | GivenCross:
        """Kernels of new and training examples, and of new ones with themselves."""

    def full_kernel(self, factor: np.ndarray) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), of a factor on the host."""
        rows = math.prod(self.labels.shape)
        title = f"the kernel of {rows} rows, examples times outputs,"
        check_memory(title, 8 * _COPIES * rows**2, "take fewer examples")
        return self.kernel(from_host(factor, self.array))

    def training_probabilities(self, factor: np.ndarray) -> Array:
        """Probabilities of the classes of the training examples, (P, classes), posterior."""
        kernel, _ = self._structured_kernel(factor)
        posterior = self.posterior(factor, math.nan)
        own = block_diagonal(kernel, kernel.shape[0] // self.labels.shape[0])
        return self.likelihood.probabilities(*posterior.of_kernels(kernel, own)).values

    def has_class_blocks(self, factor: np.ndarray) -> bool:
        """Whether classes are factorised one by one at a factor on the host."""
        kernel = self._kernel_of_classes(factor)
        return kernel is not None and keeps_digits(kernel)

    def _kernel_of_classes(self, factor: np.ndarray) -> Array | None:
        """Kernel (P, P) that the classes have in common at a factor on the host; None if none."""
        outputs = self.labels.shape[1]
        if not (allows_class_blocks(outputs, self.likelihood) and is_common(factor, outputs)):
            return None
        reduced = CLASS_BLOCKS.reduce_factor(factor, outputs)
        return self.common_kernel(from_host(reduced, self.array))

    def _structured_kernel(self, factor: np.ndarray) -> tuple[Array, Structure]:
        """Kernel at a factor on the host, and its structure: classes alone where that is exact."""
        examples, outputs = self.labels.shape
        remedy, kernel = ", or the squared loss", self._kernel_of_classes(factor)
        if kernel is not None:
            if keeps_digits(kernel):
                return kernel, CLASS_BLOCKS
            remedy = (
                "; or lower the prior variances, since the kernel is too large to factorise the "
                "classes one by one"
            )
        check_rows(examples, outputs, remedy)
        return self.kernel(from_host(factor, self.array)), DENSE

    def check_size(self) -> None:
        """Raise a TooLargeError if the rows (example, class) are too many."""
        examples, outputs = self.labels.shape
        remedy = ", the squared loss, or the Gaussian process limit alone (widths of inf)"
        check_rows(examples, outputs, remedy)

    def _mode(self, kernel: Array, structure: Structure) -> Mode:
        """Coefficients a (P, C) of the mode f = K a."""
        arguments = kernel, self.labels, self.likelihood, structure
        return self._from_memory(lambda start: kernel_mode(*arguments, start))

    def evaluate_energy(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray | None]:
        """Energy alone, see :meth:`Form.evaluate_energy`."""
        kernel, structure = self._structured_kernel(factor if scales is None else scales * factor)
        _, point = self._mode(kernel, structure)
        return laplace_energy(point), None

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient on the host, see :meth:`Form.energy_and_gradient`."""
        self.check_size()  # the gradient is of all pairs of rows, whatever the structure
        kernel, structure = self._structured_kernel(factor if scales is None else scales * factor)
        coefficients, point = self._mode(kernel, structure)
        evaluate = compile_function(
            laplace_weights,
            array_namespace(array=self.array),
            static=("likelihood", "structure"),
        )
        arrays = kernel, self.labels, coefficients, point.rest
        weights = evaluate(*arrays, likelihood=self.likelihood, structure=structure)
        gradient = to_host(self.sums(weights))
        energy = laplace_energy(point)
        return energy, gradient if scales is None else scales * gradient * scales.T

    def posterior(self, factor: np.ndarray, temperature: float) -> CrossPosterior:
        """Gaussian posterior of the outputs at U_1 = factor factorᵀ."""
        kernel, structure = self._structured_kernel(factor)
        coefficients, point = self._mode(kernel, structure)
        _, _, *factors = point.rest
        arrays = structure, coefficients, tuple(factors)
        return CrossPosterior(self.likelihood, self.cross(), *arrays)


@dataclass(frozen=True, eq=False)
class LaplaceExamples(KernelForm):
    """Form from features of every example.

    Parameters
    ----------
    features : array, shape (P, n, N_0)
        Scaled features Φ without the factor σ_0.
    """

    features: Array = field(kw_only=True)
    name = "examples"

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.features

    @property
    def squared(self) -> ExampleSpace:
        """Form of the squared loss that resembles the likelihood at outputs of 0."""
        return ExampleSpace(self.features, self._search_labels())

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        return self.squared.summed_kernels

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² Φ_π Φ_πᵀ, for coefficients c (n,) of paths."""
        return self.squared.label_spectrum(scales)

    def kernel(self, factor: Array) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), at U_1 = factor factorᵀ."""
        return compile_function(kernel_of_features, array_namespace(array=self.array))(
            self.features, factor
        )

    def common_kernel(self, factor: Array) -> Array:
        """Kernel (P, P) that independent outputs have in common, of a factor (n, n) of one."""
        return self.kernel(factor)

    def sums(self, weights: Array) -> Array:
        """Gradient with respect to U_1 from symmetric weights ∂E/∂K (P·C, P·C)."""
        return compile_function(sums_of_features, array_namespace(array=self.array))(
            self.features, weights
        )

    def cross(self) -> InputCross:
        """Kernels of new and training examples, by their inputs."""
        return InputCross(self.features)

    def keep_paths(self, paths: np.ndarray) -> LaplaceExamples:
        """Same form for a sub-network of these paths."""
        return replace(self, features=self.squared.keep_paths(paths).features, memory=None)


@dataclass(frozen=True, eq=False)
class LaplaceKernels(KernelForm):
    """Form from given kernels of pairs of paths, or of independent branches.

    Parameters
    ----------
    given : GivenKernels
        Packed kernels, with the targets in place of labels.
    """

    given: GivenKernels = field(kw_only=True)
    name = "kernels"
    is_of_kernels = True

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.given.array

    @property
    def n_paths(self) -> int:
        """Number n of paths."""
        return self.given.n_paths

    @property
    def has_pairs(self) -> bool:  # type: ignore[override]
        """Whether there are kernels of different paths; if not, branches must be independent."""
        return self.given.has_pairs

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        return self.given.summed_kernels

    @property
    def full_kernels(self) -> Array:
        """Kernels of all pairs of paths, divided by n, (n, n, P, P)."""
        return self.given.full_kernels

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of Σ_π c² C_ππ, for coefficients c (n,) of paths."""
        return replace(self.given, labels=self._search_labels()).label_spectrum(scales)

    def kernel(self, factor: Array) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C), at U_1 = factor factorᵀ."""
        return self.given.kernel(factor)

    def common_kernel(self, factor: Array) -> Array:
        """Kernel (P, P) that independent outputs have in common, of a factor (n, n) of one."""
        return self.given.common_kernel(factor)

    def sums(self, weights: Array) -> Array:
        """Gradient with respect to U_1 from symmetric weights ∂E/∂K (P·C, P·C)."""
        return self.given.sums(weights)

    def cross(self) -> GivenCross:
        """Kernels of new and training examples, as a user gives them."""
        return GivenCross(self.given.index)

    def keep_paths(self, paths: np.ndarray) -> LaplaceKernels:
        """Same form for a sub-network of these paths."""
        return replace(self, given=self.given.keep_paths(paths), memory=None)

    def branches(self) -> LaplaceKernels:
        """Form with only the kernels of every path with itself, for one output."""
        return replace(self, given=self.given.branches(), memory=None)
