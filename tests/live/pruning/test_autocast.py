"""Scores and captures of heads under autocast, whose outputs have three digits."""

from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.gains import LiveNetwork
from pathkernel_pruning.live.head_choice import curvature_scores, refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores

pytestmark = pytest.mark.filterwarnings("ignore:.*examples are few:RuntimeWarning")
EXAMPLES, TOKENS, WIDTH, HEADS, COLUMNS = 24, 5, 16, 2, 10


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        split = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(self.norm(x)).chunk(3, -1))
        q, k, v = (part.transpose(1, 2) for part in split)
        weights = (q @ k.mT * (WIDTH / HEADS) ** -0.5).softmax(dim=-1)
        return x + self.proj((weights @ v).transpose(1, 2).flatten(2))

    def pathkernel_heads(self):
        return AttentionHeads(HEADS, self.proj, [self.qkv])


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    return model


def drawn():
    return torch.randn(EXAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


CLASSES = torch.arange(EXAMPLES) % COLUMNS


def outputs_of(model, inside=nullcontext, *, is_cast_back=False):
    def outputs(batch):
        with inside():
            z = model(batch).mean(dim=1)
        return z.float() if is_cast_back else z, CLASSES

    return outputs


# differences in two gains would take 4 passes, and outputs one by one take 10
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("is_cast_back", [False, True])
def test_derivatives_are_no_differences(around, is_cast_back):
    model = network()
    exact = LiveNetwork(model, [drawn()], outputs_of(model), "cross-entropy").form(np.ones(HEADS))
    inside = nullcontext if around else autocast
    outputs = outputs_of(model, inside, is_cast_back=is_cast_back)
    live = LiveNetwork(model, [drawn()], outputs, "cross-entropy")
    with autocast() if around else nullcontext():
        form = live.form(np.ones(HEADS))
    assert live.passes == 1 + 2 + COLUMNS
    scale = abs(exact.form).max()
    np.testing.assert_allclose(form.form, exact.form, atol=0.02 * scale)
    scale = abs(exact.gradient).max()
    np.testing.assert_allclose(form.gradient, exact.gradient, atol=0.03 * scale)


def test_scores_gains_and_captures_agree_with_single_precision():
    model = network()

    def loss(batch):
        return nn.functional.cross_entropy(
            model(batch).mean(dim=1).float(), CLASSES, reduction="none"
        )

    def figures():
        outputs = outputs_of(model)
        return {
            "gradient": gradient_scores(model, [drawn()], loss),
            "gains": refit_gains(model, [drawn()], outputs, ["1-1"], loss="cross-entropy"),
            "heads": capture(model, [drawn()]).xi,
            "states": capture(model, [drawn()], attend="states").xi,
            "product": capture(model, [drawn()], picture="product", skips=True).xi,
            "tangent": capture(model, [drawn()], picture="tangent", outputs=outputs).xi,
        }

    single = figures()
    with autocast():
        half = figures()
    for name, values in single.items():
        error = np.linalg.norm(half[name] - values) / np.linalg.norm(values)
        assert error < 0.02, name


def test_a_contrastive_loss_is_refused():
    model = network()

    def outputs(batch):
        hidden = model(batch)
        return hidden[:, 0] @ hidden[:, 1].T, torch.arange(EXAMPLES)

    with autocast(), pytest.raises(CaptureError, match=r"half precision; .* leave autocast"):
        curvature_scores(model, [drawn()], outputs, loss="cross-entropy")
