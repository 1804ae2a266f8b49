"""Names, dimensions and meaning of everything in a comparison of orders; all units are 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.labelling import coordinate, labelled

_HEAD = ("layer", "head")
_CURVE = ("order", "removed", "test_set")
_SET_OF_HEADS = ("removed", "test_set")
_CORRELATION = ("order", "test_set", "coefficient")
_INTERVAL = (*_CORRELATION, "resampled", "bound")
_GRID = ("temperature", "width")

_LOST = "the accuracy lost on test examples"
VARIABLES = (
    Variable(
        "score", ("order", *_HEAD), "score of the head; heads of low scores are removed first"
    ),
    Variable(
        "score_error",
        ("order", *_HEAD),
        "Monte-Carlo error of the score, where it is from draws or sampled; NaN elsewhere",
    ),
    Variable(
        "gone", ("order", "removed", *_HEAD), "1 where the head is removed, 0 where it is left"
    ),
    Variable(
        "accuracy",
        _CURVE,
        "fraction of test examples classified correctly; mean over the random orders",
    ),
    Variable("accuracy_error", _CURVE, "standard error of the accuracy over test examples"),
    Variable(
        "accuracy_drop_error",
        _CURVE,
        "standard error of the accuracy lost, over the same test examples",
    ),
    Variable(
        "accuracy_difference",
        (*_CURVE, "reference"),
        "accuracy less that of the first order, or of the mean over the random orders",
    ),
    Variable(
        "accuracy_difference_interval",
        (*_CURVE, "reference", "bound"),
        "central 95 % of the difference's bootstrap resamples, the same examples for both",
    ),
    Variable(
        "random_deviation",
        _SET_OF_HEADS,
        "standard deviation of the accuracy over random orders",
    ),
    Variable(
        "random_interval",
        (*_SET_OF_HEADS, "bound"),
        "central 95 % of the accuracies over random orders",
    ),
    Variable(
        "best_accuracy",
        _SET_OF_HEADS,
        "largest accuracy of any network with so many heads removed, chosen on the same examples; "
        "NaN where there are too many",
    ),
    Variable("parameters", ("removed",), "trained numbers of the network that is left"),
    Variable(
        "flops",
        ("removed",),
        "floating-point operations of the network that is left, per example, layer by layer",
    ),
    Variable(
        "ablation_drop",
        ("test_set", *_HEAD),
        f"{_LOST} when the head alone is removed; NaN for the only head of a layer",
    ),
    Variable(
        "ablation_drop_error",
        ("test_set", *_HEAD),
        "standard error of the accuracy lost when the head alone is removed",
    ),
    Variable(
        "rank_correlation",
        _CORRELATION,
        f"rank correlation of scores with {_LOST}, over the heads that can be removed alone",
    ),
    Variable(
        "rank_correlation_interval",
        _INTERVAL,
        "central 95 % of the rank correlation's bootstrap resamples",
    ),
    Variable(
        "correlation_difference",
        _CORRELATION,
        "rank correlation of the first order less that of this one",
    ),
    Variable(
        "correlation_difference_interval",
        _INTERVAL,
        "central 95 % of the difference's bootstrap resamples, the same for both orders",
    ),
    Variable(
        "theory_accuracy",
        ("test_set",),
        "fraction of the study's test examples that the theory classifies correctly where the "
        "first order scores heads",
    ),
    Variable(
        "theory_drop",
        ("prediction", "test_set", *_HEAD),
        "accuracy that the theory loses there when the head alone is removed",
    ),
    Variable(
        "theory_drop_error",
        ("prediction", "test_set", *_HEAD),
        "standard error of that accuracy lost, over the same test examples",
    ),
    Variable(
        "theory_error_rise",
        ("prediction", *_HEAD),
        "rise of the theory's mean squared error on validation examples, or on training examples "
        "where there are none, when the head alone is removed",
    ),
    Variable(
        "theory_drop_temperature",
        _HEAD,
        "temperature T of the network without the head, re-equilibrated",
    ),
    Variable(
        "theory_agreement",
        (*_GRID, *(f"{name}_dual" for name in _GRID)),
        "Spearman's rank correlation of theory's scores at two points of the grid",
    ),
    Variable(
        "theory_correlation",
        (*_GRID, "test_set"),
        f"Spearman's rank correlation of theory's scores with {_LOST}",
    ),
    Variable(
        "path_output",
        ("episode_set", "episode", "path"),
        "what the path adds to the output, before division by the root of their number",
    ),
    Variable("episode_label", ("episode_set", "episode"), "label of the episode"),
)
"""What a comparison of orders may hold."""

COORDINATES = {
    "order": "order in which heads are removed, by its score",
    "removed": "number of heads removed",
    "reference": "what accuracies are compared with",
    "test_set": "set of test examples",
    "layer": "attention layer, from the input",
    "head": "head within its layer",
    "coefficient": "Spearman's ρ or Kendall's τ_b",
    "resampled": "what the bootstrap draws anew",
    "bound": "end of the interval",
    "width": "network width N",
    "temperature": "Gibbs temperature T, the variance of the observation noise",
    "width_dual": "network width N of the other point",
    "temperature_dual": "Gibbs temperature T of the other point",
    "prediction": "what of the theory changes when a head is removed",
    "episode_set": "name of the set of episodes",
    "episode": "episode within its set",
    "path": "attention path, one head per layer",
    "order_width": "width N of the order parameter that scores heads",
    "order_temperature": "temperature T of the order parameter that scores heads",
}
"""Name → meaning."""

_OF_ORDERS = ("order_width", "order_temperature")  # coordinates along another dimension


def labelled_orders(values: Mapping[str, Any], labels: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """Dataset of some of :data:`VARIABLES`, with coordinates among :data:`COORDINATES`.

    Parameters
    ----------
    values : mapping of str to array
        Axes in the order of the variable's dimensions.
    labels : mapping of str to sequence
    """
    coordinates = {
        name: coordinate("order" if name in _OF_ORDERS else name, entries, COORDINATES[name])
        for name, entries in labels.items()
    }
    return labelled(values, VARIABLES, coordinates)
