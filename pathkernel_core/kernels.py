"""Problem of the theory: attentioned inputs, labels and their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from pathkernel_core.backend import (
    Array,
    array_namespace,
    compiled,
    from_host,
    library_name,
    not_overflown,
    real_floating,
    to_host,
)
from pathkernel_core.costs import Sizes, cheapest_form, evaluation_seconds
from pathkernel_core.errors import NotPositiveDefiniteError
from pathkernel_core.kernel_packing import check_size, pair_space
from pathkernel_core.kernel_space import KernelSpace
from pathkernel_core.label_spectrum import LabelSpectrum
from pathkernel_core.network import Network
from pathkernel_core.notebook import table
from pathkernel_core.pair_kernels import KernelPosterior, PairSpace
from pathkernel_core.products import matmul, vecdot
from pathkernel_core.scalars import positive
from pathkernel_core.spaces import (
    ExampleSpace,
    FeatureSpace,
    Posterior,
    per_output,
)
from pathkernel_core.statistics import SufficientStatistics, check_examples

SpaceName = Literal["auto", "examples", "features", "kernels"]


class PathKernels:
    """Training examples along every path, the input of the theory.

    Parameters
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs, unscaled, from :func:`attentioned_inputs`.
    labels : array, shape (P,) or (P, C)
        Targets Y; ±1 for classification.
    space : {"auto", "examples", "features", "kernels"}
        Form of the energy: a factorisation of the size of the examples, P·C, or of the features,
        n·N_0·C; or the former with the kernels of all pairs of paths in memory, faster for few
        paths. All are exact; "auto" takes the fastest by
        :func:`pathkernel_core.costs.cheapest_form`.

    Raises
    ------
    ValueError
        If shapes do not match, there are no examples, a value is NaN or infinite, or the kernels
        of all pairs of paths would have more than 2³⁰ elements.
    TypeError
        If the arrays are of different libraries or devices, or not real floating.
    PrecisionError
        If JAX's 64-bit mode is off.

    Notes
    -----
    The network has no bias: subtract the mean of the labels first and add it to predictions, as
    studies do, or the kernel spends paths on it. If there are more examples than fit in memory, sum
    them by :class:`SufficientStatistics`. If you need the response of U to labels, set
    ``space="examples"``: feature space does not keep the examples.

    Inputs that span fewer than N_0 dimensions are rotated into their span, which makes every
    evaluation cheaper and changes kernels only by rounding.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
    >>> pk.PathKernels(xi, np.sign(xi[:, 0, 0]))
    PathKernels(20 examples, 4 paths, N_0 = 5, 1 outputs, in the space of examples)
    """

    def __init__(self, xi: Array, labels: Array, space: SpaceName = "auto"):
        xi, labels = check_examples(xi, labels)
        xp = array_namespace(xi=xi)
        examples, paths, width = xi.shape
        if space not in get_args(SpaceName):
            raise ValueError(
                f'space must be "auto", "examples", "features" or "kernels", not {space!r}'
            )
        # wider inputs than vectors: the N_0 × N_0 eigenproblem would cost more than evaluations do
        basis = _span(xi, xp) if width <= examples * paths else None
        if basis is not None:
            xi = compiled(_rotated, xp)(xi, basis)
        sizes = Sizes(examples, paths, xi.shape[2], labels.shape[1])
        if space == "auto":
            space = cheapest_form(sizes)
        if space == "kernels":
            check_size(paths, examples, labels.shape[1], 'set space="auto"')
        form: ExampleSpace | FeatureSpace
        if space == "features":
            form = _feature_space(SufficientStatistics.of(xi, labels), width)
        else:
            kind = ExampleSpace if space == "examples" else KernelSpace
            form = kind(xi / math.sqrt(width * paths), labels)
        self._set(form, width, paths, examples, labels.shape[1], basis)

    @classmethod
    def from_statistics(cls, statistics: SufficientStatistics) -> PathKernels:
        """Problem in feature space from statistics that were summed batch by batch."""
        paths, width, outputs = statistics.projections.shape
        form = _feature_space(statistics, width)
        return cls.__new__(cls)._set(form, width, paths, statistics.n_examples, outputs, None)

    @classmethod
    def from_kernels(cls, kernels: Array, labels: Array) -> PathKernels:
        """Problem of any positive semidefinite kernels of pairs of paths, in place of inputs.

        Parameters
        ----------
        kernels : array, shape (n, n, P, P), or (n(n + 1)/2, P, P)
            C_ππ'(x, x') of path π of example x and path π' of example x', without the factors of
            Eq. 10: ξ_π(x)·ξ_π'(x')/N_0 for attentioned inputs. Or the pairs π ≤ π' alone, the first
            path slowest: (1, 1), (1, 2), … (1, n), (2, 2), …
        labels : array, shape (P,) or (P, C)
            As for :class:`PathKernels`.

        Raises
        ------
        ValueError
            If shapes do not match, kernels are not symmetric to rounding, a value is NaN or
            infinite, or they would have more than 2³⁰ elements when packed, n(n + 1)/2·P(P + 1)/2
            for one output and n²·P² for several.
        NotPositiveDefiniteError
            If an eigenvalue is negative beyond rounding. All are computed up to n·P = 1000; beyond,
            those of eight random mixtures of paths, which may pass kernels that are not positive.
        TypeError, PrecisionError
            As for :class:`PathKernels`.

        Notes
        -----
        All of the theory works as for inputs. New examples are given by their kernels,
        ``solution.predict(cross, own)``. Kernels of tokens come from :func:`path_kernels`.

        Examples
        --------
        >>> import numpy as np
        >>> import pathkernel as pk
        >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
        >>> kernels = np.einsum("api,bqi->pqab", xi, xi) / 5
        >>> problem = pk.PathKernels.from_kernels(kernels, np.sign(xi[:, 0, 0]))
        >>> problem
        PathKernels(20 examples, 4 paths, 1 outputs, of given kernels)
        >>> solution = pk.minimise_action(problem, pk.Network((2, 2), 50), 0.1)
        >>> own = np.einsum("pqaa->pqa", kernels)
        >>> solution.predict(kernels[:, :, :3], own[:, :, :3]).mean.shape
        (3,)
        """
        form = pair_space(kernels, labels)
        sizes = form.n_paths, form.labels.shape[0], form.labels.shape[1]
        return cls.__new__(cls)._set(form, 0, *sizes, None)

    def _set(
        self,
        form: ExampleSpace | FeatureSpace | PairSpace,
        input_width: int,
        n_paths: int,
        n_examples: int,
        outputs: int,
        basis: Array | None,
    ) -> PathKernels:
        self.form, self.n_paths = form, n_paths
        self.input_width = input_width
        """Width N_0 of the inputs, 0 if kernels were given."""
        self.n_examples, self.outputs = n_examples, outputs
        self.basis = basis
        """Orthonormal basis (N_0, rank) of the inputs' span, or None without rotation."""
        self._label_spectra: dict[tuple[float, ...], LabelSpectrum] = {}
        return self

    def __repr__(self) -> str:
        sizes = f"{self.n_examples} examples, {self.n_paths} paths"
        if self.is_of_kernels:
            return f"PathKernels({sizes}, {self.outputs} outputs, of given kernels)"
        return (
            f"PathKernels({sizes}, N_0 = {self.input_width}, {self.outputs} outputs, in the space "
            f"of {self.space})"
        )

    def _repr_html_(self) -> str:
        xp = array_namespace(array=self.array)
        inputs = f"width {self.input_width}, in a span of {self.n_features} dimensions"
        rows = {
            "training examples": self.n_examples,
            "attention paths": self.n_paths,
            "inputs": "kernels of pairs of paths" if self.is_of_kernels else inputs,
            "outputs": self.outputs,
            "energy": f"in the space of {self.space}",
            "arrays": f"{library_name(xp)}, {self.array.dtype}",
        }
        return table("PathKernels", rows)

    @property
    def space(self) -> str:
        """Form of the energy in use: "examples", "features" or "kernels"."""
        return self.form.name

    @property
    def is_of_kernels(self) -> bool:
        """Whether kernels were given in place of attentioned inputs."""
        return isinstance(self.form, PairSpace)

    @property
    def array(self) -> Array:
        """One array of the problem, which has its library, dtype and device."""
        return self.form.array

    @property
    def mean_kernels(self) -> Array:
        """Mean kernel of every pair of paths with itself, C̄_ππ' = ⟨ξ_π(x)·ξ_π'(x)⟩/N_0, (n, n).

        The mean is over the training examples x. With the order parameter it tells what a pair
        contributes to the kernel (Eq. 10): U_ππ' C̄_ππ'.
        """
        return self.form.summed_kernels * (self.n_paths / self.n_examples)  # features carry 1/√n

    @property
    def n_features(self) -> int:
        """Number of features per path after rotation, at most N_0."""
        return self.input_width if self.basis is None else self.basis.shape[1]

    @property
    def evaluation_seconds(self) -> float:
        """Rough seconds of one evaluation of energy and gradient on one core."""
        sizes = Sizes(self.n_examples, self.n_paths, self.n_features, self.outputs)
        return evaluation_seconds(self.space, sizes)

    def energy_and_gradient(
        self, order_parameter: Array, temperature: float, variance: float = 1.0
    ) -> tuple[float, np.ndarray]:
        """Energy (Eq. 12) and its gradient M − R with respect to U.

        Parameters
        ----------
        order_parameter : array, shape (n·C, n·C)
            Symmetric positive definite U.
        temperature : float
            Positive temperature T.
        variance : float
            Prior variance σ²_0 of the projection.

        Raises
        ------
        NotPositiveDefiniteError
            If U, or the kernel plus the temperature, is not positive definite.
        ValueError, TypeError
            If U is not symmetric, real and finite, or has another shape.
        """
        matrix = real_floating("order_parameter", to_host(order_parameter)).astype(float)
        size = self.n_paths * self.outputs
        if matrix.shape != (size, size):
            raise ValueError(
                f"order_parameter must have shape ({size}, {size}) for {self.n_paths} paths and "
                f"{self.outputs} outputs, but has {matrix.shape}"
            )
        if abs(matrix - matrix.T).max() > 1e-8 * abs(matrix).max():
            raise ValueError(
                "order_parameter must be symmetric, but entries differ from their transposes by "
                f"up to {abs(matrix - matrix.T).max():.3g}"
            )
        scale = math.sqrt(positive("variance", variance))
        factor = scale * _host_cholesky("order_parameter", matrix)
        energy, gradient = self.form.energy_and_gradient(
            factor, positive("temperature", temperature)
        )
        return energy, variance * gradient

    def label_spectrum(self, network: Network) -> LabelSpectrum:
        """Labels along the eigenvectors of the limit's kernel at the network's variances.

        Cached for networks whose limits are proportional.
        """
        # the limit's kernel is a sum over paths, weighted by the squares of these coefficients: a
        # common factor, such as another σ²_0, only scales the eigenvalues
        scales = network.path_scales * np.sqrt(network.variances[0] * network.limit_diagonal)
        largest = scales.max()
        ratios = scales[:: network.outputs] / largest
        key = tuple(ratios.round(12).tolist())
        with np.errstate(all="ignore"):
            if key not in self._label_spectra:
                self._label_spectra[key] = self.form.label_spectrum(ratios)
            return self._label_spectra[key].scaled(largest**2)

    def keep_paths(self, paths: Sequence[int] | np.ndarray) -> PathKernels:
        """Problem of the sub-network with only the paths of these indices.

        The features are rescaled to the smaller number of paths. New examples for its predictor
        are ``xi[:, paths, :]``, or ``cross[paths][:, paths]`` of given kernels.
        """
        indices = np.asarray(paths)
        if indices.ndim != 1 or indices.size == 0 or indices.dtype.kind not in "iu":
            raise ValueError(f"paths must be a non-empty list of path indices, not {paths!r}")
        if indices.min() < 0 or indices.max() >= self.n_paths:
            raise ValueError(f"paths must lie between 0 and {self.n_paths - 1}, but has {paths!r}")
        if len(set(indices.tolist())) != indices.size:
            raise ValueError(f"paths must name each path once, but has {paths!r}")
        form, sizes = self.form.keep_paths(indices), (len(indices), self.n_examples, self.outputs)
        return PathKernels.__new__(PathKernels)._set(form, self.input_width, *sizes, self.basis)

    def check_new(self, xi: Array, own: Array | None, needs_own: bool = True) -> None:
        """Raise an error if arrays are not those of new examples of this problem.

        Attentioned inputs (P_new, n, N_0), or kernels (n, n, P_new, P) with training examples and
        (n, n, P_new) of each new example with itself.
        """
        paths, actual = self.n_paths, tuple(getattr(xi, "shape", ()))
        if not self.is_of_kernels:
            if own is not None:
                raise ValueError(
                    "own is for problems of given kernels; this one takes attentioned inputs "
                    f"(P_new, {paths}, {self.input_width}) alone"
                )
            array_namespace(xi=xi, training=self.array)
            if len(actual) != 3 or not actual[0] or actual[1:] != (paths, self.input_width):
                raise ValueError(
                    f"xi must have shape (P_new, {paths}, {self.input_width}), but has {actual}; "
                    "pass tokens through attentioned_inputs first, with the layers and the readout "
                    "of the training examples"
                )
            return
        array_namespace(cross=xi, training=self.array)
        if (
            len(actual) != 4
            or not actual[2]
            or actual[:2] + actual[3:] != (*(paths, paths, self.n_examples),)
        ):
            raise ValueError(
                "a problem of given kernels takes cross, the kernels of new and training examples, "
                f"of shape ({paths}, {paths}, P_new, {self.n_examples}), but has {actual}"
            )
        if not needs_own:
            return
        shape = tuple(getattr(own, "shape", ()))
        if shape != actual[:3]:
            raise ValueError(
                "own must have the kernels of every new example with itself, of shape "
                f"{actual[:3]}, but has {shape}; for the mean alone call predict_mean(cross)"
            )
        array_namespace(cross=xi, own=own)

    def posterior_moments(
        self,
        posterior: Posterior | KernelPosterior,
        factor: np.ndarray,
        xi: Array,
        own: Array | None = None,
    ) -> tuple[Array, Array]:
        """Predictor mean and variance (Eq. 29, 30) of new examples, (P_new, C) each.

        By their attentioned inputs, or their kernels ``xi`` (n, n, P_new, P) with the training
        examples and ``own`` (n, n, P_new) with themselves.
        """
        self.check_new(xi, own)
        if isinstance(posterior, KernelPosterior):
            paths, examples = self.n_paths, self.n_examples
            cross = real_floating("cross", xi, (paths, paths, "P_new", examples))
            own = real_floating("own", own, (paths, paths, "P_new"))
            return posterior.moments(cross, own, from_host(factor, cross))
        xi = real_floating("xi", xi, ("P_new", self.n_paths, self.input_width))
        return posterior_moments(posterior, from_host(factor, xi), xi, self.basis)

    def posterior_covariances(
        self, posterior: Posterior, factor: np.ndarray, xi: Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean (P, C) and covariance of the outputs (P, C, C) at the training examples xi."""
        xp = array_namespace(xi=xi, training=self.array)
        mean, covariance = compiled(_covariances, xp, static=("explained",))(
            xi,
            from_host(factor, xi),
            posterior.weights,
            self.basis,
            posterior.arrays,
            explained=posterior.explained,
        )
        return to_host(mean), to_host(covariance)


def posterior_moments(
    posterior: Posterior, factor: Array, xi: Array, basis: Array | None = None
) -> tuple[Array, Array]:
    """Mean and variance (Eq. 29, 30) of new examples xi (P_new, n, N_0), (P_new, C) each.

    The posterior belongs to the factor (n·C, n·C); its training examples were rotated into the
    basis (N_0, rank).
    """
    evaluate = compiled(_moments, array_namespace(xi=xi), static=("explained",))
    return evaluate(
        xi, factor, posterior.weights, basis, posterior.arrays, explained=posterior.explained
    )


def path_kernel(xi: Array, xi_dual: Array, path: int, path_dual: int) -> Array:
    """Kernel of a pair of paths, C = ξ^π(x)·ξ^π'(x')/N_0, shape (P, P')."""
    xp, xi, xi_dual = _check_pair(xi, xi_dual)
    transposed = xp.matrix_transpose(xi_dual[:, path_dual, :])
    with np.errstate(all="ignore"):
        kernel = matmul(xi[:, path, :], transposed) / xi.shape[-1]
    return not_overflown("the kernel", kernel, "rescale xi")


def same_path_kernels(xi: Array) -> Array:
    """Kernels of every path with itself, shape (n, P, P)."""
    xp, xi, _ = _check_pair(xi, xi)
    by_path = xp.permute_dims(xi, (1, 0, 2))
    with np.errstate(all="ignore"):
        kernels = matmul(by_path, xp.matrix_transpose(by_path)) / xi.shape[-1]
    return not_overflown("the kernels", kernels, "rescale xi")


def total_kernel(
    xi: Array, order_parameter: Array, xi_dual: Array | None = None, variance: float = 1.0
) -> Array:
    """Total kernel K = (σ²_0/n) Σ U_ππ' C_ππ' of one output (Eq. 10), shape (P, P').

    Parameters
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs.
    order_parameter : array, shape (n, n)
        Order parameter U; with skip connections, the result of
        :func:`pathkernel_core.order_parameter.scaled_order_parameter`.
    xi_dual : array, shape (P', n, N_0), optional
        Second set of attentioned inputs; by default the first.
    variance : float
        Prior variance σ²_0 of the projection.
    """
    xp, xi, xi_dual = _check_pair(xi, xi if xi_dual is None else xi_dual)
    _, paths, width = xi.shape
    matrix = real_floating("order_parameter", to_host(order_parameter), (paths, paths))
    with np.errstate(all="ignore"):
        mixed = matmul(from_host(matrix, xi), xi)
        mixed = xp.reshape(mixed, (xi.shape[0], -1)) * (variance / (paths * width))
        kernel = matmul(mixed, xp.matrix_transpose(xp.reshape(xi_dual, (xi_dual.shape[0], -1))))
    return not_overflown("the kernel", kernel, "rescale xi, U or the variance")


def _check_pair(xi: Array, xi_dual: Array) -> tuple[Any, Array, Array]:
    xp = array_namespace(xi=xi, xi_dual=xi_dual)
    xi = real_floating("xi", xi, ("P", "n", "N_0"))
    return xp, xi, real_floating("xi_dual", xi_dual, ("P'", *xi.shape[1:]))


def _feature_space(statistics: SufficientStatistics, input_width: int) -> FeatureSpace:
    scale = input_width * statistics.gram.shape[0]
    gram, projections = compiled(_divided, array_namespace(gram=statistics.gram))(
        statistics.gram, statistics.projections, scale, math.sqrt(scale)
    )
    return FeatureSpace(gram, projections, statistics.label_square, statistics.n_examples)


def _divided(gram: Array, projections: Array, scale: float, root: float) -> tuple[Array, Array]:
    return gram / scale, projections / root


def _moments(
    xi: Array,
    factor: Array,
    weights: Array,
    basis: Array | None,
    arrays: tuple[Array, ...],
    *,
    explained: Callable[..., Array],
) -> tuple[Array, Array]:
    xp = array_namespace(xi=xi)
    mean = predictor_mean(xi, weights, basis)
    prior, mixed = _prior_variance(xi, factor, basis)
    # rounding may leave -1e-17 where the examples determine the output
    variance = xp.clip(prior - explained(mixed, *arrays), min=0.0)
    return mean, xp.reshape(variance, mean.shape)


def _covariances(
    xi: Array,
    factor: Array,
    weights: Array,
    basis: Array | None,
    arrays: tuple[Array, ...],
    *,
    explained: Callable[..., Array],
) -> tuple[Array, Array]:
    """Mean (P, C) and covariance of the outputs (P, C, C)."""
    xp = array_namespace(xi=xi)
    outputs = weights.shape[0] // xi.shape[1]
    _, mixed = _prior_variance(xi, factor, basis)
    by_output = [mixed[output::outputs, ...] for output in range(outputs)]

    def variance(rows: Array) -> Array:
        return xp.sum(rows**2, axis=(1, 2)) - explained(rows, *arrays)

    # spaces give variances only, which is enough: with s = f_c + f_d and d = f_c − f_d,
    # Cov(f_c, f_d) = [Var s − Var d] / 4
    pairs = {}
    for c, row in enumerate(by_output):
        pairs[c, c] = variance(row)
        for d, column in enumerate(by_output[:c]):
            pairs[c, d] = pairs[d, c] = (variance(row + column) - variance(row - column)) / 4
    covariance = xp.stack([pairs[pair] for pair in sorted(pairs)], axis=1)
    covariance = xp.reshape(covariance, (-1, outputs, outputs))
    return predictor_mean(xi, weights, basis), covariance


def predictor_mean(xi: Array, weights: Array, basis: Array | None) -> Array:
    """Φ(x) · weights, (P, C), as one product."""
    xp = array_namespace(xi=xi)
    examples, paths, width = xi.shape
    if basis is not None:  # the weights are turned back, and not all new examples forth
        weights = matmul(weights, xp.matrix_transpose(basis))
    by_output = xp.permute_dims(xp.reshape(weights, (paths, -1, width)), (0, 2, 1))
    by_output = xp.reshape(by_output, (paths * width, -1)) / math.sqrt(width * paths)
    return matmul(xp.reshape(xi, (examples, paths * width)), by_output)


def _prior_variance(xi: Array, factor: Array, basis: Array | None) -> tuple[Array, Array]:
    """Prior variance of each row, and the mixed features."""
    xp = array_namespace(xi=xi)
    full = per_output(xi, factor.shape[0] // xi.shape[1])
    scaled = factor / math.sqrt(xi.shape[1] * xi.shape[2])
    mixed = matmul(xp.matrix_transpose(scaled), full)
    # before the rotation: new examples have a prior variance outside the training inputs' span, too
    flat = xp.reshape(mixed, (mixed.shape[0], -1))
    return vecdot(flat, flat), mixed if basis is None else _rotated(mixed, basis)


def _span(xi: Array, xp: Any) -> Array | None:
    """Orthonormal basis of the inputs' span, if it saves at least a tenth of the dimensions."""
    values, vectors = compiled(_principal_axes, xp)(xi)
    values, width = to_host(values), xi.shape[2]
    rank = int((values > values[-1] * width * np.finfo(values.dtype).eps).sum())
    if not 0 < rank <= 0.9 * width:  # otherwise not worth that results differ by rounding
        return None
    return xp.astype(vectors[:, width - rank :], xi.dtype)


def _principal_axes(xi: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the second moment Σ ξξᵀ over examples and paths.

    Always in float64, where the squared rounding of single-precision inputs stays below a weak
    signal.
    """
    xp = array_namespace(xi=xi)
    double = xp.astype(xp.reshape(xi, (-1, xi.shape[2])), xp.float64, copy=False)
    moment = matmul(xp.matrix_transpose(double), double)
    # without a basis in case of overflow: the energy then reports it
    finite = xp.all(xp.isfinite(moment))
    values, vectors = xp.linalg.eigh(xp.where(finite, moment, xp.zeros_like(moment)))
    return values, vectors


def _rotated(xi: Array, basis: Array) -> Array:
    xp = array_namespace(xi=xi)
    rows = matmul(xp.reshape(xi, (-1, xi.shape[2])), basis)
    return xp.reshape(rows, (*xi.shape[:2], basis.shape[1]))


def _host_cholesky(name: str, matrix: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(matrix)[0]
        raise NotPositiveDefiniteError(
            f"{name} is not positive definite: its smallest eigenvalue is {smallest:.3g}"
        ) from None
