"""What a sampler of the posterior is, and the model that it builds."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pathkernel_core.backend import Array
from pathkernel_core.network import Network


class Model(Protocol):
    """Posterior density over a flat vector of parameters, and what is read off a draw.

    Compiled and differentiated by JAX, whose arrays go in and come out; its class must be
    registered as a pytree.

    Attributes
    ----------
    name : str
    dimension : int
        Number of parameters.
    """

    @property
    def name(self) -> str:
        """Of the sampler."""

    @property
    def dimension(self) -> int:
        """Number of parameters."""

    def initial(self, key: Array) -> Array:
        """Draw (dimension,) from the prior, which is over-dispersed for the posterior."""

    def log_prior(self, x: Array) -> Array:
        """Normalised log density of the prior at x (dimension,)."""

    def log_density(self, x: Array) -> Array:
        """Log of prior times likelihood at x (dimension,), both with their normalising factors.

        Its integral over x is the evidence, which is estimated from it.
        """

    def order_parameter(self, x: Array) -> Array:
        """Order parameter U (n·C, n·C) of a draw."""

    def predict(self, x: Array, test: Array) -> tuple[Array, Array]:
        """Mean and variance (P_test, C) of f given the draw, at new inputs (P_test, n, N_0).

        The variance within a draw; that of the means between draws adds to it.
        """


class Sampler(Protocol):
    """Sampler of the posterior, as the ``pathkernel_samplers`` hook returns it.

    Attributes
    ----------
    name : str
        By which it is chosen.
    summary : str
        What it integrates and what it draws, in one line.
    """

    @property
    def name(self) -> str:
        """By which it is chosen."""

    @property
    def summary(self) -> str:
        """What it integrates and what it draws, in one line."""

    def build(
        self, xi: np.ndarray, labels: np.ndarray, network: Network, temperature: float
    ) -> Model:
        """Model of the posterior: a density over a vector, and what is read off a draw.

        Parameters
        ----------
        xi : array, shape (P, n, N_0)
            Attentioned inputs, unscaled.
        labels : array, shape (P,) or (P, C)
        network : Network
        temperature : float
        """
