"""Registers maps and learning curves as results of a study."""

from __future__ import annotations

from pathkernel_core.contracts.hooks import hookimpl
from pathkernel_core.contracts.result import Result
from pathkernel_phases.results import LearningCurves, Phases


@hookimpl
def pathkernel_results() -> list[type[Result]]:
    """Maps of phases, and learning curves."""
    return [Phases, LearningCurves]
