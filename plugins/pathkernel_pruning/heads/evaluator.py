"""Evaluators: networks evaluated on examples without some of their heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class RefittedEvaluator:
    """Evaluator of a network whose remaining heads have refitted gains.

    Attributes
    ----------
    evaluator : Evaluator
        Evaluator of the same network without gains.
    evaluate_refitted : callable
        Takes the name of a set of examples and the heads present, as ``Evaluator.evaluate`` does,
        and returns values with the gains of these heads refitted.
    """

    evaluator: Evaluator
    evaluate_refitted: Callable[[str, np.ndarray], np.ndarray]

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads H_1 … H_L of each layer."""
        return self.evaluator.heads

    @property
    def keeps_layers(self) -> bool:
        """Whether every layer must keep a head."""
        return self.evaluator.keeps_layers

    @property
    def quantities(self) -> Mapping[str, int]:
        """Those of the evaluator without gains."""
        return self.evaluator.quantities

    def evaluate(self, examples: str, present: np.ndarray) -> np.ndarray:
        """Values with refitted gains, (k, Q, P, C); see ``Evaluator.evaluate``."""
        return self.evaluate_refitted(examples, present)
