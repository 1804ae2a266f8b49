"""Score captured heads by the loss of the theory's own predictor without them."""

from __future__ import annotations

import numpy as np

from pathkernel_capture.captured import Captured
from pathkernel_core.order_parameter import scaled_order_parameter
from pathkernel_core.solution import Solution
from pathkernel_trained.heads import Head, every_head
from pathkernel_trained.theory_drops import PREDICTIONS, FixedKernels


def theory_rises(
    train: Captured, validation: Captured, solution: Solution, *, equilibrate: bool = True
) -> dict[str, dict[Head, float]]:
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
    dict of str to dict of (layer, head) to float
        Without the only head of a layer there is no path left, and the predictor is 0. NaN where
        there are skips beside that head, and where a minimisation fails.

    Raises
    ------
    ValueError
        If the examples are of different heads, there are no labels of one output, or the solution
        is of another network.
    """
    network, problem = solution.network, solution.problem
    train.check_scaled_alike(validation, "validation")
    if network.heads != train.heads or network.has_skips != train.skips:
        raise ValueError(f"solution is of heads {network.heads}, but these are {train.heads}")
    if network.outputs != 1 or train.labels is None or validation.labels is None:
        raise ValueError("train and validation must have labels of one output, shape (P,)")
    fixed = FixedKernels(
        *(train.xi, train.labels, scaled_order_parameter(network, solution.order_parameter)),
        *(solution.temperature, network.variances[0]),
    )
    predictions = PREDICTIONS if equilibrate else PREDICTIONS[:2]
    rises = {name: [np.full(count, np.nan) for count in network.heads] for name in predictions}
    intact = np.mean((fixed.restricted(validation.xi) - validation.labels) ** 2)
    for layer, head in every_head(network.heads):
        if train.members[layer - 1][head - 1] == (0, 0):
            continue
        if network.heads[layer - 1] == 1:
            for layers in rises.values() if not train.skips else ():
                layers[layer - 1][head - 1] = np.mean(validation.labels**2) - intact
            continue
        predictors = fixed.without((layer, head), network, problem if equilibrate else None)
        for name, predict in predictors.items():
            error = np.mean((predict(validation.xi) - validation.labels) ** 2)
            rises[name][layer - 1][head - 1] = error - intact
    return {name: train.by_head(layers) for name, layers in rises.items()}
