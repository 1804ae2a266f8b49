"""Choice of the prior variance of the outputs by the log evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.action.minimise import gp_limit
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network
from pathkernel_core.system.errors import NotPositiveDefiniteError
from pathkernel_core.system.progress import Progress, Report, silent

VARIANCES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True, eq=False)
class VarianceChoice:
    """Prior variance of the largest log evidence, and the curve of all that were tried.

    Attributes
    ----------
    variance : float
        σ²_0, of the projection.
    solution : Solution
        Minimum of the action there, of the network with this variance.
    variances, log_evidence, log_evidence_gp : arrays, shape (k,)
        The curve: variances in increasing order, log evidence in nats of the network, and of its
        Gaussian process limit. NaN where a minimisation failed.
    is_edge : bool
        Whether the smallest or the largest variance was chosen: a wider grid may be better.
    """

    variance: float
    solution: Solution
    variances: np.ndarray = field(repr=False)
    log_evidence: np.ndarray = field(repr=False)
    log_evidence_gp: np.ndarray = field(repr=False)
    is_edge: bool


def choose_variance(
    problem: Problem,
    network: Network,
    temperature: float | None = None,
    *,
    variances: Sequence[float] = VARIANCES,
    report: Report = silent,
) -> VarianceChoice:
    """Choose the prior variance σ²_0 by the log evidence of the training labels.

    For classes it is the scale of the outputs, as the temperature is for the squared loss.

    Parameters
    ----------
    problem : Problem
    network : Network
        Its other variances stay. At widths below the sizes of U, where the evidence is undefined,
        that of the Gaussian process limit decides.
    temperature : float, optional
        Of the squared loss alone.
    variances : sequence of float
        Positive values to try, each once.
    report : callable
        Called with a Progress before every minimisation.

    Raises
    ------
    ValueError
        If no variance is given, or all minimisations failed; and as for :func:`minimise_action`.
    TooLargeError
        If minimisations do not fit into memory.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> xi = np.random.default_rng(0).normal(size=(30, 2, 5))
    >>> problem = pk.Problem(xi, xi[:, 0, :3].argmax(axis=1), likelihood="softmax")
    >>> choice = pk.choose_variance(problem, pk.Network((2,), 20, outputs=3))
    >>> choice.variance, choice.is_edge
    (30.0, False)
    """
    grid = sorted({positive("each of variances", variance) for variance in variances})
    if not grid:
        raise ValueError("variances is empty; give at least one")
    problem.check_size(network)  # before the limits, which may be smaller
    solutions: list[Solution | None] = []
    limits: list[float] = []
    for number, variance in enumerate(grid):
        report(Progress(number, len(grid), f"variance {variance:g}"))
        scaled = replace(network, variances=(variance, *network.variances[1:]))
        start = solutions[-1] if solutions else None
        limits.append(_limit_evidence(problem, scaled, temperature))
        solution = minimise_from(problem, scaled, temperature, start)
        solutions.append(solution if solution is not None and solution.status.ok else None)
    report(Progress(len(grid), len(grid), "complete"))
    evidence = np.array([np.nan if s is None else s.log_evidence for s in solutions])
    limit = np.array(limits)
    undefined = np.isnan(evidence).all()
    decisive = np.where([s is None for s in solutions], np.nan, limit if undefined else evidence)
    if np.isnan(decisive).all():
        raise ValueError(
            "no minimisation converged at the variances "
            f"{', '.join(f'{variance:g}' for variance in grid)}; try others, or rescale the inputs"
        )
    best = int(np.nanargmax(decisive))
    solution = solutions[best]
    assert solution is not None  # its evidence is no NaN
    return VarianceChoice(
        variance=grid[best],
        solution=solution,
        variances=np.array(grid),
        log_evidence=evidence,
        log_evidence_gp=limit,
        is_edge=len(grid) > 1 and best in (0, len(grid) - 1),
    )


def _limit_evidence(problem: Problem, network: Network, temperature: float | None) -> float:
    try:
        return gp_limit(problem, network, temperature).log_evidence
    except (NotPositiveDefiniteError, np.linalg.LinAlgError):
        return float("nan")
