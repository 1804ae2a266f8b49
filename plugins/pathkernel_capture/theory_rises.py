"""Score captured heads by the loss of the theory's own predictor without them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_capture.captured import Captured, check_captured
from pathkernel_core.action.solution import Solution
from pathkernel_core.paths.heads import every_head
from pathkernel_core.paths.order_parameter import scaled_order_parameter
from pathkernel_core.prediction.removed_heads import PREDICTIONS, FixedKernels
from pathkernel_models.arguments import described


def theory_rises(
    train: Captured, validation: Captured, solution: Solution, *, equilibrate: bool = True
) -> dict[str, xr.DataArray]:
    """Score heads by the rise of the theory's mean squared error on validation examples.

    Without a head the predictor is *restricted* (the mean predictor loses the paths through the
    head), *silenced* (the rows and columns of U, and the predictor is fitted again), or
    *re-equilibrated* (the action is minimised again without the head).

    Parameters
    ----------
    train, validation : Captured
        Alike, with labels (P,); scaled alike.
    solution : Solution
        Minimum of the action for the training examples.
    equilibrate : bool
        Whether to re-equilibrate: one minimisation for every head.

    Returns
    -------
    dict of str to xarray.DataArray, dims (head,)
        Without the only head of a layer there is no path left, and the predictor is 0. NaN where
        there are skips beside that head, and where a minimisation fails.

    Raises
    ------
    ValueError
        If the examples are of different heads, there are no labels of one output, or the solution
        is of another network.
    """
    check_captured(train, "train")
    if not isinstance(solution, Solution):
        raise TypeError(
            f"solution must be one of pathkernel.minimise_action, but is {described(solution)}"
        )
    network, problem = solution.network, solution.problem
    problem.require_squared("the rise of the squared error", "score heads by solution.head_scores")
    train.check_scaled_alike(validation, "validation")
    if network.heads != train.heads or network.has_skips != train.skips:
        raise ValueError(f"solution is of heads {network.heads}, but these are {train.heads}")
    if network.outputs != 1 or train.labels is None or validation.labels is None:
        raise ValueError("train and validation must have labels of one output, shape (P,)")
    fixed = FixedKernels(
        xi=train.xi,
        labels=train.labels,
        weights=scaled_order_parameter(network, solution.order_parameter),
        temperature=solution.temperature,
        variance=network.kernel_variance,
    )
    predictions = PREDICTIONS if equilibrate else PREDICTIONS[:2]
    heads = every_head(network.heads)
    rises = {name: np.full(len(heads), np.nan) for name in predictions}
    intact = np.mean((fixed.predict_mean(validation.xi) - validation.labels) ** 2)
    members = [head for layer in train.members for head in layer]
    for column, (head, member) in enumerate(zip(heads, members)):
        if member == (0, 0):
            continue
        if network.heads[head[0] - 1] == 1:
            for scores in rises.values() if not train.skips else ():
                scores[column] = np.mean(validation.labels**2) - intact
            continue
        predictors = fixed.without(head, network, problem if equilibrate else None)
        for name, predict in predictors.items():
            error = np.mean((predict(validation.xi) - validation.labels) ** 2)
            rises[name][column] = error - intact
    return {name: train.by_head(scores) for name, scores in rises.items()}
