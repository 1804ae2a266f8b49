"""Comparison of Laplace's approximation with expectation propagation, for two classes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import cast

import numpy as np

from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import to_host
from pathkernel_core.energy.laplace.forms import LaplaceForm
from pathkernel_core.system.errors import ScaleWarning


@dataclass(frozen=True)
class Difference:
    """Differences of a solution from its check.

    Attributes
    ----------
    order_parameter : float
        Largest difference of an entry of U, over the largest entry.
    log_evidence : float
        Log evidence less that of the check, in nats.
    probability : float
        Largest difference of a probability on the training examples.
    """

    order_parameter: float
    log_evidence: float
    probability: float


def difference(solution: Solution) -> Difference:
    """Differences of a solution from :attr:`Solution.check`."""
    check = solution.check
    if check is None:
        raise ValueError('solution has no check; pass check="ep" to minimise_action')
    own, other = (to_host(s.order_parameter) for s in (solution, check))
    return Difference(
        float(np.abs(own - other).max() / np.abs(other).max()),
        solution.log_evidence - check.log_evidence,
        float(np.abs(_probabilities(solution) - _probabilities(check)).max()),
    )


def _probabilities(solution: Solution) -> np.ndarray:
    """Probabilities of the classes of the training examples, (P, classes)."""
    form = cast("LaplaceForm", solution.problem.form_for(solution.network))
    return to_host(form.training_probabilities(solution.posterior[1]))


def warn_of_approximation(solution: Solution) -> None:
    """Warn where a solution differs from its check by more than the error of order 1/N."""
    if solution.check is not None and solution.check.failure:
        message = f"there is no check by expectation propagation: {solution.check.failure}"
        warnings.warn(message, ScaleWarning, stacklevel=3)
        return
    differing, width = difference(solution), solution.network.smallest_width
    if max(differing.order_parameter, differing.probability) <= 1 / width:
        return
    warnings.warn(
        f"Laplace's approximation and expectation propagation differ by "
        f"{100 * differing.order_parameter:.2g} % in U and {differing.probability:.2g} in a "
        f"probability of a training example, one of them more than 1/N = {1 / width:.2g}, and by "
        f"{differing.log_evidence:.2g} nats in the log evidence. Trust solution.check, or lower "
        "the prior variances: the error of Laplace's approximation grows with the scale of the "
        "outputs and does not fall with the width",
        ScaleWarning,
        stacklevel=3,
    )
