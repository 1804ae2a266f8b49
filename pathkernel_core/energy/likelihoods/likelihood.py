"""Interface of a likelihood: what labels are, and what an output of the network tells of them.

The squared loss is a Gaussian likelihood, whose energy (Eq. 12) has closed forms. Any other is a
file with a subclass of :class:`ClassLikelihood` and a line of the table in
:mod:`pathkernel_core.energy.likelihoods`; :mod:`pathkernel_core.energy.laplace` does the rest, by
Laplace's approximation at the mode of the outputs f.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from pathkernel_core.arrays.backend import Array


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Probabilities of classes, averaged over the Gaussian of the outputs.

    Attributes
    ----------
    values : array, shape (P_new, classes)
        They sum to 1 for every example.
    error : array, shape (P_new, classes)
        Numerical error of the averages: a bound for a quadrature, one standard error for draws.
    """

    values: Array = field(repr=False)
    error: Array = field(repr=False)


class Likelihood(ABC):
    """Likelihood of labels, given the outputs f of the network.

    Attributes
    ----------
    name : str
        Name by which :class:`pathkernel_core.Problem` takes it.
    is_gaussian : bool
        Whether the energy has a closed form; if not, it is a :class:`ClassLikelihood`.
    constant : float
        Part of −2 ln p(Y) for each label that the energy leaves out.
    """

    name: str
    is_gaussian = False
    constant = 0.0

    @abstractmethod
    def temperature(self, temperature: float | None) -> float:
        """Check the temperature that a user gives.

        Returns
        -------
        float
            Positive; NaN if the likelihood has no temperature, whose scale is the prior variance.

        Raises
        ------
        ValueError
            If it is missing, not positive, or has no meaning for the likelihood.
        """

    @abstractmethod
    def targets(self, labels: Array, name: str, array: Array, examples: int) -> Array:
        """Check labels of the examples of an array of this name.

        Returns
        -------
        array, shape (P, C)
            Of the dtype of the array: what the other methods take.

        Raises
        ------
        ValueError
            If the shape does not fit, or the labels are not those of the likelihood.
        """

    @abstractmethod
    def search_temperature(self, temperature: float, outputs: int) -> float:
        """Temperature of the squared loss that resembles the likelihood at outputs of 0.

        With :meth:`search_labels` it decides whether a search for other minima is worth its time.
        """

    @abstractmethod
    def search_labels(self, targets: Array) -> Array:
        """Labels (P, C) of the squared loss that resembles the likelihood at outputs of 0."""


class ClassLikelihood(Likelihood):
    """Log-concave likelihood of classes, one label for each example.

    Methods take arrays of any library, and can be compiled by ``jax.jit``; instances are hashable.
    Outputs of any finite size must not overflow. W = −∂² ln p/∂f² of an example is (C, C).

    Attributes
    ----------
    is_multinomial : bool
        Whether W = diag p − p pᵀ with the :meth:`class_probabilities` p: classes that have a kernel
        in common are then factorised one by one.
    """

    is_multinomial = False

    def temperature(self, temperature: float | None) -> float:
        """Refuse a temperature, but for the NaN of a solution."""
        if temperature is None or (isinstance(temperature, float) and math.isnan(temperature)):
            return math.nan
        raise ValueError(
            f"temperature must be left out: the {self.name} likelihood has none. The prior "
            "variance of the outputs is its scale, variances in Network"
        )

    @abstractmethod
    def log_density(self, outputs: Array, targets: Array) -> Array:
        """Sum over examples of ln p(y|f), (), for outputs and targets (P, C)."""

    @abstractmethod
    def derivatives(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        """Gradient ∂ ln p/∂f (P, C), and R (P, C, C) of W = RRᵀ; R need not be triangular.

        Both to full relative precision where a probability is close to 0 or 1.
        """

    @abstractmethod
    def curvature_slope(self, outputs: Array, targets: Array, covariances: Array) -> Array:
        """Slope s_i = tr[Σ ∂W/∂f_i], (P, C), for symmetric Σ (P, C, C) of every example."""

    def class_probabilities(self, outputs: Array) -> Array:
        """Probabilities p (P, C) given the outputs, of a multinomial likelihood."""
        raise NotImplementedError(f"the {self.name} likelihood is not multinomial")

    def as_signs(self, targets: Array) -> tuple[Array, np.ndarray]:
        """Two classes by the sign of one number, for expectation propagation.

        Returns
        -------
        tuple of an array (P,) and a NumPy array (C,)
            Signs y, and the contrast c of the outputs with p(y|f) = 1/(1 + exp(−y c·f)).

        Raises
        ------
        ValueError
            If there are more than two classes.
        """
        raise ValueError(
            f"expectation propagation is for two classes, but the {self.name} likelihood has "
            f"{targets.shape[1]}; compare with samples instead"
        )

    @abstractmethod
    def probabilities(self, mean: Array, covariances: Array) -> Probabilities:
        """Average of p(class|f) over Gaussian f of mean (P, C) and covariances (P, C, C)."""
