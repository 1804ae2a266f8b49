"""Outputs of a live model that depend on other examples of the batch."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.heads.loss_form import apply_curvature
from pathkernel_pruning.live.gains import LiveNetwork
from pathkernel_pruning.live.head_choice import choose_heads, curvature_scores, refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores

pytestmark = pytest.mark.filterwarnings("ignore:.*examples are few:RuntimeWarning")
EXAMPLES, TOKENS, WIDTH = 7, 3, 12
CROSS = "cross-entropy"


class Towers(nn.Module):
    """Two encoders, of pictures and of captions."""

    def __init__(self, heads=2):
        super().__init__()
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(WIDTH, heads, 16, batch_first=True, activation="gelu")
        self.towers = nn.ModuleList(copy.deepcopy(block) for _ in range(2))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.4)

    def forward(self, batch):
        return [tower(tokens) for tower, tokens in zip(self.towers, batch.unbind(dim=1))]


def drawn(examples=EXAMPLES, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 2, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def similarity(model, batch):
    pictures, captions = (hidden.mean(dim=1) for hidden in model(batch))
    return pictures @ captions.mT / 4


def tokens(model, batch):
    """Outputs (example, token, column), of each example alone."""
    pictures, captions = model(batch)
    return (pictures * captions)[..., :3]


def each(model, batch):
    return tokens(model, batch).mean(dim=1)


JOINED = {
    "contrastive": similarity,
    "mean": lambda model, batch: (z := each(model, batch)) - z.mean(dim=0),
    "softmax": lambda model, batch: each(model, batch).softmax(dim=0),
    "prototype": lambda model, batch: (z := each(model, batch)) - z[:1],
    "pairs": lambda model, batch: (z := each(model, batch)) * z[[1, 0, 3, 2, 5, 4, 6]],
    "tokens": lambda model, batch: (z := tokens(model, batch).flatten(0, 1)) - z.mean(dim=0),
}
HEADS = {"contrastive": 2, "tokens": 6}  # where differences take more passes


def classes_of(outputs):
    def given(model, batch):
        z = outputs(model, batch)
        return z, torch.arange(len(z)) % z.shape[1]

    return given


@pytest.mark.parametrize("name", JOINED)
def test_derivatives_are_those_of_the_whole_batch(name):
    model = Towers(HEADS.get(name, 4)).double()
    given = classes_of(JOINED[name])
    network = LiveNetwork(model, [drawn()], lambda batch: given(model, batch), CROSS)
    count = sum(network.heads)
    form, step = network.form(np.ones(count)), 1e-4
    for head in range(count):
        losses = [network.loss(1 + sign * step * np.eye(count)[head]) for sign in (1, -1)]
        slope = (losses[0] - losses[1]) / (2 * step)
        assert form.gradient[head] == pytest.approx(slope, abs=0.005 * abs(form.gradient).max())
    # G = Σ Jᵀ B J of the whole batch, by differences of its outputs
    moved, (z, y) = [], given(model, drawn())
    for head in range(count):
        sides = []
        for sign in (1, -1):
            with network._gains(1 + sign * step * np.eye(count)[head]):
                sides.append(given(model, drawn())[0].detach())
        moved.append((sides[0] - sides[1]) / (2 * step))
    slopes = torch.stack(moved, dim=-1)
    expected = (slopes[..., None] * apply_curvature(z.detach(), y, slopes)[..., None, :]).sum(
        dim=(0, 1)
    )
    expected = expected.numpy() / len(z)
    np.testing.assert_allclose(form.form, expected, atol=0.03 * abs(expected).max())


@pytest.mark.parametrize(
    ("outputs", "passes"),
    [  # two backward passes that tell, a forward one, and one for each of three outputs
        (each, 6),
        # differences in eight gains, since rows are in another order
        (lambda model, batch: each(model, batch).flip(0), 1 + 2 + 16),
        # rows that are told one by one, and directions in place of 24 differences
        (lambda model, batch: tokens(model, batch).transpose(0, 1).flatten(0, 1), 1 + 2 + 9),
    ],
)
def test_examples_that_stand_alone(outputs, passes):
    model = Towers(6 if passes == 12 else 4).double()
    given = classes_of(outputs)
    network = LiveNetwork(model, [drawn()], lambda batch: given(model, batch), CROSS)
    network.form(np.ones(sum(network.heads)))
    assert network.passes == passes
    network.form(np.ones(sum(network.heads)))  # of the same shapes, which are not tested again
    assert network.passes == 2 * passes - 2


@pytest.mark.parametrize("outputs", [each, similarity, lambda *given: tokens(*given).flatten(0, 1)])
def test_the_slope_is_that_of_the_mean_loss_whatever_rows_depend_on(outputs):
    model = Towers().double()
    given, batches = classes_of(outputs), [drawn(), drawn(seed=1)]
    network = LiveNetwork(model, batches, lambda batch: given(model, batch), CROSS)
    gains = np.array([1.0, 0.0, 0.7, 1.2])
    losses, gradient = network.slope(gains)
    assert network.passes == 2
    np.testing.assert_allclose(gradient, network.form(gains).gradient, rtol=5e-3, atol=1e-5)
    np.testing.assert_allclose(losses, network.losses(gains))
    for head in range(4):
        sides = [network.loss(gains + sign * 1e-5 * np.eye(4)[head]) for sign in (1, -1)]
        assert gradient[head] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-7)


def test_heads_are_chosen_and_refitted_by_a_contrastive_loss():
    model, given = Towers().double(), classes_of(similarity)
    model.towers[1].load_state_dict(model.towers[0].state_dict())
    batches = [drawn(seed=seed)[:, [0, 0]] for seed in range(4)]  # pairs that are alike

    def outputs(batch):
        return given(model, batch)

    network = LiveNetwork(model, batches, outputs, CROSS)
    gains = refit_gains(model, batches, outputs, ["2-1"], loss=CROSS)
    assert network.loss(gains.values) < network.loss(np.array([1.0, 1.0, 0.0, 1.0])) - 0.003
    choice = choose_heads(model, batches, outputs, 1, loss=CROSS)
    trials = [network.loss(1 - np.eye(4)[head]) for head in range(4)]
    assert choice.gains.values[np.argmin(trials)] == 0


def test_half_precision_is_refused():
    model = Towers().bfloat16()
    given = classes_of(similarity)
    words = "7 rows of outputs depend on several of them each, as in a contrastive loss"
    with pytest.raises(CaptureError, match=words):
        curvature_scores(model, [drawn().bfloat16()], lambda batch: given(model, batch), loss=CROSS)
    given = classes_of(each)
    curvature_scores(model, [drawn().bfloat16()], lambda batch: given(model, batch), loss=CROSS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["alone", "contrastive", "mean", "pairs"])
def test_gradients_by_example_are_refused(name, dtype):
    model, batches = Towers().to(dtype), [drawn(1).to(dtype), drawn().to(dtype)]
    outputs = JOINED.get(name, each)

    def loss(batch):
        z = outputs(model, batch) if len(batch) > 1 else each(model, batch)
        return nn.functional.cross_entropy(z, torch.arange(len(z)) % 3, reduction="none")

    if name == "alone":
        assert (gradient_scores(model, batches, loss) > 0).all()
        return
    with pytest.raises(CaptureError, match="losses that depend on other examples of their batch"):
        gradient_scores(model, batches, loss)


@pytest.mark.parametrize("is_first", [True, False])
def test_every_column_of_a_loss_is_tested(is_first):
    model = Towers().double()

    def loss(batch):
        z = each(model, batch)[:, 0]
        columns = [(z - z.mean()) ** 2, z**2]
        return torch.stack(columns if is_first else columns[::-1], dim=1)

    with pytest.raises(CaptureError, match="losses that depend on other examples of their batch"):
        gradient_scores(model, [drawn()], loss)


@pytest.mark.parametrize("name", ["contrastive", "mean", "softmax", "pairs"])
def test_path_vectors_of_several_examples_are_refused(name):
    model = Towers().double()

    def outputs(batch):
        z = JOINED[name](model, batch)
        return z, torch.zeros_like(z)

    with pytest.raises(CaptureError, match="rows that depend on other examples of the batch"):
        capture(model, [drawn()], picture="tangent", outputs=outputs)
