"""Models built again without drawing random weights."""

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_pruning.live.rebuilding import _Undrawn


@pytest.mark.parametrize("limits", [(-2.0, 2.0), (0.1, 3.0), (1.5, 2.0), (2.0, 3.0)])
def test_initialisers_that_draw_until_values_fit_end(limits):
    """Memory that is not initialised may hold anything, such as values out of range."""
    weights = nn.Parameter(torch.full((30, 40), 9.0))
    with _Undrawn():
        nn.init.trunc_normal_(weights, a=limits[0], b=limits[1])


def test_weights_stay_as_they_are():
    with _Undrawn():
        weight = torch.full((5,), 9.0)
        nn.init.normal_(weight)
        nn.init.uniform_(weight)
        nn.init.kaiming_uniform_(weight[None])
    assert (weight == 9).all()
