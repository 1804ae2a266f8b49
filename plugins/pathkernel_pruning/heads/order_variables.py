"""Variables of datasets of heads: names, dimensions and meanings; those of compared orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import head_coordinates
from pathkernel_datasets.variables.labelling import coordinate, label_arrays


@dataclass(frozen=True)
class DatasetVariables:
    """Variables and coordinates that a dataset may have; all units are 1.

    Attributes
    ----------
    meanings : mapping of str to (dims, str)
        Dimensions and meaning of every variable.
    coordinates : mapping of str to str
        Meaning of every coordinate but those of heads.
    along : mapping of str to str
        Dimension of coordinates that have another name than theirs.
    """

    meanings: Mapping[str, tuple[tuple[str, ...], str]]
    coordinates: Mapping[str, str]
    along: Mapping[str, str]

    def dataset(
        self,
        values: Mapping[str, Any],
        labels: Mapping[str, Sequence[Any]],
        heads: Sequence[int] = (),
    ) -> xr.Dataset:
        """Dataset of some of the variables, with some of the coordinates.

        Axes have the order of the variable's dimensions, those of labelled arrays any order.
        ``heads`` H_1 … H_L label the axis of heads, if a variable has one.
        """
        variables = [Variable(name, *described) for name, described in self.meanings.items()]
        arrays = {
            str(name): array.transpose(*self.meanings[str(name)][0]).values
            if isinstance(array, xr.DataArray)
            else array
            for name, array in values.items()
        }
        coordinates = {
            name: coordinate(self.along.get(name, name), entries, self.coordinates[name])
            for name, entries in labels.items()
        }
        coordinates |= head_coordinates(every_head(heads)) if heads else {}
        return label_arrays(arrays, variables, coordinates)


_REMOVED = ("removed", "quantity")
_ORDER = ("test_set", "order")
_ENDS = ("resampled", "bound")
_SAMPLES = "central 95 % of the bootstrap resamples of"

_MEANINGS = {
    "score": (("order", "draw", "head"), "score of the head; low ones are removed first"),
    "score_error": (("order", "draw", "head"), "standard error of the score, if known"),
    "is_removed": (("order", "removed", "draw", "head"), "1 where the head is removed, else 0"),
    "lost": (
        ("test_set", "draw", "head"),
        "loss with the head alone off, mean over examples, where it can be",
    ),
    "lost_error": (("test_set", "draw", "head"), "standard error of that loss over examples"),
    "rank_correlation": ((*_ORDER, "draw"), "Spearman's ρ of scores with losses with one head off"),
    "rank_correlation_interval": ((*_ORDER, *_ENDS), f"{_SAMPLES} its mean over draws"),
    "layer_correlation": (
        (*_ORDER, "draw", "within_layer"),
        "the same over the heads of the layer",
    ),
    "correlation_difference": (_ORDER, "rank correlation less the first order's, mean over draws"),
    "correlation_difference_interval": ((*_ORDER, *_ENDS), f"{_SAMPLES} that difference"),
    "measured": ((*_ORDER, *_REMOVED, "draw"), "mean over test examples with these heads off"),
    "measured_error": ((*_ORDER, *_REMOVED), "standard error of its mean over draws"),
    "change_error": ((*_ORDER, *_REMOVED), "standard error of its change from the whole network"),
    "difference": ((*_ORDER, *_REMOVED, "reference"), "mean over draws less the reference's"),
    "difference_interval": ((*_ORDER, *_REMOVED, "reference", "bound"), f"{_SAMPLES} that"),
    "random_measured": (
        ("test_set", "random_order", *_REMOVED, "draw"),
        "mean over test examples with the first heads of a random order off",
    ),
    "random_as_good": ((*_ORDER, *_REMOVED, "draw"), "share of random orders at least as good"),
    "best_measured": (
        ("test_set", *_REMOVED, "draw"),
        "best of all sets of heads, chosen on the same examples; NaN where there are too many",
    ),
}
_COORDINATES = {
    "order": "order in which heads are removed, by its score",
    "needs": "requirement of the score: theory, weights, or labelled examples; empty if given",
    "removed": "number of heads removed",
    "quantity": "name of the values measured; the first scores heads",
    "better": "1 if larger values of the quantity are better, -1 if smaller ones are",
    "draw": "column of the measure, such as a draw of the training examples",
    "reference": "order that others are compared with",
    "test_set": "set of test examples",
    "examples": "number of test examples",
    "within_layer": "attention layer whose heads are compared, from the input",
    "resampled": "objects that the bootstrap draws again",
    "bound": "end of the interval",
    "random_order": "number of a random order",
}

ORDER_VARIABLES = DatasetVariables(
    _MEANINGS,
    _COORDINATES,
    along={"needs": "order", "better": "quantity", "examples": "test_set"},
)
"""Variables of a comparison of orders."""
