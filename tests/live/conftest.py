"""Attention of a model by the files route: matrices and tokens in, attentioned inputs out."""

import numpy as np
import pytest

import pathkernel_core as pk


def side_by_side(matrices, attended, tokens, read):
    """All heads and the identity path, from matrices (H, M, M) of each layer, query first."""
    by_path = [[read @ tokens]]
    by_path += [[read @ omega @ x for omega in layer] for layer, x in zip(matrices, attended)]
    return np.concatenate(by_path)


def product(matrices, tokens, readout, *, skips=False):
    """Every path, by the core, from matrices (P, H, M, M) of each layer, query first."""
    identity = np.eye(tokens.shape[1])[None, None]
    identity = np.broadcast_to(identity, (len(tokens), 1, *identity.shape[2:]))
    if skips:
        matrices = [np.concatenate([identity, layer], axis=1) for layer in matrices]
    layers = [pk.Attention(layer.swapaxes(-1, -2)) for layer in matrices]
    return pk.attentioned_inputs(tokens, layers, readout)


@pytest.fixture(scope="session")
def files_route():
    """``side_by_side`` and ``product``."""
    return side_by_side, product


def gradients_and_values(model, batch, output):
    """Gradient scores by finite differences of a factor, and values by what heads pass on.

    ``output`` gives numbers (batch, …) that depend on all tokens' last states.
    """
    torch = pytest.importorskip("torch")
    from pathkernel_capture.capture import capture
    from pathkernel_models.families.recognition import attention_modules
    from pathkernel_pruning.live.head_scores import gradient_scores

    def loss(batch):
        return output(batch).flatten(1).square().sum(dim=1)

    found = gradient_scores(model, [batch], loss, normalised=False)
    seen = capture(model, [batch], readout="first", attend="states")
    xi = dict(zip(seen.members[0], torch.tensor(seen.xi).unbind(1)))
    model.eval()
    for layer, attention in enumerate(attention_modules(model), start=1):
        passed = []
        with (
            torch.no_grad(),
            attention.change_outputs(lambda z, passed=passed: passed.append(z) or z),
        ):
            output(batch)
        first = passed[0][:, 0].reshape(len(passed[0]), attention.heads, -1)
        for head in range(1, attention.heads + 1):
            values = attention.values()[head - 1].detach()
            # differences between examples, in which biases cancel
            own = (xi[layer, head][1:] - xi[layer, head][:1]) @ values.T
            given = first[1:, head - 1] - first[:1, head - 1]
            np.testing.assert_allclose(own, given, atol=1e-6)
            weight, axis = attention.output.data, attention.output_axis
            size = weight.shape[axis] // attention.heads
            part = weight.narrow(axis, (head - 1) * size, size)
            kept, losses = part.clone(), []
            for factor in (1.01, 0.99):  # some models normalise in single precision
                part.copy_(factor * kept)
                with torch.no_grad():
                    losses.append(loss(batch))
            part.copy_(kept)
            slope = ((losses[0] - losses[1]) / 0.02).abs().mean()
            assert float(found.sel(head=f"{layer}-{head}")) == pytest.approx(
                float(slope), rel=0.01, abs=1e-6
            )


@pytest.fixture(scope="session")
def check_scores():
    """``gradients_and_values``."""
    return gradients_and_values


def tangents_and_weights(model, batch, output):
    """Vectors Ξ_h of the tangent picture by derivatives of W_O, Ξ_h W_Vʰᵀ = ∂f/∂W_Oʰ.

    ``output`` gives numbers (batch, C). All biases become 0, since those of values would add to it.
    """
    torch = pytest.importorskip("torch")
    from pathkernel_capture.capture import capture
    from pathkernel_models.families.recognition import attention_modules

    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.zeros_(parameter)

    def outputs(batch):
        z = output(batch)
        return z, torch.zeros_like(z)

    seen = capture(model, [batch], picture="tangent", outputs=outputs, projection=10_000)
    xi = dict(zip(seen.members[0], torch.tensor(seen.xi).unbind(1)))
    z = output(batch)
    for layer, attention in enumerate(attention_modules(model), start=1):
        weight, axis = attention.output, attention.output_axis
        slopes = [
            torch.autograd.grad(z[p, c], weight, retain_graph=True)[0]
            for p in range(z.shape[0])
            for c in range(z.shape[1])
        ]
        for head in range(1, attention.heads + 1):
            values = attention.values()[head - 1].detach()
            size = weight.shape[axis] // attention.heads
            rows = [slope.movedim(axis, -1) for slope in slopes]
            by_head = [slope[:, (head - 1) * size : head * size] for slope in rows]
            by_head = torch.stack(by_head).unflatten(0, z.shape)
            vectors = xi[layer, head].reshape(*z.shape, by_head.shape[-2], -1)
            scale = float(by_head.abs().max())
            assert scale > 1e-9
            np.testing.assert_allclose(vectors @ values.mT, by_head, atol=1e-6 * scale)


@pytest.fixture(scope="session")
def check_tangents():
    """``tangents_and_weights``."""
    return tangents_and_weights
