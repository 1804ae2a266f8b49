"""Leave-one-out prediction of the training examples.

At a fixed order parameter the predictor is Gaussian, and leave-one-out needs no further
factorisation. With A = K + T1 and α = A⁻¹Y, and [A⁻¹]_μμ the block of the example's outputs,

    f₋μ = y_μ − [A⁻¹]_μμ⁻¹ α_μ,        Cov₋μ = [A⁻¹]_μμ⁻¹  (with the observation noise)

In feature space both follow from the ordinary prediction f_μ, V_μ, since α_μ = (y_μ − f_μ)/T and
[A⁻¹]_μμ = (T1 − V_μ)/T². The order parameter depends on all labels, so that the errors are
optimistic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    real_floating,
    to_host,
)
from pathkernel_core.energy.form import ExamplesForm
from pathkernel_core.energy.problem import Problem


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Predictions of every training example from the others, at a fixed order parameter.

    Attributes
    ----------
    mean : array, shape (P,) or (P, C)
        Predictor's mean.
    squared_error : float
        Mean over examples and outputs of (y − mean)².
    log_density : float
        Mean over examples of ln p(y_μ | all others), with the observation noise, in nats.
    """

    mean: np.ndarray = field(repr=False)
    squared_error: float
    log_density: float


def leave_one_out(
    solution: Solution, xi: Array | None = None, labels: Array | None = None
) -> LeaveOneOut:
    """Predict each training example from all others in closed form.

    Parameters
    ----------
    solution : Solution
    xi : array, shape (P, n, N_0), optional
        Attentioned inputs of the training examples. Feature space needs them, but some of them are
        enough.
    labels : array, shape (P,) or (P, C), optional
        Their labels, to be compared with those of the problem.

    Raises
    ------
    ValueError
        If these are not the examples of the solution by number, shape and labels; in feature space
        only the sum of squared labels is compared. If xi is passed for a problem of given kernels.

    Notes
    -----
    Pass the labels of the problem, centred if those were. U has seen the label that is left out: if
    the errors look too good (narrow networks at low temperature), trust validation examples more.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> xi = np.random.default_rng(0).normal(size=(20, 4, 5))
    >>> labels = np.sign(xi[:, 0, 0])
    >>> solution = pk.minimise_action(pk.Problem(xi, labels), pk.Network((2, 2), 50), 0.1)
    >>> pk.leave_one_out(solution, xi, labels).mean.shape
    (20,)
    """
    problem, outputs = solution.problem, solution.network.outputs
    problem.require_squared(
        "leave-one-out in closed form", "compare probabilities on validation examples"
    )
    form, examples = problem.form, problem.n_examples
    if xi is not None:
        if problem.is_of_kernels:
            raise ValueError("xi is not part of a problem of given kernels; leave it out")
        array_namespace(xi=xi)
        if not form.holds_examples:
            examples = min(examples, xi.shape[0])
        xi = real_floating("xi", xi, (examples, problem.n_paths, problem.input_width))
    if not form.holds_examples:
        if xi is None or labels is None:
            raise ValueError(
                "xi and labels of the training examples are needed, leave_one_out(solution, xi, "
                "labels): feature space holds their sums"
            )
    elif labels is None:
        labels = cast("ExamplesForm", form).labels
    targets = to_host(real_floating("labels", labels)).astype(float)
    if targets.size != examples * outputs:
        raise ValueError(
            f"labels must have {outputs} outputs of {examples} examples, but has shape "
            f"{targets.shape}"
        )
    targets = targets.reshape(examples, outputs)
    _check_labels(problem, targets)
    posterior, factor = solution.posterior
    coefficients, precision = form.explained_labels(
        posterior, factor, solution.temperature, (xi, targets), problem.basis
    )
    residual = np.linalg.solve(precision, coefficients[..., None])[..., 0]  # y − f₋μ
    sign, log_det = np.linalg.slogdet(precision)
    log_det = np.where(sign > 0, log_det, np.nan)  # rounding may leave no positive determinant
    misfit = np.sum(residual * coefficients, axis=1)
    density = 0.5 * (log_det - misfit - outputs * math.log(2 * math.pi))
    mean = targets - residual
    return LeaveOneOut(
        mean=mean[:, 0] if outputs == 1 else mean,
        squared_error=float(np.mean(residual**2)),
        log_density=float(density.mean()),
    )


def _check_labels(problem: Problem, labels: np.ndarray) -> None:
    array = problem.array
    rounding = math.sqrt(array_namespace(array=array).finfo(array.dtype).eps)
    if not problem.form.has_labels(labels, rounding):
        raise ValueError(
            "labels are not those of the solution; pass the same labels, centred if those were"
        )
