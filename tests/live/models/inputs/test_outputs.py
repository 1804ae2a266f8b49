"""Outputs of a model with their targets: their precision."""

import pytest

torch = pytest.importorskip("torch", reason="live models are of PyTorch")

from pathkernel_models.inputs import outputs as module
from pathkernel_models.inputs.outputs import checked_outputs

MANY = 12


@pytest.mark.parametrize(
    ("dtype", "rows", "expected"),
    [
        (torch.float32, 3, torch.float64),
        (torch.float32, 4, torch.float64),  # 12 numbers are not yet many
        (torch.float32, 5, torch.float32),
        (torch.float64, 3, torch.float64),
        (torch.float64, 5, torch.float64),
        (torch.float16, 3, torch.float32),
        (torch.float16, 5, torch.float32),
        (torch.bfloat16, 3, torch.float32),
        (torch.bfloat16, 5, torch.float32),
    ],
)
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_half_precision_and_many_of_single_precision_stay_float32(
    monkeypatch, loss, dtype, rows, expected
):
    monkeypatch.setattr(module, "MANY_OUTPUTS", MANY)
    given = torch.ones(rows, 3, dtype=dtype)
    targets = given if loss == "squared" else torch.zeros(rows, dtype=torch.long)
    outputs, targets = checked_outputs((given, targets), loss)
    assert outputs.dtype == expected
    assert targets.dtype == (torch.float64 if loss == "squared" else torch.int64)
