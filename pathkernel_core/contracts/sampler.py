"""Protocols of samplers of the posterior and of their models."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pathkernel_core.arrays.backend import Array
from pathkernel_core.paths.network import Network


class Model(Protocol):
    """Posterior density over a flat vector of parameters x, shape (dimension,).

    JAX compiles and differentiates its methods, so that its class must be a registered pytree.
    """

    @property
    def name(self) -> str:
        """Name of the sampler."""

    @property
    def dimension(self) -> int:
        """Number of parameters."""

    def initial(self, key: Array) -> Array:
        """Draw x from the prior, which is over-dispersed for the posterior."""

    def log_prior(self, x: Array) -> Array:
        """Normalised log density of the prior."""

    def log_density(self, x: Array) -> Array:
        """Log of prior times likelihood, both normalised, so that its integral is the evidence."""

    def order_parameter(self, x: Array) -> Array:
        """Order parameter U (n·C, n·C) of a draw."""

    def predict(self, x: Array, test: Array) -> tuple[Array, Array]:
        """Mean and variance (P_test, C) of f given the draw, at new inputs (P_test, n, N_0).

        A model of given kernels takes those of new examples, a pair of arrays as for
        :meth:`pathkernel_core.action.solution.Solution.predict`.
        The total variance adds that of the means between draws.
        """


class Sampler(Protocol):
    """Sampler of the posterior, as the ``pathkernel_samplers`` hook returns it."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def summary(self) -> str:
        """One line on the variables that it integrates out and those that it draws."""

    def build(
        self, xi: np.ndarray, labels: np.ndarray, network: Network, temperature: float
    ) -> Model:
        """Build the model of the posterior.

        Attentioned inputs xi (P, n, N_0) are unscaled; labels have shape (P,) or (P, C). Kernels
        (n, n, P, P) of pairs of paths may replace inputs. A sampler of weights, which have no
        meaning then, raises a ValueError.
        """
