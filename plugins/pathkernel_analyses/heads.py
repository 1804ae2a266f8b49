"""Score of every head, from the order parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pathkernel_core.contracts.analysis import Analysis, Situation, Variable
from pathkernel_core.paths.order_parameter import head_scores


class HeadScores(Analysis):
    """How much of the order parameter passes through each head; low scores can be pruned first."""

    name: ClassVar[str] = "head-scores"
    summary: ClassVar[str] = "Score of every head, from the order parameter"
    variables: ClassVar[tuple[Variable, ...]] = (
        Variable(
            "head_score",
            ("head",),
            "head score: weight of the order parameter on paths through the head, largest 1",
        ),
    )

    def coordinates(self, situation: Situation) -> Mapping[str, Sequence[Any]]:
        """Heads are labelled by the study itself."""
        return {}

    def compute(self, situation: Situation) -> Mapping[str, Any]:
        """Scores, (ΣH_ℓ,)."""
        scores = head_scores(situation.network, situation.solution.order_parameter)
        return {"head_score": scores}
