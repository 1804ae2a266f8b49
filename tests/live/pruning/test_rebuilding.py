"""Models built again without drawing random weights."""

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_pruning.live.rebuilding import _Undrawn


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (0.1, 3.0), (2.0, 3.0)])
def test_draws_until_values_suit_end(bounds):
    """Truncated normal distributions draw again what lies outside, whatever is in memory.

    The values do not matter, since those of a file replace them; PyTorch's generator stays.
    """
    weight = torch.full((50,), 9.0)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with _Undrawn():
        nn.init.trunc_normal_(weight, a=bounds[0], b=bounds[1])
    assert torch.equal(torch.rand(4), expected)


def test_weights_stay_as_they_are():
    with _Undrawn():
        weight = torch.full((5,), 9.0)
        nn.init.normal_(weight)
        nn.init.uniform_(weight)
        nn.init.kaiming_uniform_(weight[None])
    assert (weight == 9).all()
