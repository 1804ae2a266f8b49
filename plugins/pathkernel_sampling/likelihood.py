"""Likelihood of the labels given the order parameter, and the predictor's moments (Eq. 9, 29–34).

Everything is a function of a factor F of the order parameter, U = F Fᵀ, with one row for each pair
(path, output), output fastest, and any number of columns: U may be singular. The energy

    ln det(K + T1) + Yᵀ (K + T1)⁻¹ Y,        K = Φ (U ⊗ 1) Φᵀ

and its gradient 2 (M − R) F come from one factorisation, in the cheapest of three exact forms.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.errors import PrecisionError
from pathkernel_core.kernels import PathKernels
from pathkernel_core.network import positive

_PACKED_BYTES = 32 * 2**20  # packed kernels are read twice per gradient and should stay in cache


def pytree(data: tuple[str, ...], static: tuple[str, ...] = ()) -> Any:
    """Class decorator: instances hold these attributes and can be arguments of compiled code.

    Parameters
    ----------
    data : tuple of str
        Attributes that are arrays or other pytrees.
    static : tuple of str
        Hashable attributes: code is compiled anew where they differ.
    """

    def register(cls: type) -> type:
        names = (*data, *static)

        def flatten(instance: Any) -> tuple[list[Any], tuple[Any, ...]]:
            values = [getattr(instance, name) for name in names]
            return values[: len(data)], tuple(values[len(data) :])

        def unflatten(rest: tuple[Any, ...], leaves: list[Any]) -> Any:
            instance = object.__new__(cls)
            for name, value in zip(names, (*leaves, *rest)):
                setattr(instance, name, value)
            return instance

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
        return cls

    return register


class Form(Protocol):
    """One exact way to compute the energy."""

    def energy_and_gradient(self, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Energy (Eq. 34) at U = F Fᵀ and its gradient 2 (M − R) F, for F (n·C, r)."""

    def moments(self, factor: jax.Array, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean, and how much variance the examples explain, for new features (P', n, N_0)."""


@jax.custom_vjp
def energy(form: Form, factor: jax.Array) -> jax.Array:
    """Energy ln det(K + T1) + Yᵀ(K + T1)⁻¹Y (Eq. 34), differentiable in the factor (n·C, r)."""
    return form.energy_and_gradient(factor)[0]


def _forward(form: Form, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    return form.energy_and_gradient(factor)


def _backward(gradient: jax.Array, cotangent: jax.Array) -> tuple[None, jax.Array]:
    return None, cotangent * gradient


energy.defvjp(_forward, _backward)


@pytree(("features", "labels", "temperature"))
class FeatureForm:
    """Energy from a Cholesky factor of K + T1, P·C × P·C, with K from the features.

    Parameters
    ----------
    features : array, shape (P, n, N_0)
        Scaled features Φ, the factor σ_0 included.
    labels : array, shape (P, C)
    temperature : float
    """

    def __init__(self, features: jax.Array, labels: jax.Array, temperature: float):
        self.features, self.labels = features, labels
        self.temperature = jnp.asarray(temperature)

    def energy_and_gradient(self, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Energy at U = F Fᵀ and its gradient 2 (M − R) F."""
        reduced, rotation = _at_most_square(factor)
        mixed = _mix(self.features, reduced, self.labels.shape[1])
        lower = _cholesky(mixed @ mixed.T, self.temperature)
        fit = _solve(lower, self.labels.reshape(-1, 1))[:, 0]
        value = _log_det(lower) + self.labels.reshape(-1) @ fit
        # M F and R F, (n·C, r), from (K + T1)⁻¹ Φ (F ⊗ 1) and (K + T1)⁻¹ Y
        residual = _solve(lower, mixed) - jnp.outer(fit, fit @ mixed)
        gradient = 2 * self._correlate(residual, reduced)
        return value, gradient if rotation is None else gradient @ rotation.T

    def moments(self, factor: jax.Array, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and explained variance (P'·C,) of the predictor (Eq. 29, 30)."""
        reduced, _ = _at_most_square(factor)
        outputs = self.labels.shape[1]
        mixed = _mix(self.features, reduced, outputs)
        lower = _cholesky(mixed @ mixed.T, self.temperature)
        across = mixed @ _mix(features, reduced, outputs).T
        whitened = _triangular(lower, across)
        target = _triangular(lower, self.labels.reshape(-1, 1))[:, 0]
        return target @ whitened, jnp.sum(whitened**2, axis=0)

    def _correlate(self, residual: jax.Array, factor: jax.Array) -> jax.Array:
        """Sum over examples and inputs of Φ with residual (P·C, r·N_0) → (n·C, r)."""
        examples, paths, width = self.features.shape
        outputs, rank = factor.shape[0] // paths, factor.shape[1]
        residual = residual.reshape(examples, outputs * rank, width)
        blocks = jnp.einsum("mpi,mki->pk", self.features, residual)
        return blocks.reshape(paths * outputs, rank)


@pytree(("kernels", "features", "labels", "temperature"))
class PackedForm:
    """Energy of one output from the kernels of all pairs of paths, which mix into K by one product.

    Parameters
    ----------
    features : array, shape (P, n, N_0)
        Scaled features Φ, the factor σ_0 included.
    labels : array, shape (P, 1)
    temperature : float

    Notes
    -----
    ``kernels`` is (n(n+1)/2, P²): pairs π ≥ π', those of two different paths counted twice.
    """

    def __init__(self, features: jax.Array, labels: jax.Array, temperature: float):
        self.features, self.labels = features, labels
        self.temperature = jnp.asarray(temperature)
        by_path = np.asarray(features).transpose(1, 0, 2)
        kernels = [
            one @ two.T if first == second else one @ two.T + two @ one.T
            for first, one in enumerate(by_path)
            for second, two in enumerate(by_path[: first + 1])
        ]
        self.kernels = jnp.asarray(np.reshape(kernels, (len(kernels), -1)))

    def energy_and_gradient(self, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Energy at U = F Fᵀ and its gradient 2 (M − R) F."""
        pairs = np.tril_indices(factor.shape[0])
        examples = self.labels.shape[0]
        kernel = ((factor @ factor.T)[pairs] @ self.kernels).reshape(examples, examples)
        lower = _cholesky(kernel, self.temperature)
        inverse = _triangular(lower, jnp.eye(examples))
        target = inverse @ self.labels[:, 0]
        fit = target @ inverse
        value = _log_det(lower) + target @ target
        weights = inverse.T @ inverse - jnp.outer(fit, fit)
        packed = self.kernels @ weights.reshape(-1)
        halves = jnp.zeros((factor.shape[0],) * 2).at[pairs].set(packed)
        return value, (halves + halves.T) @ factor  # M − R = (halves + halvesᵀ) / 2

    def moments(self, factor: jax.Array, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and explained variance (P',) of the predictor (Eq. 29, 30)."""
        return FeatureForm.moments(self, factor, features)


@pytree(("gram", "projections", "label_square", "temperature"), ("rows",))
class StatisticsForm:
    """Energy from sufficient statistics, one factorisation of size r·N_0 whatever P is.

    Parameters
    ----------
    gram : array, shape (n, N_0, n, N_0)
        ΦᵀΦ, the factor σ²_0 included.
    projections : array, shape (n, N_0, C)
        ΦᵀY, the factor σ_0 included.
    label_square : float
        Sum of all squared labels.
    rows : int
        Number of examples times outputs, P·C.
    temperature : float
    """

    def __init__(
        self,
        gram: jax.Array,
        projections: jax.Array,
        label_square: float,
        rows: int,
        temperature: float,
    ):
        self.gram, self.projections, self.rows = gram, projections, rows
        self.label_square = jnp.asarray(label_square)
        self.temperature = jnp.asarray(temperature)

    def energy_and_gradient(self, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Energy at U = F Fᵀ and its gradient 2 (M − R) F."""
        reduced, rotation = _at_most_square(factor)
        half, lower, right = self._factorise(reduced)
        target = _triangular(lower, right)
        fit = _triangular(lower, target, transposed=True)
        excess = self.rows - len(lower)
        value = excess * jnp.log(self.temperature) + _log_det(lower)
        value = value + (self.label_square - jnp.sum(target**2)) / self.temperature
        paths, width, outputs = self.projections.shape
        rank = reduced.shape[1]
        mixed = _solve(lower, half.T).T  # Φᵀ (K + T1)⁻¹ Φ (F ⊗ 1)
        mixed = mixed.reshape(paths, outputs, width, rank, width)
        mixed = jnp.einsum("pciki->pck", mixed).reshape(-1, rank)  # M F
        z = self.projections.transpose(0, 2, 1).reshape(-1, 1) - half @ fit
        z = z.reshape(-1, width) / self.temperature
        gradient = 2 * (mixed - z @ fit.reshape(rank, width).T)
        return value, gradient if rotation is None else gradient @ rotation.T

    def moments(self, factor: jax.Array, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and explained variance (P'·C,) of the predictor (Eq. 29, 30)."""
        reduced, _ = _at_most_square(factor)
        _, lower, right = self._factorise(reduced)
        new = _mix(features, reduced, self.projections.shape[2])
        whitened = _triangular(lower, new.T)
        mean = _triangular(lower, right)[:, 0] @ whitened
        left = self.temperature * jnp.sum(whitened**2, axis=0)
        return mean, jnp.sum(new**2, axis=1) - left

    def _factorise(self, factor: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """G (F ⊗ 1), the Cholesky factor of B = T1 + (Fᵀ ⊗ 1) G (F ⊗ 1), and (Fᵀ ⊗ 1) ΦᵀY."""
        paths, width, outputs = self.projections.shape
        rank = factor.shape[1]
        by_path = factor.reshape(paths, outputs, rank)
        half = jnp.einsum("piqj,qck->pcikj", self.gram, by_path)
        matrix = jnp.einsum("pck,pcilj->kilj", by_path, half)
        lower = _cholesky(matrix.reshape(rank * width, rank * width), self.temperature)
        right = jnp.einsum("pck,pic->ki", by_path, self.projections)
        return half.reshape(-1, rank * width), lower, right.reshape(-1, 1)


@pytree(("form", "scale", "basis"), ("rows", "outputs"))
class Likelihood:
    """Likelihood p(Y | U) = Normal(Y; 0, K + T1), and the predictor given U.

    Made by :meth:`from_problem`. Instances can be arguments of compiled functions.
    """

    def __init__(self, form: Form, scale: float, basis: np.ndarray | None, rows: int, outputs: int):
        self.form, self.scale, self.rows, self.outputs = form, jnp.asarray(scale), rows, outputs
        self.basis = None if basis is None else jnp.asarray(basis)

    @classmethod
    def from_problem(
        cls, xi: np.ndarray, labels: np.ndarray, temperature: float, variance_0: float = 1.0
    ) -> Likelihood:
        """Likelihood of labels given attentioned inputs, in the cheapest form.

        Parameters
        ----------
        xi : array, shape (P, n, N_0)
            Attentioned inputs, unscaled.
        labels : array, shape (P,) or (P, C)
        temperature : float
            Positive temperature T.
        variance_0 : float
            Prior variance σ²_0 of the projection.

        Raises
        ------
        ValueError
            If shapes do not match, a value is not finite, or a parameter is not positive.
        PrecisionError
            If JAX's 64-bit mode is off.
        """
        require_double_precision()
        temperature = positive("temperature", temperature)
        deviation = math.sqrt(positive("variance_0", variance_0))
        xi, labels = np.asarray(xi, dtype=float), np.asarray(labels, dtype=float)
        problem = PathKernels(xi, labels)
        if problem.space == "features":
            statistics = problem.form
            form = StatisticsForm(
                jnp.asarray(deviation**2 * statistics.gram),
                jnp.asarray(deviation * statistics.projections),
                statistics.label_square,
                problem.n_examples * problem.outputs,
                temperature,
            )
        else:
            features = deviation * problem.form.features
            chosen = PackedForm if _packed_is_cheaper(features, problem.outputs) else FeatureForm
            form = chosen(jnp.asarray(features), jnp.asarray(problem.form.labels), temperature)
        scale = deviation / math.sqrt(problem.n_paths * problem.input_width)
        rows = problem.n_examples * problem.outputs
        return cls(form, scale, problem.basis, rows, problem.outputs)

    def log_likelihood(self, factor: jax.Array) -> jax.Array:
        """Normalised log density of the labels at U = F Fᵀ, for F (n·C, r)."""
        return -0.5 * (energy(self.form, factor) + self.rows * math.log(2 * math.pi))

    def moments(self, factor: jax.Array, test: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance (Eq. 29, 30) of the predictor given U = F Fᵀ.

        Parameters
        ----------
        factor : array, shape (n·C, r)
        test : array, shape (P_test, n, N_0)
            Attentioned inputs of new examples, unscaled.

        Returns
        -------
        mean, variance : array, shape (P_test, C)
        """
        features = self.scale * test
        reduced, _ = _at_most_square(factor)
        prior = jnp.sum(_mix(features, reduced, self.outputs) ** 2, axis=1)
        if self.basis is not None:
            features = features @ self.basis
        mean, explained = self.form.moments(reduced, features)
        shape = (test.shape[0], self.outputs)
        # rounding may leave a variance of -1e-17 where the examples determine the output
        return mean.reshape(shape), jnp.maximum(prior - explained, 0.0).reshape(shape)


def require_double_precision() -> None:
    """Raise unless JAX computes in 64 bits."""
    if not jax.config.jax_enable_x64:
        raise PrecisionError(
            "sampling needs JAX's 64-bit mode: set the environment variable JAX_ENABLE_X64=1, "
            'or call jax.config.update("jax_enable_x64", True) before anything else'
        )


def _packed_is_cheaper(features: np.ndarray, outputs: int) -> bool:
    examples, paths, width = features.shape
    pairs = paths * (paths + 1) // 2
    if outputs > 1 or 8 * pairs * examples**2 > _PACKED_BYTES:
        return False
    packed = 4 * pairs * examples**2 + 3 * examples**3
    return packed <= 4 * examples**2 * paths * width + examples**3 / 3


def _at_most_square(factor: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Factor G with at most as many columns as rows, and Q with F = G Qᵀ (None for Q = 1)."""
    if factor.shape[1] <= factor.shape[0]:
        return factor, None
    rotation, upper = jnp.linalg.qr(factor.T)
    return upper.T, rotation


def _mix(features: jax.Array, factor: jax.Array, outputs: int) -> jax.Array:
    """Φ (F ⊗ 1) of the rows (example, output): (P, n, N_0) → (P·C, r·N_0)."""
    examples, paths, width = features.shape
    rank = factor.shape[1]
    mixing = factor.reshape(paths, outputs * rank).T
    return (mixing @ features).reshape(examples * outputs, rank * width)


def _cholesky(matrix: jax.Array, temperature: jax.Array) -> jax.Array:
    diagonal = np.diag_indices(matrix.shape[0])
    shifted = matrix.at[diagonal].add(temperature)
    return jax.lax.linalg.cholesky(shifted, symmetrize_input=False)


def _triangular(lower: jax.Array, right: jax.Array, transposed: bool = False) -> jax.Array:
    solve = functools.partial(jax.scipy.linalg.solve_triangular, lower=True)
    return solve(lower, right, trans=1 if transposed else 0)


def _solve(lower: jax.Array, right: jax.Array) -> jax.Array:
    return _triangular(lower, _triangular(lower, right), transposed=True)


def _log_det(lower: jax.Array) -> jax.Array:
    return 2 * jnp.sum(jnp.log(jnp.diagonal(lower)))
