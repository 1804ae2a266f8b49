"""Scores of a live model's heads by its gradients and weights, against their definitions."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_core.paths.heads import head_label
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores

WIDTH, HEADS, LAYERS = 8, 4, 2
EVERY = [(layer, head) for layer in (1, 2) for head in range(1, HEADS + 1)]


def made(batch_first=True):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=batch_first).double()
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def drawn(examples=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = examples, 5, WIDTH
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def squares(model, batch_first=True):
    """Two losses of every example."""

    def loss(batch):
        hidden = model(batch if batch_first else batch.swapaxes(0, 1))
        pooled = hidden.mean(dim=1 if batch_first else 0)
        return torch.stack([(pooled[:, 0] - 1) ** 2, pooled[:, 1] ** 2], dim=1)

    return loss


def by_differences(model, loss, batch, head, step=1e-5):
    """∂L/∂m of every example, with the head's output weights times m = 1 ± step."""
    layer, number = head
    weight = model.layers[layer - 1].self_attn.out_proj.weight.data
    part = weight[:, (number - 1) * 2 : number * 2]
    own, found = part.clone(), []
    for sign in (1, -1):
        part.copy_((1 + sign * step) * own)
        with torch.no_grad():
            found.append(loss(batch).numpy())
    part.copy_(own)
    return (found[0] - found[1]) / (2 * step)


class Towers(nn.Module):
    """Two towers that run in the other order than they are registered in."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.MultiheadAttention(WIDTH, 2, batch_first=True).double() for _ in range(2)]
        for name in order:
            self.add_module(name, layers["ab".index(name)])

    def forward(self, x):
        return self.b(x, x, x)[0].square() + 0.1 * self.a(x, x, x)[0]


def test_scores_are_of_the_layer_that_ran_whatever_their_order():
    def scores(order):
        model = Towers(order)
        return gradient_scores(
            model, [drawn()], lambda x: model(x).mean(dim=(1, 2)), normalised=False
        ).values

    np.testing.assert_allclose(scores("ab"), np.roll(scores("ba"), 2))
    assert abs(scores("ab")[:2] - scores("ab")[2:]).min() > 1e-4


@pytest.mark.parametrize("batch_first", [True, False])
def test_gradients_are_finite_differences(batch_first):
    model = made(batch_first)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    loss, batches = squares(model, batch_first), [drawn(), drawn(2, seed=2)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    raw = gradient_scores(model, batches, loss, normalised=False)
    assert list(zip(raw["layer"].values, raw["number"].values)) == EVERY
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()
    whole = [loss(batch) for batch in batches]
    for head in EVERY:
        slopes = np.concatenate([by_differences(model, loss, batch, head) for batch in batches])
        np.testing.assert_allclose(
            raw.sel(head=head_label(head)), abs(slopes).mean(axis=0), rtol=1e-6
        )
    assert all(torch.equal(loss(batch), own) for batch, own in zip(batches, whole))
    normalised = gradient_scores(model, batches, lambda batch: loss(batch)[:, 0])
    first = raw.isel(draw=0)
    norm = np.sqrt((first**2).groupby("layer").sum()).sel(layer=first["layer"])
    np.testing.assert_allclose(normalised, first / norm)


def test_magnitudes_are_those_of_the_map_from_values_to_outputs():
    model = made()
    found = magnitude_scores(model, drawn())
    for layer, head in EVERY:
        attention = model.layers[layer - 1].self_attn
        part = slice((head - 1) * 2, head * 2)
        values = attention.in_proj_weight.detach().numpy()[2 * WIDTH :][part]
        through = attention.out_proj.weight.detach().numpy()[:, part] @ values
        assert float(found.sel(head=f"{layer}-{head}")) == pytest.approx(np.linalg.norm(through))


def test_refused():
    model, batches = made(), [drawn()]
    for wrong, words in (
        (lambda batch: model(batch).mean(), r"each of the 3 examples of a batch, but gives \(\)"),
        (lambda batch: squares(model)(batch).detach(), "must keep the gradients"),
        (lambda batch: squares(model)(batch) * np.nan, "that are NaN or infinite"),
        (
            lambda batch: (model(batch), next(model.parameters()).sum().expand(3))[1],
            "depend on its heads",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            gradient_scores(model, batches, wrong)
    columns = iter((1, 2))
    with pytest.raises(ValueError, match=r"shape \(3, 2\), but another number of columns"):
        gradient_scores(
            model,
            batches * 2,
            lambda batch: squares(model)(batch)[:, : next(columns)],
        )
    with pytest.raises(ValueError, match="at least one batch"):
        gradient_scores(model, [], squares(model))
    with pytest.raises(TypeError, match=r"is 'validation'; put a single one into a list"):
        gradient_scores(model, "validation", squares(model))
    with pytest.raises(ValueError, match="magnitude_scores needs a batch"):
        magnitude_scores(model)
    with pytest.raises(CaptureError, match="ran 0 times in the forward pass"):
        gradient_scores(model, batches, lambda batch: model.layers[0](batch)[:, 0, 0])
