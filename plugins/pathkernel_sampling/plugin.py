"""Register the bundled samplers and their results, without importing JAX."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathkernel_core.contracts.hooks import hookimpl
from pathkernel_core.contracts.result import Result
from pathkernel_core.contracts.sampler import Model, Sampler
from pathkernel_core.paths.network import Network
from pathkernel_sampling.results import LearnedAttention, NextOrder, Samples, needs_sampling


@dataclass(frozen=True)
class PosteriorSampler:
    """Sampler of a model of :mod:`pathkernel_sampling.models.models`, imported when it is built."""

    name: str
    summary: str

    def build(
        self, xi: np.ndarray, labels: np.ndarray, network: Network, temperature: float
    ) -> Model:
        """Build the model, see :func:`pathkernel_sampling.models.models.build_model`.

        Raises
        ------
        MissingExtraError
            If the extra ``sampling`` is not installed.
        """
        models = needs_sampling("pathkernel_sampling.models.models")
        return models.build_model(self.name, xi, labels, network, temperature)


@hookimpl
def pathkernel_samplers() -> list[Sampler]:
    """Return three samplers of one posterior, fastest first."""
    return [
        PosteriorSampler("order-parameter", "Draw order parameters, all weights integrated"),
        PosteriorSampler("collapsed", "Draw value and readout weights, the projection integrated"),
        PosteriorSampler("weights", "Draw all weights, as a reference"),
    ]


@hookimpl
def pathkernel_results() -> list[type[Result]]:
    """Return draws from the posterior, the next order in 1/N, and learned attention."""
    return [Samples, NextOrder, LearnedAttention]
