"""Names, dimensions and meanings of the variables in a comparison of orders; all units are 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.labelling import coordinate, labelled

_HEAD = ("layer", "head")
_REMOVED = ("removed", "quantity")
_ORDER = ("test_set", "order")
_GRID = ("temperature", "width")
_ENDS = ("resampled", "bound")
_SAMPLES = "central 95 % of the bootstrap resamples of"

_MEANINGS = {
    "score": (("order", "draw", *_HEAD), "score of the head; low ones are removed first"),
    "score_error": (("order", "draw", *_HEAD), "standard error of the score, if known"),
    "is_removed": (("order", "removed", "draw", *_HEAD), "1 where the head is removed, else 0"),
    "lost": (
        ("test_set", "draw", *_HEAD),
        "mean loss when the head alone is removed, if it can be",
    ),
    "lost_error": (("test_set", "draw", *_HEAD), "standard error of that loss over examples"),
    "rank_correlation": ((*_ORDER, "draw"), "Spearman's ρ of scores with losses by single heads"),
    "rank_correlation_interval": ((*_ORDER, *_ENDS), f"{_SAMPLES} its mean over draws"),
    "layer_correlation": ((*_ORDER, "draw", "layer"), "the same over the heads of the layer"),
    "correlation_difference": (_ORDER, "rank correlation less the first order's, mean over draws"),
    "correlation_difference_interval": ((*_ORDER, *_ENDS), f"{_SAMPLES} that difference"),
    "measured": ((*_ORDER, *_REMOVED, "draw"), "mean over test examples without these heads"),
    "measured_error": ((*_ORDER, *_REMOVED), "standard error of its mean over draws"),
    "change_error": ((*_ORDER, *_REMOVED), "standard error of its change from the whole network"),
    "difference": ((*_ORDER, *_REMOVED, "reference"), "mean over draws less the reference's"),
    "difference_interval": ((*_ORDER, *_REMOVED, "reference", "bound"), f"{_SAMPLES} that"),
    "random_measured": (
        ("test_set", "random_order", *_REMOVED, "draw"),
        "mean over test examples without the first heads of an order drawn at random",
    ),
    "random_as_good": ((*_ORDER, *_REMOVED, "draw"), "share of random orders at least as good"),
    "best_measured": (
        ("test_set", *_REMOVED, "draw"),
        "best of all sets of heads, chosen on the same examples; NaN where there are too many",
    ),
    "parameters": (("removed",), "trained numbers of the network that is left"),
    "flops": (("removed",), "floating-point operations per example of the network that is left"),
    "theory_accuracy": (("test_set",), "accuracy of the theory where the first order scores heads"),
    "theory_drop": (("prediction", "test_set", *_HEAD), "accuracy it loses there without the head"),
    "theory_drop_error": (("prediction", "test_set", *_HEAD), "standard error of that loss"),
    "theory_error_rise": (
        ("prediction", *_HEAD),
        "rise of the theory's mean squared error on validation examples, or on training examples "
        "where there are none, without the head",
    ),
    "theory_agreement": (_GRID, "Spearman's ρ of theory's scores with the first order's"),
    "theory_correlation": ((*_GRID, "test_set"), "Spearman's ρ of theory's scores with the losses"),
    "path_output": (
        ("episode_set", "episode", "path"),
        "contribution of the path to the output, before division by the root of their number",
    ),
    "episode_label": (("episode_set", "episode"), "label of the episode"),
}
VARIABLES = [Variable(name, *described) for name, described in _MEANINGS.items()]
"""Variables of a comparison of orders."""

COORDINATES = {
    "order": "order in which heads are removed, by its score",
    "needs": "requirement of the score: theory, weights, or labelled examples; empty if given",
    "order_width": "width N of the order parameter that scores heads",
    "order_temperature": "temperature T of the order parameter that scores heads",
    "removed": "number of heads removed",
    "quantity": "name of the values measured; the first scores heads",
    "better": "1 if larger values of the quantity are better, -1 if smaller ones are",
    "draw": "column of the measure, such as a draw of the training examples",
    "reference": "order that others are compared with",
    "test_set": "set of test examples",
    "examples": "number of test examples",
    "layer": "attention layer, from the input",
    "head": "head within its layer",
    "resampled": "objects that the bootstrap draws again",
    "bound": "end of the interval",
    "random_order": "number of a random order",
    "width": "network width N",
    "temperature": "Gibbs temperature T, the variance of the observation noise",
    "prediction": "change of the theory when a head is removed",
    "episode_set": "name of the set of episodes",
    "episode": "episode within its set",
    "path": "attention path, one head per layer",
}
"""Name → meaning."""

_ALONG = {
    **dict.fromkeys(("needs", "order_width", "order_temperature"), "order"),
    "better": "quantity",
    "examples": "test_set",
}  # coordinates along a dimension of another name


def labelled_orders(values: Mapping[str, Any], labels: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """Dataset of some of :data:`VARIABLES`, with coordinates among :data:`COORDINATES`."""
    coordinates = {
        name: coordinate(_ALONG.get(name, name), entries, COORDINATES[name])
        for name, entries in labels.items()
    }
    return labelled(values, VARIABLES, coordinates)
