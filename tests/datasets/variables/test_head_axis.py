"""Scores of heads: a real number for every one, once."""

import numpy as np
import pytest
import xarray as xr

from pathkernel_datasets.variables.head_axis import score_array

HEADS = [(1, 1), (1, 2)]


def scores(values, labels=("1-1", "1-2")):
    return xr.DataArray(values, dims="head", coords={"head": list(labels)})


def test_scores_are_put_in_the_order_of_the_heads():
    ordered = score_array("scores", scores([1.0, 2.0, 3.0], ("1-2", "0-0", "1-1")), HEADS)
    assert ordered.dims == ("head", "draw")
    np.testing.assert_array_equal(ordered.values, [[3.0], [1.0]])


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (scores(["1", "2"]), "has the type .*; give real numbers"),
        (scores([1j, 2.0]), "has the type complex128; give real numbers"),
        (scores([None, 2.0]), "has the type object; give real numbers"),
        (scores([1.0], ["1-1"]), r"lacks \(layer, head\) = \(1, 2\)"),
        (scores([1.0, 2.0, 3.0], ["1-1", "1-2", "1-1"]), "has head 1-1 twice"),
        (scores([1.0, 2.0]).values, "is a ndarray"),
    ],
)
def test_other_scores_are_refused(given, fault):
    with pytest.raises(ValueError, match=f"scores .*{fault}"):
        score_array("scores", given, HEADS)
