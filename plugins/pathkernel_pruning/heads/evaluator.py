"""Evaluators: networks evaluated on examples without some of their heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Evaluator(Protocol):
    """A network on sets of examples, with any of its heads removed."""

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads H_1 … H_L of each layer."""

    @property
    def keeps_layers(self) -> bool:
        """Whether every layer must keep a head."""

    @property
    def quantities(self) -> Mapping[str, int]:
        """Name of each quantity → 1 if larger is better, −1 if smaller; the first scores heads."""

    def evaluate(self, examples: str, present: np.ndarray) -> np.ndarray:
        """Q quantities of all P examples of a set, with the heads ``present``, bool (k, ΣH_ℓ).

        Heads are in the order of :func:`pathkernel_core.paths.heads.every_head`. Values have shape
        (k, Q, P, C), where C draws or outputs are evaluated at once.
        """
