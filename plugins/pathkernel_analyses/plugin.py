"""Registers the analyses that ship with pathkernel."""

from __future__ import annotations

from pathkernel_analyses.alignment import KernelTaskAlignment
from pathkernel_analyses.heads import HeadScores
from pathkernel_analyses.path_kernels import SamePathKernels, TotalKernels
from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.hooks import hookimpl


@hookimpl
def pathkernel_analyses() -> list[Analysis]:
    """Analyses of the paper's figures."""
    return [HeadScores(), KernelTaskAlignment(), SamePathKernels(), TotalKernels()]
