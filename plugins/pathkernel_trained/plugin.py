"""Registers the results of trained networks, without importing what computes them."""

from __future__ import annotations

from pathkernel_core.contracts.hooks import hookimpl
from pathkernel_core.contracts.result import Result
from pathkernel_trained.results import Comparison, Pruning


@hookimpl
def pathkernel_results() -> list[type[Result]]:
    """Comparison with the theory, and removal of heads."""
    return [Comparison, Pruning]
