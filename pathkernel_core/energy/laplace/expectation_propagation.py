"""Energy of two classes by expectation propagation (EP), a check of Laplace's approximation.

Each example has a Gaussian site in place of its likelihood, of natural parameters ν and τ, whose
moments are matched one by one: with sites S = 1/τ and Π = (S + K)⁻¹ the energy −2 ln Z has

    ∂E/∂K = Π − bbᵀ,      b = ν − ΠK ν,

since it is stationary in the sites. It has no error that stays at large scales, which Laplace's
approximation has, but Newton's method is faster and serves more classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    add_to_diagonal,
    array_namespace,
    cholesky,
    compile_function,
    from_host,
    log_determinant,
    solve_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.label_spectrum import LabelSpectrum
from pathkernel_core.energy.laplace.blocks import times_blocks, transposed_blocks
from pathkernel_core.energy.laplace.features import LaplaceFeatures
from pathkernel_core.energy.laplace.forms import (
    KernelForm,
    LaplaceExamples,
    LaplaceForm,
)
from pathkernel_core.energy.laplace.mode import no_mode
from pathkernel_core.energy.laplace.posterior import CrossPosterior
from pathkernel_core.energy.laplace.sizes import check_rows
from pathkernel_core.energy.laplace.structure import DENSE, Structure
from pathkernel_core.energy.likelihoods.averages import log_average_sigmoid, tilted_nodes
from pathkernel_core.system.errors import NotPositiveDefiniteError

_SWEEPS = 1000
_DAMPING = 0.8
_SLOWEST = 0.05  # smallest damping, reached if sweeps diverge
_NONE = 1e-30  # variance of an output that is always 0
_SMALLEST = 1e-14  # precision of a site


def ep_form(form: LaplaceForm) -> ExpectationPropagation:
    """Form by EP of the problem of a form by Laplace's approximation.

    Raises
    ------
    ValueError
        If there are more than two classes, or too many examples for a kernel of them.
    """
    form.likelihood.as_signs(form.labels)
    check_rows(*form.labels.shape)
    of = cast("KernelForm", form)
    if isinstance(form, LaplaceFeatures):
        of = LaplaceExamples(form.labels, form.likelihood, features=form.features)
    return ExpectationPropagation(form.labels, form.likelihood, of=of)


@dataclass(frozen=True, eq=False)
class ExpectationPropagation(KernelForm):
    """Form of the energy of two classes by EP.

    Parameters
    ----------
    of : KernelForm
        Form by Laplace's approximation, which has the kernel.
    """

    of: KernelForm = field(kw_only=True)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the form."""
        return self.of.name

    @property
    def is_of_kernels(self) -> bool:  # type: ignore[override]
        """Whether kernels were given in place of attentioned inputs."""
        return self.of.is_of_kernels

    @property
    def has_pairs(self) -> bool:  # type: ignore[override]
        """Whether there are kernels of different paths; if not, branches must be independent."""
        return self.of.has_pairs

    @property
    def array(self) -> Array:
        """The array that has library, dtype and device."""
        return self.of.array

    @property
    def summed_kernels(self) -> Array:
        """Kernels of pairs of paths at the same example, summed over examples, (n, n)."""
        return self.of.summed_kernels

    def label_spectrum(self, scales: np.ndarray) -> LabelSpectrum:
        """Labels along the eigenvectors of the limit's kernel, as for Laplace's approximation."""
        return self.of.label_spectrum(scales)

    def keep_paths(self, paths: np.ndarray) -> ExpectationPropagation:
        """Same form for a sub-network of these paths."""
        return replace(self, of=cast("KernelForm", self.of.keep_paths(paths)), memory=None)

    def branches(self) -> ExpectationPropagation:
        """Form with only the kernels of every path with itself, for one output."""
        return replace(self, of=cast("KernelForm", self.of.branches()), memory=None)

    def kernel(self, factor: Array) -> Array:
        """Kernel K of the rows (example, output), (P·C, P·C)."""
        return self.of.kernel(factor)

    def common_kernel(self, factor: Array) -> Array:
        """Kernel (P, P) that independent outputs have in common."""
        return self.of.common_kernel(factor)

    def sums(self, weights: Array) -> Array:
        """Gradient with respect to U_1 from symmetric weights ∂E/∂K (P·C, P·C)."""
        return self.of.sums(weights)

    def cross(self) -> Any:
        """Kernels of new and training examples."""
        return self.of.cross()

    def _structured_kernel(self, factor: np.ndarray) -> tuple[Array, Structure]:
        """Kernel of all rows: the sites of two classes are of their difference."""
        return self.kernel(from_host(factor, self.array)), DENSE

    def evaluate_energy(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray | None]:
        """Energy alone, see :meth:`Form.evaluate_energy`."""
        scaled = from_host(factor if scales is None else scales * factor, self.array)
        return self._fixed_point(self.kernel(scaled))[0], None

    def energy_and_gradient(
        self, factor: np.ndarray, temperature: float, scales: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Energy and its gradient on the host, see :meth:`Form.energy_and_gradient`."""
        scaled = from_host(factor if scales is None else scales * factor, self.array)
        energy, coefficients, roots, lower = self._fixed_point(self.kernel(scaled))
        xp = array_namespace(lower=lower)
        flat = xp.reshape(coefficients, (-1, 1))
        weights = DENSE.weights((roots, lower)) - matmul(flat, xp.matrix_transpose(flat))
        gradient = to_host(self.sums(weights))
        return energy, gradient if scales is None else scales * gradient * scales.T

    def posterior(self, factor: np.ndarray, temperature: float) -> CrossPosterior:
        """Gaussian posterior of the outputs at U_1 = factor factorᵀ."""
        kernel = self.kernel(from_host(factor, self.array))
        _, coefficients, roots, lower = self._fixed_point(kernel)
        arrays = coefficients, (roots, lower)
        return CrossPosterior(self.likelihood, self.cross(), DENSE, *arrays)

    def _fixed_point(self, kernel: Array) -> tuple[float, Array, Array, Array]:
        """Energy, coefficients (P, C), roots of the sites (P, C, 1) and L of B = LLᵀ.

        With B = 1 + RᵀKR of the roots R, which have the contrast of the outputs that tells the
        classes apart, times √τ.
        """
        xp = array_namespace(kernel=kernel)
        signs, contrast = self.likelihood.as_signs(self.labels)
        direction = from_host(np.tile(contrast[None, :, None], (signs.shape[0], 1, 1)), kernel)
        along = transposed_blocks(direction, kernel)
        along = transposed_blocks(direction, xp.matrix_transpose(along))  # of the contrast, (P, P)
        start = None if self.memory is None else self.memory.start
        if start is None:
            start = xp.stack([xp.full_like(signs, 0.05), 0.5 * signs * 0.1])
        deviation = math.sqrt(max(0.0, float(xp.max(xp.linalg.diagonal(along)))))
        if not math.isfinite(deviation):
            raise no_mode(kernel, ValueError("the prior variance overflows"))
        try:
            nodes = tilted_nodes(deviation)
        except ValueError as error:
            raise NotPositiveDefiniteError(str(error)) from None
        sweep = compile_function(_sweep, xp, static=("nodes",))
        sites, damping, before = start, _DAMPING, np.inf
        tolerance = 1e3 * float(xp.finfo(kernel.dtype).eps)
        for _ in range(_SWEEPS):
            change, energy, nu, lower = sweep(along, signs, sites, nodes=nodes)
            size = float(xp.max(xp.abs(change)))
            if not np.isfinite(size):
                break
            if size <= tolerance * max(1.0, float(xp.max(xp.abs(sites)))):
                if self.memory is not None:
                    self.memory.start = sites
                roots = direction * xp.sqrt(sites[0, :])[:, None, None]
                coefficients = xp.reshape(times_blocks(direction, nu), self.labels.shape)
                return float(energy), coefficients, roots, lower
            # sweeps of all sites at once may overshoot
            damping = max(_SLOWEST, 0.7 * damping) if size > before else damping
            sites, before = sites + damping * change, size
        raise no_mode(kernel, ValueError("expectation propagation did not converge"))


def _sweep(
    kernel: Array, signs: Array, sites: Array, *, nodes: int
) -> tuple[Array, Array, Array, Array]:
    """Change of all sites (2, P), energy, b (P, 1) and L of B = LLᵀ, at sites (τ, ν)."""
    xp = array_namespace(kernel=kernel)
    tau, nu = sites[0, :], sites[1, :]
    root = xp.sqrt(tau)
    matrix = root[:, None] * kernel * root
    lower = cholesky(add_to_diagonal(matrix, 1.0, xp), xp)
    whitened = solve_triangular(lower, root[:, None] * kernel, xp)
    variance = xp.linalg.diagonal(kernel) - xp.sum(whitened**2, axis=0)
    variance = xp.clip(variance, min=_NONE)  # of an example without inputs, which has no kernel
    fitted = matmul(kernel, nu[:, None]) - matmul(
        xp.matrix_transpose(whitened), matmul(whitened, nu[:, None])
    )
    mean = fitted[:, 0]
    tau_cavity, nu_cavity = 1 / variance - tau, mean / variance - nu
    cavity = nu_cavity / tau_cavity
    log_z, first, second = log_average_sigmoid(signs, cavity, 1 / tau_cavity, nodes)
    # the tilted density has mean m + v L' and variance v + v² L'' by the slopes L', L'' of log Z
    shrinkage = 1 + second / tau_cavity
    new_tau = xp.clip(-second / shrinkage, min=_SMALLEST)
    new_nu = (first - cavity * second) / shrinkage
    log_evidence = xp.sum(log_z + 0.5 * xp.log1p(tau / tau_cavity))
    log_evidence = log_evidence - 0.5 * log_determinant(lower, xp) + 0.5 * xp.sum(nu * mean)
    of_cavity = cavity * (tau * cavity - 2 * nu) / (1 + tau / tau_cavity)
    log_evidence = log_evidence + 0.5 * xp.sum(of_cavity - nu**2 / (tau_cavity + tau))
    # b = ν − Π K ν = ν − τ m, as m = Σν with Σ = (K⁻¹ + τ)⁻¹
    coefficients = (nu - tau * mean)[:, None]
    change = xp.stack([new_tau - tau, new_nu - nu])
    return change, -2 * log_evidence, coefficients, lower
