"""Heads computed in ways that are not known are refused, beside steps that are, at random."""

import copy
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="live models are of PyTorch")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.removal import remove_heads

WIDTH, HEADS, SIZE, TOKENS = 12, 4, 3, 5
KNOWN = ("gate", "value norm", "sink", "sink behind the softmax")
UNKNOWN = {
    "mixed weights": "weights",
    "sharper weights": "weights",
    "a sink whose mass is given back": "weights",
    "weights less those of another head": "weights",
    "the difference of two softmaxes": "weights",
    "rolled values": "values",
    "values of the token before, too": "values",
    "a norm of all values at once": "values",
    "a gate by tanh": "outputs",
    "outputs in another order": "outputs",
    "a norm of outputs": "outputs",
    "outputs plus values": "outputs",
}


def unit(states):
    return states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class Norm(nn.Module):
    def forward(self, states):
        return unit(states)


class Attention(nn.Module):
    """Attention with parts by the names that libraries use, and steps that none of them has."""

    def __init__(self, steps):
        super().__init__()
        self.num_heads, self.head_dim, self.steps = HEADS, SIZE, steps
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH)
        if {"gate", "a gate by tanh"} & {*steps}:
            self.gate_proj = nn.Linear(WIDTH, HEADS)
        if "value norm" in steps:
            self.v_norm = Norm()
        if any("sink" in step for step in steps):
            self.sinks = nn.Parameter(torch.randn(HEADS))
        self.mixing = nn.Linear(HEADS, HEADS, bias=False)

    def forward(self, states):
        """Attend to states (batch, token, WIDTH)."""
        q, k, v = (
            part(states).unflatten(-1, (HEADS, SIZE))
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        v = self.values(self.v_norm(v) if "value norm" in self.steps else v)
        weights = self.weights(torch.einsum("bthi,bshi->bhts", q, k) / math.sqrt(SIZE))
        self.paid = weights
        heads = self.outputs(torch.einsum("bhts,bshi->bthi", weights, v), v)
        if hasattr(self, "gate_proj"):
            is_known = "a gate by tanh" not in self.steps
            activation = torch.sigmoid if is_known else torch.tanh
            heads = heads * activation(self.gate_proj(states))[..., None]
        return self.o_proj(heads.flatten(2))

    def weights(self, scores):
        if "sink behind the softmax" in self.steps:
            share = (scores.logsumexp(dim=-1) - self.sinks[:, None]).sigmoid()
            weights = scores.softmax(dim=-1) * share[..., None]
        elif hasattr(self, "sinks"):
            sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        if "the difference of two softmaxes" in self.steps:
            weights = weights - 0.5 * (2 * scores).softmax(dim=-1)
        if "a sink whose mass is given back" in self.steps:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if "mixed weights" in self.steps:
            weights = self.mixing(weights.movedim(1, -1)).movedim(-1, 1)
        if "sharper weights" in self.steps:
            weights = weights**2
        if "weights less those of another head" in self.steps:
            weights = weights - 0.5 * weights.roll(1, dims=1)
        return weights

    def values(self, values):
        if "rolled values" in self.steps:
            values = values.roll(1, dims=2)
        if "values of the token before, too" in self.steps:
            values = values + values.roll(1, dims=1)
        if "a norm of all values at once" in self.steps:
            values = unit(values.flatten(2)).unflatten(-1, (HEADS, SIZE))
        return values

    def outputs(self, heads, values):
        if "outputs in another order" in self.steps:
            heads = heads[:, :, [0, 2, 1, 3]]
        if "a norm of outputs" in self.steps:
            heads = unit(heads)
        return heads + values if "outputs plus values" in self.steps else heads


class Block(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.self_attn = Attention(steps)

    def forward(self, states):
        """Return states (batch, token, WIDTH)."""
        return states + self.self_attn(states)


def network(steps, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(Block(steps), Block(steps)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model, torch.randn(3, TOKENS, WIDTH).double()


def check_refused(steps, seed=0):
    """Every function refuses the model, which computes as before."""
    model, inputs = network(steps, seed)
    before, parts = copy.deepcopy(model.state_dict()), [*model.modules()]
    with torch.no_grad():
        whole = model(inputs)
    words = r"layer 1 \(0.self_attn\) (passes on other than|pays attention whose sum|"
    words += r"does not show which of 2 softmaxes|gives no attention weights that can be seen)"
    with torch.no_grad(), pytest.raises(CaptureError, match=words), heads_off(model, [(1, 2)]):
        model(inputs)
    for smaller in (False, True):
        with pytest.raises(CaptureError, match=words):
            remove_heads(model, [(1, 2)], batch=inputs, smaller=smaller)
    with pytest.raises(CaptureError, match=words):
        capture(model, [inputs], readout="mean")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [*model.modules()] == parts
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in parts)
    with torch.no_grad():
        assert torch.equal(model(inputs), whole)


@pytest.mark.parametrize("step", UNKNOWN)
def test_an_unknown_step_is_refused(step):
    check_refused([step])


@hypothesis.given(
    st.lists(st.sampled_from([*UNKNOWN]), min_size=1, max_size=3, unique_by=UNKNOWN.get),
    st.sets(st.sampled_from(KNOWN)),
    st.integers(0, 2**32 - 1),
)
@hypothesis.settings(max_examples=15)
def test_unknown_steps_beside_known_ones_are_refused(unknown, known, seed):
    check_refused([*unknown, *known], seed)


@pytest.mark.parametrize("step", KNOWN)
def test_the_same_module_with_a_known_step_is_not(step):
    model, inputs = network([step], 0)
    with torch.no_grad():
        whole = model(inputs)
        with heads_off(model, [(1, 2)]):
            assert not torch.allclose(model(inputs), whole)
    captured = capture(model, [inputs], readout="mean")
    assert captured.heads == (1 + 2 * HEADS,)
    if "sink" in step:  # which leave the tokens a part of the attention
        for layer, block in enumerate(model):
            weights = block.self_attn.paid.mean(dim=2)
            assert float(weights.sum(dim=-1).min()) < 0.9
            xi = captured.xi[:, 1 + layer * HEADS :][:, :HEADS]
            np.testing.assert_allclose(xi, weights @ inputs, atol=1e-12)
