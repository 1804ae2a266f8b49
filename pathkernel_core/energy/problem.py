"""Problem of the theory: attentioned inputs, labels and their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal, cast, get_args

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    library_name,
    real_floating,
    to_host,
)
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.branch_spaces import branch_form
from pathkernel_core.energy.costs import (
    Sizes,
    cheapest_form,
    evaluation_seconds,
    limit_form,
    pays_in_single,
)
from pathkernel_core.energy.examples import ExampleSpace
from pathkernel_core.energy.features import FeatureSpace
from pathkernel_core.energy.form import Form, Predictor
from pathkernel_core.energy.kernel_packing import check_own_kernels, check_size, given_kernels
from pathkernel_core.energy.kernel_space import KernelSpace
from pathkernel_core.energy.label_spectrum import LabelSpectrum
from pathkernel_core.energy.laplace.choice import laplace_form
from pathkernel_core.energy.laplace.expectation_propagation import ep_form
from pathkernel_core.energy.laplace.forms import LaplaceForm
from pathkernel_core.energy.laplace.posterior import ClassPosterior
from pathkernel_core.energy.likelihoods import likelihood_of
from pathkernel_core.energy.likelihoods.likelihood import ClassLikelihood, Likelihood
from pathkernel_core.energy.posterior import inputs_span, rotated
from pathkernel_core.energy.statistics import SufficientStatistics, check_given
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_core.system.notebook import table

SpaceName = Literal["auto", "examples", "features", "kernels"]


class Problem:
    """Training examples along every path, the input of the theory.

    Parameters
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs, unscaled, from :func:`attentioned_inputs`.
    labels : array, shape (P,) or (P, C)
        Targets Y; ±1 for two classes, of several a column of ±1 for each.
    space : {"auto", "examples", "features", "kernels"}
        Form of the energy: a factorisation of the size of the examples, P·C, or of the features,
        n·N_0·C; or the former with the kernels of all pairs of paths in memory, faster for few
        paths. All are exact; "auto" takes the fastest by
        :func:`pathkernel_core.energy.costs.cheapest_form`. Classes have the first two.
    likelihood : {"squared", "logistic", "softmax"}
        What labels are. Of "squared" real targets, with a temperature T. Of "logistic" ±1, (P,),
        and of "softmax" classes 0 … C − 1 as integers, (P,), or rows (P, C) of 0 and a 1 where a
        class may be absent: both without a temperature, and with probabilities and an evidence
        for classes by Laplace's approximation (:mod:`pathkernel_core.energy.laplace.mode`). They
        do not raise accuracy over the squared loss. The network has an output for each class.

    Raises
    ------
    ValueError
        If shapes do not match, there are no examples, a value is NaN or infinite, labels are
        not those of the likelihood, integers 0 and 1 for the squared loss, or the kernels of all
        pairs of paths would have more than 2³⁰ elements.
    TooLargeError
        If classes are too many even for the Gaussian process limit: if there are more than 6,000
        features n·N_0·C, and P examples of C classes need more memory than 6,000 rows P·C of a
        finite width do. Those a finite width refuses by itself.
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

    Classes are not centred. Their energy needs all examples, which are in memory, also in feature
    space.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
    >>> pk.Problem(xi, np.sign(xi[:, 0, 0]))
    Problem(20 examples, 4 paths, N_0 = 5, 1 outputs, in the space of examples)

    Three classes:

    >>> classes = xi[:, 0, :3].argmax(axis=1)
    >>> problem = pk.Problem(xi, classes, likelihood="softmax")
    >>> solution = pk.minimise_action(problem, pk.Network((2, 2), widths=50, outputs=3))
    >>> solution.predict(xi[:2]).probabilities.shape
    (2, 3)
    """

    def __init__(
        self,
        xi: Array,
        labels: Array,
        space: SpaceName = "auto",
        likelihood: str = "squared",
    ):
        named = likelihood_of(likelihood)
        array_namespace(xi=xi, labels=labels)
        check_given("xi", xi)
        xi = real_floating("xi", xi, ("P", "n", "N_0"))
        labels = named.targets(labels, "xi", xi, xi.shape[0])
        xp = array_namespace(xi=xi)
        examples, paths, width = xi.shape
        if space not in get_args(SpaceName):
            raise ValueError(
                f'space must be "auto", "examples", "features" or "kernels", not {space!r}'
            )
        # wider inputs than vectors: the N_0 × N_0 eigenproblem would cost more than evaluations do
        with np.errstate(all="ignore"):  # evaluations raise where an overflow matters
            basis = inputs_span(xi, xp) if width <= examples * paths else None
            if basis is not None:
                xi = compile_function(rotated, xp)(xi, basis)
        sizes = Sizes(examples, paths, xi.shape[2], labels.shape[1])
        is_chosen = space == "auto" and named.is_gaussian
        form: Form
        if not named.is_gaussian:
            features = xi / math.sqrt(width * paths)
            form = laplace_form(features, labels, cast("ClassLikelihood", named), space)
            self._set(form, width, paths, examples, labels.shape[1], basis)
            return
        if is_chosen:
            space = cheapest_form(sizes)
        if space == "kernels":
            check_size(paths, examples, labels.shape[1], 'set space="auto"')
        if space == "features":
            form = _feature_space(SufficientStatistics.of(xi, labels), width)
        else:
            kind = ExampleSpace if space == "examples" else KernelSpace
            form = kind(xi / math.sqrt(width * paths), labels)
        self._set(form, width, paths, examples, labels.shape[1], basis)
        self._is_chosen = is_chosen

    @classmethod
    def from_statistics(cls, statistics: SufficientStatistics) -> Problem:
        """Problem in feature space from statistics that were summed batch by batch."""
        paths, width, outputs = statistics.projections.shape
        form = _feature_space(statistics, width)
        return cls.__new__(cls)._set(form, width, paths, statistics.n_examples, outputs, None)

    @classmethod
    def from_kernels(
        cls,
        kernels: Array,
        labels: Array,
        branches: bool = False,
        likelihood: str = "squared",
    ) -> Problem:
        """Problem of any positive semidefinite kernels along the paths, in place of inputs.

        Parameters
        ----------
        kernels : array, shape (n, n, P, P) or (n(n + 1)/2, P, P); of branches (n, P, P)
            C_ππ'(x, x') of path π of example x and path π' of example x', without the factors of
            Eq. 10: ξ_π(x)·ξ_π'(x')/N_0 for attentioned inputs. Or the pairs π ≤ π' alone, the first
            path slowest: (1, 1), (1, 2), … (1, n), (2, 2), … Of branches C_ll(x, x') of every
            branch alone.
        labels : array, shape (P,) or (P, C)
            As for :class:`Problem`; of branches (P,).
        branches : bool
            Whether the kernels are those of independent branches, which need none of different
            paths. They serve networks with ``shared=False`` only, at thousands of branches.
        likelihood : {"squared", "logistic", "softmax"}
            As for :class:`Problem`; branches have one output.

        Raises
        ------
        ValueError
            If shapes do not match, kernels are not symmetric to rounding, a value is NaN or
            infinite, labels of branches have several outputs, or kernels would have more than 2³⁰
            elements when packed: n(n + 1)/2·P(P + 1)/2 for one output, n²·P² for several, and
            n·P(P + 1)/2 for branches.
        NotPositiveDefiniteError
            If an eigenvalue is negative beyond rounding. All are computed up to n·P = 1000; beyond,
            those of eight random mixtures of paths and of two with a vector for every example, or
            of branches diagonals and eight random quadratic forms, which may pass kernels that are
            not positive.
        TypeError, PrecisionError
            As for :class:`Problem`.

        Notes
        -----
        All of the theory works as for inputs. New examples are given by their kernels,
        ``solution.predict(cross, own)``. Kernels of tokens come from :func:`path_kernels`.

        Examples
        --------
        >>> import numpy as np
        >>> import pathkernel as pk
        >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
        >>> labels = np.sign(xi[:, 0, 0])
        >>> kernels = np.einsum("api,bqi->pqab", xi, xi) / 5
        >>> problem = pk.Problem.from_kernels(kernels, labels)
        >>> problem
        Problem(20 examples, 4 paths, 1 outputs, of given kernels)
        >>> solution = pk.minimise_action(problem, pk.Network((2, 2), 50), 0.1)
        >>> own = np.einsum("pqaa->pqa", kernels)
        >>> solution.predict(kernels[:, :, :3], own[:, :, :3]).mean.shape
        (3,)

        Independent branches:

        >>> kernels = pk.same_path_kernels(xi)
        >>> problem = pk.Problem.from_kernels(kernels, labels, branches=True)
        >>> solution = pk.minimise_action(problem, pk.Network((4,), 10, shared=False), 0.1)
        >>> solution.predict(kernels[:, :3], np.einsum("laa->la", kernels)[:, :3]).mean.shape
        (3,)
        """
        form = given_kernels(kernels, labels, branches, likelihood_of(likelihood))
        examples, outputs = form.labels.shape
        return cls.__new__(cls)._set(form, 0, form.n_paths, examples, outputs, None)

    def _set(
        self,
        form: Form,
        input_width: int,
        n_paths: int,
        n_examples: int,
        outputs: int,
        basis: Array | None,
    ) -> Problem:
        self.form, self.n_paths = form, n_paths
        self.input_width = input_width
        """Width N_0 of the inputs, 0 if kernels were given."""
        self.n_examples, self.outputs = n_examples, outputs
        self.basis = basis
        """Orthonormal basis (N_0, rank) of the inputs' span, or None without rotation."""
        self._label_spectra: dict[tuple[float, ...], LabelSpectrum] = {}
        self._is_chosen = False  # the form, by its cost
        return self

    def __repr__(self) -> str:
        sizes = f"{self.n_examples} examples, {self.n_paths} paths"
        name = "" if self.likelihood.is_gaussian else f", {self.likelihood.name} likelihood"
        if self.is_of_kernels:
            of = "given kernels" if self.has_pairs else "given kernels of branches"
            return f"Problem({sizes}, {self.outputs} outputs, of {of}{name})"
        return (
            f"Problem({sizes}, N_0 = {self.input_width}, {self.outputs} outputs, in the space "
            f"of {self.space}{name})"
        )

    def _repr_html_(self) -> str:
        xp = array_namespace(array=self.array)
        kind = "pairs of paths" if self.has_pairs else "single branches"
        inputs = f"width {self.input_width}, in a span of {self.n_features} dimensions"
        rows = {
            "training examples": self.n_examples,
            "attention paths": self.n_paths,
            "inputs": f"kernels of {kind}" if self.is_of_kernels else inputs,
            "outputs": self.outputs,
            "likelihood": self.likelihood.name,
            "energy": f"in the space of {self.space}",
            "arrays": f"{library_name(xp)}, {self.array.dtype}",
        }
        return table("Problem", rows)

    @property
    def space(self) -> str:
        """Form of the energy in use: "examples", "features" or "kernels"."""
        return self.form.name

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the labels: what they are, and whether there is a temperature."""
        return self.form.likelihood

    def require_squared(self, subject: str, remedy: str) -> None:
        """Raise a ValueError if the likelihood is not that of the squared loss.

        Parameters
        ----------
        subject : str
            What needs the squared loss, the subject of a sentence in the singular.
        remedy : str
            What to do instead.
        """
        if not self.likelihood.is_gaussian:
            raise ValueError(
                f"{subject} needs the squared loss, but the problem has the "
                f"{self.likelihood.name} likelihood; {remedy}"
            )

    def by_ep(self) -> Problem:
        """Problem with expectation propagation in place of Laplace's approximation.

        Its minimum checks that of this problem; ``minimise_action(..., check="ep")`` compares them.

        Raises
        ------
        ValueError
            If the loss is squared, there are more than two classes, or too many examples.
        """
        if self.likelihood.is_gaussian:
            raise ValueError("the squared loss needs no check by EP: its energy is exact")
        form = ep_form(cast("LaplaceForm", self.form))
        sizes = self.input_width, self.n_paths, self.n_examples, self.outputs
        return Problem.__new__(Problem)._set(form, *sizes, self.basis)

    @property
    def is_of_kernels(self) -> bool:
        """Whether kernels were given in place of attentioned inputs."""
        return self.form.is_of_kernels

    @property
    def has_pairs(self) -> bool:
        """Whether there are kernels of different paths; if not, branches must be independent."""
        return self.form.has_pairs

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
    def mean_branch_kernels(self) -> Array:
        """Mean kernel of every path with itself, C̄_ππ, (n,): the diagonal of ``mean_kernels``."""
        return self.branch_form.summed_kernels * (self.n_paths / self.n_examples)

    @cached_property
    def branch_form(self) -> Form:
        """Form of the energy of independent branches, made when first needed."""
        return branch_form(self.form)

    def form_for(self, network: Network) -> Form:
        """Form of the energy for a network, by whether its branches share their weights."""
        return self.form if network.shared else self.branch_form

    def for_points(self, points: int) -> Problem:
        """Problem in the fastest form for evaluations of so many points together.

        Itself where ``space`` was given, or where no other form is faster.
        """
        sizes = Sizes(self.n_examples, self.n_paths, self.n_features, self.outputs)
        if not (self._is_chosen and self.form.holds_examples):
            return self  # feature space keeps no examples
        if self.space == "kernels" or cheapest_form(sizes, points) != "kernels":
            return self
        in_examples = cast("ExampleSpace", self.form)
        form = KernelSpace(in_examples.features, in_examples.labels)
        sizes_given = self.input_width, self.n_paths, self.n_examples, self.outputs
        problem = Problem.__new__(Problem)._set(form, *sizes_given, self.basis)
        problem._label_spectra = self._label_spectra
        return problem

    def pays_together(self, points: int) -> bool:
        """Whether evaluations of so many points are faster together than one after another."""
        return self.form.pays_together(points)

    @property
    def n_features(self) -> int:
        """Number of features per path after rotation, at most N_0."""
        return self.input_width if self.basis is None else self.basis.shape[1]

    @property
    def evaluation_seconds(self) -> float:
        """Rough seconds of one evaluation of energy and gradient on one core."""
        return evaluation_seconds(self.space, self._sizes(shared=True))

    def seconds_for(self, network: Network) -> float:
        """Rough seconds of one evaluation for a network on one core."""
        form, sizes = self.form_for(network).name, self.sizes_for(network)
        if not network.finite_widths:
            form = limit_form(sizes, form)
        return evaluation_seconds(form, sizes)

    def check_size(self, network: Network) -> None:
        """Raise a TooLargeError if minimisations do not fit into memory, as its limit may."""
        if network.finite_widths:
            self.form_for(network).check_size()

    def pays_in_single(self, network: Network) -> bool:
        """Whether descents of a network are faster if they begin in float32."""
        return pays_in_single(self.form_for(network).name, self.sizes_for(network))

    def sizes_for(self, network: Network) -> Sizes:
        """Sizes by which the cost of a minimisation for a network is estimated."""
        return self._sizes(network.shared)

    def _sizes(self, shared: bool) -> Sizes:
        classes = not self.likelihood.is_gaussian
        outputs = self.outputs if shared else 1  # independent branches have one
        return Sizes(self.n_examples, self.n_paths, self.n_features, outputs, shared, classes)

    def energy_and_gradient(
        self, order_parameter: Array, temperature: float | None = None, variance: float = 1.0
    ) -> tuple[float, np.ndarray]:
        """Energy (Eq. 12) and its gradient M − R with respect to U.

        Of classes, of their energy by Laplace's approximation, with the motion of the mode.

        Parameters
        ----------
        order_parameter : array, shape (n·C, n·C) or (n,)
            Symmetric positive definite U; or the diagonal u of independent branches, whose gradient
            is (n,), too.
        temperature : float, optional
            Positive temperature T of the squared loss; classes have none.
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
        temperature = self.likelihood.temperature(temperature)
        if matrix.ndim == 1:
            return self._branch_energy(matrix, temperature, variance)
        if not self.has_pairs:
            raise ValueError(
                f"order_parameter must have shape ({self.n_paths},), since the problem has kernels "
                f"of single branches only, but has {matrix.shape}"
            )
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
        with np.errstate(all="ignore"):  # a factorisation raises where an overflow matters
            energy, gradient = self.form.energy_and_gradient(factor, temperature)
        return energy, variance * gradient

    def _branch_energy(
        self, u: np.ndarray, temperature: float, variance: float
    ) -> tuple[float, np.ndarray]:
        if u.shape != (self.n_paths,) or self.outputs > 1:
            raise ValueError(
                f"order_parameter of {self.n_paths} independent branches must have shape "
                f"({self.n_paths},), for one output, but has {u.shape} for {self.outputs}"
            )
        if not (u > 0).all():
            raise NotPositiveDefiniteError(
                f"order_parameter is not positive: its smallest value is {u.min():.3g}"
            )
        scaled = np.sqrt(positive("variance", variance) * u)
        with np.errstate(all="ignore"):
            energy, gradient = self.branch_form.energy_and_gradient(scaled, temperature)
        return energy, variance * gradient

    def label_spectrum(self, network: Network) -> LabelSpectrum:
        """Labels along the eigenvectors of the limit's kernel at the network's variances.

        Cached for networks whose limits are proportional.
        """
        ratios, largest, key = _limit_scales(network)
        with np.errstate(all="ignore"):
            if key not in self._label_spectra:
                self._label_spectra[key] = self.form_for(network).label_spectrum(ratios)
            return self._label_spectra[key].scaled(largest**2)

    def keep_paths(self, paths: Sequence[int] | np.ndarray) -> Problem:
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
        return Problem.__new__(Problem)._set(form, self.input_width, *sizes, self.basis)

    def check_new(
        self, xi: Array, own: Array | None, needs_own: bool = True, shared: bool = True
    ) -> None:
        """Raise an error if arrays are not those of new examples of this problem.

        Attentioned inputs (P_new, n, N_0), or kernels (n, n, P_new, P) with training examples and
        (n, n, P_new) of each new example with itself. For independent branches, ``shared=False``,
        those of every path with itself, (n, P_new, P) and (n, P_new).
        """
        paths, actual = self.n_paths, tuple(getattr(xi, "shape", ()))
        if not self.is_of_kernels:
            if own is not None:
                raise ValueError(
                    "own is for problems of given kernels; this one takes attentioned inputs "
                    f"(P_new, {paths}, {self.input_width}) alone"
                )
            array_namespace(xi=xi, training=self.array)
            if actual == (0, paths, self.input_width):
                raise ValueError(f"xi of shape {actual} has no examples; give at least one")
            if len(actual) != 3 or not actual[0] or actual[1:] != (paths, self.input_width):
                raise ValueError(
                    f"xi must have shape (P_new, {paths}, {self.input_width}), but has {actual}; "
                    "pass tokens through attentioned_inputs first, with the layers and the readout "
                    "of the training examples"
                )
            return
        array_namespace(cross=xi, training=self.array)
        of_paths = (paths, paths) if shared else (paths,)
        if actual == (*of_paths, 0, self.n_examples):
            raise ValueError(f"cross of shape {actual} has no new examples; give at least one")
        if (
            actual[: len(of_paths)] != of_paths
            or len(actual) != len(of_paths) + 2
            or not actual[-2]
            or actual[-1] != self.n_examples
        ):
            expected = ", ".join(map(str, (*of_paths, "P_new", self.n_examples)))
            raise ValueError(
                "a problem of given kernels takes cross, the kernels of new and training examples, "
                f"of shape ({expected}), but has {actual}"
            )
        if not needs_own:
            return
        of_own = tuple(getattr(own, "shape", ()))
        shape = "is missing" if own is None else f"has {of_own}"
        if own is None or of_own != actual[:-1]:
            raise ValueError(
                "own must have the kernels of every new example with itself, of shape "
                f"{actual[:-1]}, but {shape}; for the mean alone call predict_mean(cross)"
            )
        array_namespace(cross=xi, own=own)

    def posterior_moments(
        self,
        posterior: Predictor,
        factor: np.ndarray,
        xi: Array,
        own: Array | None = None,
    ) -> tuple[Array, ...]:
        """Predictor mean and variance (Eq. 29, 30) of new examples, (P_new, C) each.

        Of classes also their probabilities and the numerical errors of them, (P_new, classes). By
        their attentioned inputs, or their kernels ``xi`` (n, n, P_new, P) with the training
        examples and ``own`` (n, n, P_new) with themselves.

        Raises
        ------
        NotPositiveDefiniteError
            If kernels cannot be those of the same examples: own has a negative eigenvalue, or a
            variance is negative beyond rounding.
        """
        shared = factor.ndim == 2
        self.check_new(xi, own, shared=shared)
        if self.is_of_kernels:
            xi, own = real_floating("cross", xi), real_floating("own", own)
            check_own_kernels(own, shared)
        else:
            xi = real_floating("xi", xi, ("P_new", self.n_paths, self.input_width))
        arguments = xi, own, from_host(factor, xi), self.basis
        if self.likelihood.is_gaussian:
            return posterior.moments(*arguments)
        return cast("ClassPosterior", posterior).probabilities(*arguments)


@lru_cache(maxsize=64)
def _limit_scales(network: Network) -> tuple[np.ndarray, float, tuple[float, ...]]:
    """Scales (n,) of the paths in the limit, over the largest; that; and a key of the former."""
    # the limit's kernel is a sum over paths, weighted by the squares of these coefficients: a
    # common factor, such as another σ²_0, only scales the eigenvalues
    scales = network.path_scales * np.sqrt(network.kernel_variance * network.limit_diagonal)
    largest = float(scales.max())
    ratios = scales[:: network.outputs] / largest
    return ratios, largest, tuple(ratios.round(12).tolist())


def _feature_space(statistics: SufficientStatistics, input_width: int) -> FeatureSpace:
    scale = input_width * statistics.gram.shape[0]
    gram, projections = compile_function(_divided, array_namespace(gram=statistics.gram))(
        statistics.gram, statistics.projections, scale, math.sqrt(scale)
    )
    return FeatureSpace(gram, projections, statistics.label_square, statistics.n_examples)


def _divided(gram: Array, projections: Array, scale: float, root: float) -> tuple[Array, Array]:
    return gram / scale, projections / root


def _host_cholesky(name: str, matrix: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(matrix)[0]
        raise NotPositiveDefiniteError(
            f"{name} is not positive definite: its smallest eigenvalue is {smallest:.3g}"
        ) from None
