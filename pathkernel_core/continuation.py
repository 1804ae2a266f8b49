"""Minimisation from the solution at a neighbouring temperature, or from several starts."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np

from pathkernel_core.errors import NotPositiveDefiniteError, ScaleWarning
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minima import may_have_several
from pathkernel_core.minimise import minimise_action
from pathkernel_core.network import Network
from pathkernel_core.progress import Report, silent
from pathkernel_core.solution import Solution


def minimise_from(
    problem: PathKernels,
    network: Network,
    temperature: float,
    start: Solution | None,
    report: Report = silent,
) -> Solution | None:
    """Lowest minimum of the action that the search finds; None if that fails.

    A neighbour's solution is a start only where the action has no other minimum, so that the result
    depends on the point alone.
    """
    if start is not None and not may_have_several(problem, network, temperature):
        with suppress(NotPositiveDefiniteError, np.linalg.LinAlgError):
            solution = minimise_action(
                problem, network, temperature, start=start, throw=False, report=report
            )
            if solution.status.ok:
                return solution
    with (
        suppress(NotPositiveDefiniteError, np.linalg.LinAlgError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ScaleWarning)  # whoever computes a grid says it once
        return minimise_action(problem, network, temperature, throw=False, report=report)
    return None
