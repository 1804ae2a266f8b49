"""Score of every head, from the order parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pathkernel_core.analysis import Analysis, Situation, Variable
from pathkernel_core.order_parameter import head_scores


class HeadScores(Analysis):
    """How much of the order parameter passes through each head; low scores can be pruned first."""

    name: ClassVar[str] = "head-scores"
    summary: ClassVar[str] = "Score of every head, from the order parameter"
    variables: ClassVar[tuple[Variable, ...]] = (
        Variable(
            "head_score",
            ("layer", "head"),
            "head score: weight of the order parameter on paths through the head, largest 1",
        ),
    )

    def coordinates(self, situation: Situation) -> Mapping[str, Sequence[Any]]:
        """Layers and heads are labelled by the store itself."""
        return {}

    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Scores, (layer, head); NaN where a layer has fewer heads than the largest."""
        network = situation.network
        table = np.full((network.n_layers, max(network.heads)), np.nan)
        scores = head_scores(network, situation.solution.order_parameter)
        for layer, values in enumerate(scores):
            table[layer, : len(values)] = values
        return {"head_score": table}
