"""Variables that pruning adds to a comparison of orders."""

from __future__ import annotations

from pathkernel_pruning.heads.order_variables import ORDER_VARIABLES, DatasetVariables

_GRID = ("temperature", "width")

_MEANINGS = {
    "parameters": (("removed",), "trained numbers of the pruned network"),
    "flops": (("removed",), "floating-point operations per example of the pruned network"),
    "theory_accuracy": (("test_set",), "accuracy of the theory where the first order scores heads"),
    "theory_drop": (
        ("prediction", "test_set", "head"),
        "accuracy it loses there with the head off",
    ),
    "theory_drop_error": (("prediction", "test_set", "head"), "standard error of that loss"),
    "theory_error_rise": (
        ("prediction", "head"),
        "rise of the theory's mean squared error on validation examples, or on training examples "
        "where there are none, with the head off",
    ),
    "theory_agreement": (_GRID, "Spearman's ρ of the theory's scores with the first order's"),
    "theory_correlation": ((*_GRID, "test_set"), "Spearman's ρ of the theory's scores with losses"),
    "path_output": (
        ("episode_set", "episode", "path"),
        "contribution of the path to the output, before division by the root of their number",
    ),
    "episode_label": (("episode_set", "episode"), "label of the episode"),
}
_COORDINATES = {
    "order_width": "width N of the order parameter that scores heads",
    "order_temperature": "temperature T of the order parameter that scores heads",
    "width": "network width N",
    "temperature": "Gibbs temperature T, the variance of the observation noise",
    "prediction": "change of the theory when a head is removed",
    "episode_set": "name of the set of episodes",
    "episode": "episode within its set",
    "path": "attention path, one head per layer",
    **{name: ORDER_VARIABLES.coordinates[name] for name in ("test_set", "removed")},
}

PRUNING_VARIABLES = DatasetVariables(
    _MEANINGS,
    _COORDINATES,
    along=dict.fromkeys(("order_width", "order_temperature"), "order"),
)
"""Variables that pruning adds to a comparison of orders."""
