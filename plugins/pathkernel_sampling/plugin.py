"""Registers the samplers that ship with pathkernel, without importing what they need to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import numpy as np

from pathkernel_core.hooks import Sampler, hookimpl
from pathkernel_core.network import Network
from pathkernel_sampling.command import sample
from pathkernel_sampling.correct_command import correct

if TYPE_CHECKING:
    from pathkernel_sampling.models import Model

_NEEDED = ("jax", "jaxlib", "blackjax", "arviz_base", "arviz_stats")


class MissingExtraError(ImportError):
    """What sampling needs is not installed."""


@dataclass(frozen=True)
class PosteriorSampler:
    """A model of :mod:`pathkernel_sampling.models` by its name, imported when it is built."""

    name: str
    summary: str

    def build(
        self, xi: np.ndarray, labels: np.ndarray, network: Network, temperature: float
    ) -> Model:
        """Model of the posterior; see :func:`pathkernel_sampling.models.build_model`.

        Raises
        ------
        MissingExtraError
            If the extra ``sampling`` is not installed.
        """
        try:
            from pathkernel_sampling.models import build_model
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _NEEDED:
                raise
            raise MissingExtraError(
                f"sampling needs {error.name}, which is not installed: "
                'pip install "pathkernel[sampling]"'
            ) from error
        return build_model(self.name, xi, labels, network, temperature)


@hookimpl
def pathkernel_samplers() -> list[Sampler]:
    """Three samplers of one posterior, fastest first."""
    return [
        PosteriorSampler("order-parameter", "all weights integrated; draws order parameters"),
        PosteriorSampler("collapsed", "projection integrated; draws value and readout weights"),
        PosteriorSampler("weights", "nothing integrated; draws all weights, the reference"),
    ]


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """The commands ``pathkernel sample`` and ``pathkernel correct``."""
    return [sample, correct]
