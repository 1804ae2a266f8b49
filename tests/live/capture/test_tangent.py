"""Tangent picture of live models, against derivatives by their weights from autograd."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn
from torch.utils.checkpoint import checkpoint

import pathkernel_core as pk
from pathkernel_capture.capture import capture
from pathkernel_capture.network_choice import choose_network
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules

WIDTH, HEADS, EXAMPLES, TOKENS = 6, 2, 5, 4
WHOLE = 1000  # dimensions that leave nothing to project


class Values(nn.Module):
    """One layer whose heads map states by V^h of the full width, as the theory's do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(WIDTH, HEADS * 3), nn.Linear(WIDTH, HEADS * 3)
        self.v = nn.Linear(WIDTH, HEADS * WIDTH, bias=False)
        self.sum = nn.Linear(HEADS * WIDTH, WIDTH, bias=False)
        self.sum.weight = nn.Parameter(torch.eye(WIDTH).repeat(1, HEADS), requires_grad=False)
        self.readout = nn.Linear(WIDTH, 3)

    def forward(self, x):
        parts = (part(x).unflatten(-1, (HEADS, -1)) for part in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in parts)
        weights = (q @ k.mT).softmax(dim=-1)
        return self.readout(self.sum((weights @ v).transpose(1, 2).flatten(2))[:, 1:].mean(dim=1))

    def pathkernel_heads(self):
        return AttentionHeads(HEADS, self.sum, [self.q, self.k, self.v])


def inputs(examples=EXAMPLES, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def outputs_of(model):
    def outputs(batch):
        z = model(batch)
        return z, torch.zeros_like(z)

    return outputs


def value_kernels(model, examples):
    """Kernels of pairs of heads J_h J_h'ᵀ, (H, H, P, P), summed over outputs, by autograd."""
    slopes = [
        torch.autograd.grad(model(example[None])[0, output], model.v.weight)[0]
        for example in examples
        for output in range(3)
    ]
    slopes = torch.stack(slopes).unflatten(0, (len(examples), 3)).unflatten(2, (HEADS, -1))
    return torch.einsum("pchij,qcgij->hgpq", slopes, slopes).numpy()


def test_kernels_are_those_of_the_derivatives_by_the_value_maps():
    model = Values().double()
    captured = capture(
        model,
        list(inputs().split(3)),
        picture="tangent",
        outputs=outputs_of(model),
        projection=WHOLE,
    )
    assert captured.members == (((1, 1), (1, 2)),)
    assert captured.xi.shape == (EXAMPLES, HEADS, 3 * WIDTH * WIDTH)
    kernels = np.einsum("phi,qgi->hgpq", captured.xi, captured.xi)
    np.testing.assert_allclose(kernels, value_kernels(model, inputs()), atol=1e-12)
    # and the theory's mean kernels are theirs, by the number of entries
    problem = pk.Problem(captured.xi, captured.labels)
    mean = np.einsum("hgpp->hg", kernels) / (EXAMPLES * captured.xi.shape[2])
    np.testing.assert_allclose(problem.mean_kernels, mean, atol=1e-12)


def test_projected_kernels_are_the_whole_ones_in_the_mean():
    model = Values().double()
    drawn = []
    for seed in range(150):
        options = {"outputs": outputs_of(model), "projection": 4, "seed": seed}
        captured = capture(model, [inputs()], picture="tangent", **options)
        assert captured.xi.shape == (EXAMPLES, HEADS, 16)
        drawn.append(np.einsum("phi,qgi->hgpq", captured.xi, captured.xi))
    mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0) / np.sqrt(len(drawn))
    exact = value_kernels(model, inputs())
    assert (abs(mean - exact) < 4.5 * error).all()
    size = np.sqrt(np.einsum("hhpp->hp", exact))
    assert (error < 0.1 * np.einsum("hp,gq->hgpq", size, size)).all()


def test_training_and_test_sets_are_projected_alike():
    model = Values().double()
    options = {"picture": "tangent", "outputs": outputs_of(model), "projection": 4}
    both = capture(model, list(inputs().split(1)), **options)
    np.testing.assert_allclose(capture(model, [inputs()[2:]], **options).xi, both.xi[2:])
    other = capture(model, [inputs()], **options, seed=1)
    assert not np.allclose(other.xi, both.xi, rtol=0.1)
    longer = capture(model, [inputs()], **options, layers=[1])
    np.testing.assert_allclose(longer.xi, both.xi)


def encoder(norm_first=True, batch_first=True):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 8, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def check_against_weights(model, batch, outputs):
    """Compare vectors Ξ_h with derivatives by the heads' value weights, W_Oʰᵀ Ξ_h = ∂f/∂W_Vʰ."""
    # half of it: the derivative by W_O, Ξ_h W_Vʰᵀ up to biases, would see states in its place
    captured = capture(model, [batch], picture="tangent", outputs=outputs, projection=WHOLE)
    model.eval()
    columns = outputs(batch)[0].shape[1]
    position = 0
    for attention in attention_modules(model):
        stored = attention.output_map()
        states = attention.values().shape[-1]
        for head in range(attention.heads):
            xi = torch.tensor(captured.xi[:, position])
            xi = xi.reshape(len(xi), columns, stored.shape[0], states)
            yield attention, head, captured.members[0][position], xi
            position += 1
    assert position == captured.xi.shape[1]


@pytest.mark.parametrize(("norm_first", "batch_first"), [(True, True), (False, False)])
def test_two_layers_of_torch_nn(norm_first, batch_first):
    model, batch = encoder(norm_first, batch_first), inputs(TOKENS)  # as many as tokens

    def outputs(batch):
        if not batch_first:
            batch = batch.swapaxes(0, 1)
        hidden = model(batch)
        z = hidden.mean(dim=1 if batch_first else 0)[:, :2]
        return z, torch.zeros_like(z)

    size = WIDTH // HEADS
    for attention, head, member, xi in check_against_weights(model, batch, outputs):
        assert member == (attention.number, head + 1)
        rows = slice(2 * WIDTH + head * size, 2 * WIDTH + (head + 1) * size)
        for p, example in enumerate(batch.split(1)):
            for column in range(2):
                z = outputs(example)[0][0, column]
                (slope,) = torch.autograd.grad(z, attention.module.in_proj_weight)
                out = attention.output_map()[:, head * size : (head + 1) * size]
                np.testing.assert_allclose(out.T @ xi[p, column], slope[rows], atol=1e-12)


class Checkpointed(nn.Module):
    """Computes its attention again in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.attention, self.reentrant = Values(), reentrant

    def forward(self, x):
        # a later step that needs its input, too, so that attention is computed to its end
        def twice(x):
            return self.attention(x).sin()

        return checkpoint(twice, x, use_reentrant=self.reentrant)


def test_attention_that_runs_again_in_the_backward_pass():
    options = {"picture": "tangent", "projection": WHOLE}
    plain, model = Values().double(), Checkpointed(reentrant=False).double()
    expected = capture(
        plain, [inputs()], outputs=lambda x: (plain(x).sin(), torch.zeros(EXAMPLES, 3)), **options
    )
    actual = capture(model, [inputs()], outputs=outputs_of(model), **options)
    np.testing.assert_allclose(actual.xi, expected.xi, atol=1e-12)
    model = Checkpointed(reentrant=True).double()
    with pytest.raises(CaptureError, match="runs without gradients, as under reentrant"):
        capture(model, [inputs().requires_grad_()], outputs=outputs_of(model), **options)


def test_padding_changes_nothing():
    model, batch = encoder(), inputs(3)
    padding = torch.zeros(3, TOKENS, dtype=torch.bool)
    padding[1, 2:] = True

    def outputs(pair):
        hidden, shown = model(pair[0], src_key_padding_mask=pair[1]), ~pair[1][..., None]
        z = (hidden * shown).sum(dim=1) / shown.sum(dim=1)
        return z, torch.zeros_like(z)

    options = {"picture": "tangent", "outputs": outputs, "projection": WHOLE}
    padded = capture(model, [(batch, padding)], **options)
    alone = capture(model, [(batch[1:2, :2], padding[1:2, :2])], **options)
    np.testing.assert_allclose(padded.xi[1:2], alone.xi, atol=1e-12)


def test_labels_are_the_targets_of_outputs():
    model = Values().double()
    targets = torch.arange(float(EXAMPLES))
    classes = torch.tensor([0, 2, 1, 1, 0])

    def captured(outputs):
        return capture(model, [inputs()], picture="tangent", outputs=outputs)

    single = captured(lambda batch: (model(batch)[:, 0], targets))
    np.testing.assert_array_equal(single.labels, targets)
    several = captured(lambda batch: (model(batch), targets[:, None].expand(-1, 3)))
    assert several.labels.shape == (EXAMPLES, 3)
    counts = captured(lambda batch: (model(batch), classes[:, None].expand(-1, 3)))
    np.testing.assert_array_equal(counts.labels, classes[:, None].expand(-1, 3))
    of_classes = captured(lambda batch: (model(batch), classes))
    np.testing.assert_allclose(of_classes.labels, np.eye(3)[classes] - 1 / 3)
    # several outputs sum the kernels of each
    parts = [
        capture(
            *(model, [inputs()]),
            picture="tangent",
            outputs=lambda batch, column=column: (model(batch)[:, column], targets),
            projection=WHOLE,
        ).xi
        for column in range(3)
    ]
    kernels = sum(np.einsum("phi,qgi->hgpq", xi, xi) for xi in parts)
    np.testing.assert_allclose(kernels, value_kernels(model, inputs()), atol=1e-12)


def test_scaling_leaves_the_sizes_of_heads():
    model = Values().double()
    with torch.no_grad():
        model.q.weight[:3] *= 10  # a head that attends to few tokens, and one to many
    train, test = (
        capture(model, [inputs(30, seed)], picture="tangent", outputs=outputs_of(model))
        for seed in (1, 2)
    )
    scaled = train.scale_tokens(10)
    assert np.sqrt(np.mean(scaled.xi**2)) == pytest.approx(10)
    np.testing.assert_allclose(scaled.xi / train.xi, (scaled.xi / train.xi).flat[0])
    of_test = test.scale_tokens(10, like=train)
    np.testing.assert_allclose(of_test.xi / test.xi, (scaled.xi / train.xi).flat[0])
    np.testing.assert_allclose(scaled.scale_tokens(3).xi, train.scale_tokens(3).xi)


def test_scores_of_the_theory():
    torch.manual_seed(1)
    model, batch = encoder(), inputs(40)

    def outputs(batch):
        z = model(batch).mean(dim=1)[:, 0]
        return z, (z.detach() - z.detach().median() + 1e-6).sign()

    captured = capture(model, list(batch.split(20)), picture="tangent", outputs=outputs)
    choice = choose_network(captured, widths=(20, 100), temperatures=(0.1, 1.0), scales=(1, 10))
    contributions = choice.train.by_head(choice.solution.head_contributions)
    assert contributions["head"].values.tolist() == ["1-1", "1-2", "2-1", "2-2"]
    assert float(contributions.max()) == 1
    assert captured.task(test_fraction=0.25).approximation.startswith("derivatives of outputs")


def test_the_model_is_as_it_was():
    model = Values().double().train()
    before = copy.deepcopy(model.state_dict())
    capture(model, [inputs()], picture="tangent", outputs=outputs_of(model))
    with pytest.raises(ValueError, match="keep the gradients"):
        capture(
            *(model, [inputs()]),
            picture="tangent",
            outputs=lambda batch: (model(batch).detach(), torch.zeros(EXAMPLES, 3)),
        )
    assert model.training
    assert model.v.weight.requires_grad
    assert not model.sum.weight.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": None}, 'picture="tangent" needs outputs=, a function'),
        ({"picture": "heads"}, 'outputs is of picture="tangent"; with .heads. leave it out'),
        ({"projection": 0}, "projection must be a positive number of dimensions, not 0"),
        ({"readout": "mean"}, "readout, attend and masks are of other pictures"),
        ({"attend": "states"}, "readout, attend and masks are of other pictures"),
        ({"masks": []}, "readout, attend and masks are of other pictures"),
        ({"layers": [2]}, "layers must name some of the model's layers 1 to 1"),
        ({"skips": True}, 'skips are of picture="product"'),
    ],
)
def test_options_that_do_not_fit(options, message):
    model = Values().double()
    given = {"picture": "tangent", "outputs": outputs_of(model)} | options
    with pytest.raises((TypeError, ValueError), match=message):
        capture(model, [inputs()], **given)


class Unused(Values):
    """Describes a projection that does not run."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(HEADS * WIDTH, WIDTH)

    def pathkernel_heads(self):
        return AttentionHeads(HEADS, self.spare)


def test_a_projection_that_does_not_run():
    model = Unused().double()
    with pytest.raises(CaptureError, match="layer 1 has an output projection that ran 0 times"):
        capture(model, [inputs()], picture="tangent", outputs=outputs_of(model))


def test_outputs_that_do_not_fit():
    model = Values().double()

    def refused(outputs, message, batches=None):
        batches = [inputs()] if batches is None else list(batches)
        with pytest.raises(ValueError, match=message) as caught:
            capture(model, batches, picture="tangent", outputs=outputs)
        return caught.type

    zeros = torch.zeros(EXAMPLES, 3)
    refused(model, "outputs must give a pair for a batch")
    refused(lambda batch: (model(batch), zeros[:, 0]), "outputs gives shape")
    refused(lambda batch: (model(batch), zeros), "at least one batch", batches=())
    free = torch.zeros(EXAMPLES, requires_grad=True)
    refused(lambda batch: (free + 0 * model(batch).detach()[:, 0], zeros[:, 0]), "does not depend")
    assert refused(lambda batch: (free, zeros[:, 0]), "did not run") is CaptureError
    assert refused(lambda batch: (model(batch) + model(batch), zeros), "runs more than once")
    assert refused(lambda batch: (model(batch)[:2], zeros[:2]), "5 sequences for 2 rows")
    for sizes in ([2, 1], [1, 2]):
        refused(
            lambda batch: (model(batch)[:, : len(batch)], zeros[: len(batch), : len(batch)]),
            "equally many columns",
            batches=inputs(3).split(sizes),
        )


class Picture(Values):
    """The same layer on tokens in rows and columns of an image."""

    def forward(self, x):
        x = x.unflatten(1, (2, 2))
        parts = (part(x) for part in (self.q, self.k, self.v))
        q, k, v = (part.flatten(1, 2).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        heads = ((q @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        return self.readout(self.sum(heads.unflatten(1, (2, 2))).flatten(1, 2)[:, 1:].mean(dim=1))


@pytest.mark.parametrize("picture", ["heads", "tangent"])
def test_tokens_of_an_image_are_those_of_a_sequence(picture):
    """Values, outputs and derivatives have their tokens on two axes."""
    captured = []
    for model in (Values().double(), Picture().double()):
        options = {"readout": "mean"}
        if picture == "tangent":
            options = {"outputs": outputs_of(model), "projection": WHOLE}
        captured.append(capture(model, [inputs()], picture=picture, **options))
    np.testing.assert_allclose(captured[1].xi, captured[0].xi, atol=1e-12)
