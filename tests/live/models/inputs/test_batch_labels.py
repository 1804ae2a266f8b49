"""Labels of sequences; those of tokens, masks and names that a model swallows are refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.labels import check_no_mask

INPUTS = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
WITHOUT = torch.tensor([[-100, 2, 1, 0, 1, 1]] * 3)  # at its first token


def encoder(batch_first=True):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


class Swallowing(nn.Module):
    """Takes any arguments, in the manner of transformers."""

    def __init__(self):
        super().__init__()
        self.encoder = encoder()

    def forward(self, x, attention_mask=None, **_):
        return self.encoder(x)


REFUSED = {
    "tokens, some without": (WITHOUT, r"shape \(3, 6\): labels of tokens, -100 at tokens"),
    "tokens, nested lists": (WITHOUT.tolist(), r"shape \(3, 6\): labels of tokens, -100 at"),
    "tokens": (WITHOUT[:, 1:].repeat(1, 2)[:, :6], r"labels of tokens, or a mask"),
    "some without, other tokens": (WITHOUT[:, :5], r"shape \(3, 5\): labels of tokens, -100 at"),
    "one without": (torch.tensor([1, -100, 0]), r"shape \(3,\): labels of tokens, -100 at"),
    "mask": (MASK.bool(), r"or a mask\. .* by its name among the arguments"),
    "mask of integers": (MASK, r"or a mask\. .* by its name"),
    "mask of floats": (MASK.float(), r"or a mask\. .* by its name"),
    "padding of floats": (1 - MASK.double(), r"or a mask\. .* by its name"),
    "nan": (torch.tensor([1.0, torch.nan, 2.0]), "1 of 3 values that are NaN or infinite"),
    "infinite": (np.array([1.0, np.inf, np.inf]), "2 of 3 values that are NaN or infinite"),
    "missing": ([1.0, None, 2.0], r"shape \(3,\) and type object"),
    "complex": (torch.ones(3, dtype=torch.complex64), "type complex64; give numbers"),
    "axes": (torch.zeros(3, 6, 4), r"shape \(3, 6, 4\) .* targets, \(batch, C\)"),
    "scalar": (torch.tensor(1.0), r"shape \(\) and type float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    labels, fault = REFUSED[name]
    batches = [(INPUTS, labels)], [({"src": INPUTS}, labels)], [{"src": INPUTS, "labels": labels}]
    for batch in batches:
        with pytest.raises(ValueError, match=fault) as refusal:
            capture(encoder(), batch)
        assert "\n" not in str(refusal.value)


def test_a_mask_of_sequences_on_the_second_axis():
    with pytest.raises(ValueError, match="or a mask"):
        capture(encoder(batch_first=False), [(INPUTS.transpose(0, 1), MASK)])


@pytest.mark.parametrize(
    "labels",
    [
        torch.eye(6)[:3].long(),  # classes, of which there are as many as tokens
        torch.randn(3, 6),
        torch.randn(3, 6).sort(dim=1).values,
        torch.tensor([[0.0, 1, 0, 1, 0, 1]] * 3),  # several classes
        torch.randn(3, 4, requires_grad=True),
        torch.tensor([1.0, -100.0, 0.5]),
        torch.ones(3, dtype=torch.bfloat16),
        ["praise", "complaint", "praise"],
    ],
)
def test_taken(labels):
    found = capture(encoder(), [(INPUTS, labels)] * 2).labels
    expected = labels.detach().float().numpy() if torch.is_tensor(labels) else np.array(labels)
    np.testing.assert_array_equal(found, np.concatenate([expected] * 2))


def test_labels_that_are_not_used_are_no_mask():
    """As where heads are off: classes at the ends, and targets in order, may stay."""
    for labels in (torch.eye(6)[[0, 5, 0]].long(), torch.randn(3, 6).sort(dim=1).values):
        check_no_mask(labels, INPUTS)
    with pytest.raises(ValueError, match="are a mask of its tokens"):
        check_no_mask(MASK, INPUTS)


def test_batches_whose_labels_do_not_fit():
    batches = [(INPUTS, torch.zeros(3, columns)) for columns in (2, 4)]
    with pytest.raises(ValueError, match=r"shapes \(3, 2\), \(3, 4\); give all as many columns"):
        capture(encoder(), batches)
    both = {"src": INPUTS, "labels": torch.zeros(3)}, torch.ones(3)
    with pytest.raises(ValueError, match="labels twice"):
        capture(encoder(), [both])


@pytest.mark.parametrize("name", ["label", "label_ids", "targets", "Labels", "y"])
def test_labels_that_a_model_swallows(name):
    batch = {"x": INPUTS, name: torch.zeros(3)}
    with pytest.raises(CaptureError, match=f"has {name}, .* of Swallowing; rename it labels"):
        capture(Swallowing(), [batch])


@pytest.mark.parametrize("name", ["attention_masks", "attn_mask", "mask", "key_padding_mask"])
def test_masks_that_a_model_swallows(name):
    with pytest.raises(CaptureError, match=f"has {name}, .* its masks are attention_mask"):
        capture(Swallowing(), [{"x": INPUTS, name: MASK}])


def test_targets_that_are_an_argument_of_the_model():
    class Taking(Swallowing):
        def forward(self, x, targets=None):
            assert targets is not None
            return self.encoder(x)

    assert capture(Taking(), [{"x": INPUTS, "targets": torch.zeros(3)}]).labels is None
