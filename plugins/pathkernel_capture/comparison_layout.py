"""Names, dimensions and meaning of everything in a comparison of head scores; all units are 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.labelling import coordinate, labelled

_HEAD = ("layer", "head")
_MEASURED = ("order", "removed", "quantity")
_RISE = "the rise of the mean loss on test examples when a head alone is off"

VARIABLES = (
    Variable(
        "score", ("order", "draw", *_HEAD), "score of the head; heads of low scores are off first"
    ),
    Variable(
        "score_error",
        ("order", "draw", *_HEAD),
        "standard error of the score: over validation examples, or over orders of arrival",
    ),
    Variable("rise", ("draw", *_HEAD), _RISE),
    Variable("rise_error", ("draw", *_HEAD), "standard error of that rise, over test examples"),
    Variable("rank_correlation", ("order", "draw"), f"Spearman's ρ of scores with {_RISE}"),
    Variable(
        "rank_correlation_interval",
        ("order", "resampled", "bound"),
        "central 95 % of the bootstrap resamples of its mean over draws",
    ),
    Variable("layer_correlation", ("order", "draw", "layer"), "the same over the layer's heads"),
    Variable(
        "correlation_difference",
        ("order",),
        "Spearman's ρ of the first order less that of this one, mean over draws",
    ),
    Variable(
        "correlation_difference_interval",
        ("order", "resampled", "bound"),
        "central 95 % of that difference's bootstrap resamples, the same for both orders",
    ),
    Variable("whole", ("quantity", "draw"), "mean over test examples with all heads"),
    Variable(
        "measured",
        (*_MEASURED, "draw"),
        "mean over test examples without the first heads of the order",
    ),
    Variable("measured_error", _MEASURED, "standard error of its mean over draws"),
    Variable(
        "difference", _MEASURED, "mean over draws with the first order less that with this one"
    ),
    Variable(
        "difference_interval",
        (*_MEASURED, "bound"),
        "central 95 % of the difference's bootstrap resamples, over the same test examples",
    ),
    Variable(
        "random_measured",
        ("random_order", "removed", "quantity", "draw"),
        "mean over test examples without the first heads of an order drawn at random",
    ),
    Variable(
        "random_as_good",
        (*_MEASURED, "draw"),
        "share of the random orders that are at least as good; the best of some is one of them",
    ),
)
"""What a comparison holds."""

COORDINATES = {
    "order": "order in which heads are switched off, by its score",
    "removed": "number of heads off",
    "quantity": "what is measured: first the loss, then what is better the larger it is",
    "draw": "column of the measure, such as a draw of the training examples",
    "layer": "attention layer of the model",
    "head": "head within its layer",
    "resampled": "what the bootstrap draws anew",
    "bound": "end of the interval",
    "random_order": "number of a random order",
}
"""Name → meaning."""


def labelled_comparison(
    values: Mapping[str, Any], labels: Mapping[str, Sequence[Any]], attributes: Mapping[str, Any]
) -> xr.Dataset:
    """Dataset of :data:`VARIABLES`, with coordinates of :data:`COORDINATES`.

    Parameters
    ----------
    values : mapping of str to array
        Axes in the order of the variable's dimensions.
    labels : mapping of str to sequence
    attributes : mapping
        Of the dataset.
    """
    coordinates = {
        name: coordinate(name, entries, COORDINATES[name]) for name, entries in labels.items()
    }
    return labelled(values, VARIABLES, coordinates, attributes)
