"""Losses of the theory's own predictor with one head off: in accuracy, and in squared error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.heads import every_head, head_label
from pathkernel_core.prediction.removed_heads import PREDICTIONS, FixedKernels
from pathkernel_datasets.results.point import PointData
from pathkernel_pruning.heads.heads import are_removable
from pathkernel_trained.pruning_variables import PRUNING_VARIABLES


def theory_drops(
    point_data: PointData,
    order_parameter: np.ndarray,
    test_sets: Sequence[str],
    report: Callable[[str], None] = lambda activity: None,
) -> xr.Dataset:
    """Accuracy that the theory's predictor loses with one head off, and rise of its error.

    Accuracy is on the test sets, NaN for those that the study does not have. The squared error,
    which may score heads, is on validation examples, or on training examples where there are none.
    ``order_parameter`` is U (n, n) at the point; ``report`` is called with the next step. The
    dataset has ``theory_accuracy``, ``theory_drop``, ``theory_drop_error`` and
    ``theory_error_rise`` as docs/pruning.md lists them, NaN for the only head of a layer.
    """
    data, network = point_data.data, point_data.network
    fixed = FixedKernels(
        data.xi, data.labels, order_parameter, point_data.point.temperature, network.kernel_variance
    )
    problem = Problem(data.xi, data.labels)
    tests = {
        number: data.test_sets[name]
        for number, name in enumerate(test_sets)
        if name in data.test_sets
    }
    correct = {number: fixed.predict_mean(xi) * y > 0 for number, (xi, y) in tests.items()}
    held_out, targets = data.validation or (data.xi, data.labels)
    error_before = np.mean((fixed.predict_mean(held_out) - targets) ** 2)
    heads = every_head(network.heads)
    drop, error = np.full((2, len(PREDICTIONS), len(test_sets), len(heads)), np.nan)
    rise = np.full((len(PREDICTIONS), len(heads)), np.nan)
    # the only head of a layer stays: without it no path is left
    for column in np.flatnonzero(are_removable(network.heads)):
        report(f"theory without head {head_label(heads[column])}")
        predictors = fixed.without(heads[column], network, problem)
        for row, predict in enumerate(predictors.values()):
            rise[row, column] = np.mean((predict(held_out) - targets) ** 2) - error_before
            for number, (xi, labels) in tests.items():
                lost = correct[number].astype(float) - (predict(xi) * labels > 0)
                drop[row, number, column] = lost.mean()
                error[row, number, column] = lost.std() / np.sqrt(len(lost))
    return PRUNING_VARIABLES.dataset(
        {
            "theory_accuracy": [
                np.mean(correct.get(number, np.nan)) for number in range(len(test_sets))
            ],
            "theory_drop": drop,
            "theory_drop_error": error,
            "theory_error_rise": rise,
        },
        {"prediction": PREDICTIONS, "test_set": test_sets},
        network.heads,
    )
