"""Steps within the heads of attention, in all combinations, against hooks and sums of one's own."""

import copy
import itertools
import math
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="live models are of PyTorch")

from torch import nn

import pathkernel as pk
from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.head_scores import gradient_scores
from pathkernel_pruning.live.removal import remove_heads

WIDTH, HEADS, SIZE, EXAMPLES, TOKENS = 12, 4, 5, 3, 6
CHOICES = {
    "gate": (None, "of heads", "of entries", "behind queries"),
    "groups": (4, 2),
    "value_norm": (False, True),
    "joint_norm": (False, True),
    "sinks": (False, True),
    "scale": (1.0, 0.6),
}
ALL = [dict(zip(CHOICES, values)) for values in itertools.product(*CHOICES.values())]
# queries in front of a gate have no norm over all of them in any family
ALL = [steps for steps in ALL if not (steps["gate"] == "behind queries" and steps["joint_norm"])]
STEPS = [
    ALL[0] | {name: value} for name, values in CHOICES.items() for value in values[1:]
] + random.Random(0).sample(ALL, 12)


class Norm(nn.Module):
    """Root mean square norm of the last axis."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(size))

    def forward(self, states):
        """Normalise states (…, size)."""
        return self.weight * states / states.square().mean(-1, keepdim=True).add(1e-6).sqrt()


class Attention(nn.Module):
    """Causal attention with steps within its heads, by the names of parts that libraries use."""

    def __init__(self, gate, groups, value_norm, joint_norm, sinks, scale):
        super().__init__()
        self.head_dim, self.num_key_value_groups, self.v_scale = SIZE, HEADS // groups, scale
        width, behind = HEADS * SIZE, gate == "behind queries"
        self.q_proj = nn.Linear(WIDTH, width * (1 + behind), bias=False)
        self.k_proj = nn.Linear(WIDTH, groups * SIZE)
        self.v_proj = nn.Linear(WIDTH, groups * SIZE)
        self.o_proj = nn.Linear(width, WIDTH)
        if gate is not None and not behind:
            self.gate_proj = nn.Linear(WIDTH, HEADS if gate == "of heads" else width)
        if value_norm:
            self.v_norm = Norm(SIZE)
        if joint_norm:
            self.q_norm, self.k_norm = Norm(width), Norm(groups * SIZE)
        self.sinks = nn.Parameter(torch.randn(HEADS)) if sinks else None
        self.behind = behind

    def forward(self, states):
        """Attend to states (batch, token, WIDTH)."""
        queries, factors = self.q_proj(states), None
        if self.behind:
            queries, factors = queries.unflatten(-1, (-1, 2, SIZE)).unbind(-2)
            queries, factors = queries.flatten(-2), torch.sigmoid(factors)
        elif hasattr(self, "gate_proj"):
            count = self.o_proj.in_features // SIZE
            factors = torch.sigmoid(self.gate_proj(states)).unflatten(-1, (count, -1))
        keys, values = self.k_proj(states), self.v_proj(states).unflatten(-1, (-1, SIZE))
        if hasattr(self, "q_norm"):
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        if hasattr(self, "v_norm"):
            values = self.v_norm(values)
        queries = queries.unflatten(-1, (-1, SIZE)).transpose(1, 2)
        keys, values = (
            part.transpose(1, 2).repeat_interleave(self.num_key_value_groups, dim=1)
            for part in (keys.unflatten(-1, (-1, SIZE)), values * self.v_scale)
        )
        scores = queries @ keys.mT / math.sqrt(SIZE)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
        if self.sinks is not None:
            sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        self.weights = scores.softmax(-1)[..., : keys.shape[-2]]
        heads = (self.weights @ values).transpose(1, 2)
        return self.o_proj((heads if factors is None else heads * factors).flatten(2))


class Block(nn.Module):
    """Attention past a skip connection."""

    def __init__(self, steps):
        super().__init__()
        self.self_attn = Attention(**steps)

    def forward(self, states):
        """Return states (batch, token, WIDTH)."""
        return states + self.self_attn(states)


def network(steps):
    torch.manual_seed(1)
    return nn.Sequential(Block(steps), Block(steps)).double().eval()


@pytest.fixture
def inputs():
    return torch.randn(EXAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2)).double()


def run_changed(model, layer, inputs, change):
    """Outputs of a model with a change of the heads (batch, token, H, SIZE) of a layer."""

    def hook(_, given):
        return (change(given[0].unflatten(-1, (-1, SIZE)).clone()).flatten(-2),)

    handle = model[layer - 1].self_attn.o_proj.register_forward_pre_hook(hook)
    with torch.no_grad():
        outputs = model(inputs)
    handle.remove()
    return outputs


def heads_of(model, layer, inputs):
    """Outputs of the heads of a layer, (batch, token, H, SIZE)."""
    seen = []
    run_changed(model, layer, inputs, lambda heads: seen.append(heads) or heads)
    return seen[0]


def without(head, value=0.0):
    def change(heads):
        heads[:, :, head - 1] = value
        return heads

    return change


def same(given, expected):
    np.testing.assert_allclose(given.detach(), expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_steps_are_part_of_the_head(steps, inputs):
    model = network(steps)
    with torch.no_grad(), heads_off(model, [(2, 3)]):
        off = model(inputs)
    same(off, run_changed(model, 2, inputs, without(3)))
    mean = heads_of(model, 2, inputs)[:, :, 2].mean(dim=(0, 1))
    with torch.no_grad(), heads_off(model, [(2, 3)], replace="mean", batches=[inputs]):
        same(model(inputs), run_changed(model, 2, inputs, without(3, mean)))
    slopes = gradient_scores(
        model, [inputs], lambda batch: model(batch).square().sum((1, 2)), normalised=False
    )
    losses = []
    for factor in (1 + 1e-5, 1 - 1e-5):

        def scale(heads, factor=factor):
            heads[:, :, 2] *= factor
            return heads

        losses.append(run_changed(model, 2, inputs, scale).square().sum((1, 2)))
    slope = ((losses[0] - losses[1]) / 2e-5).abs().mean()
    assert float(slopes.sel(head="2-3")) == pytest.approx(float(slope), rel=1e-6)
    zeroed = copy.deepcopy(model)
    remove_heads(zeroed, [(2, 3)], batch=inputs)
    with torch.no_grad():
        same(zeroed(inputs), off)


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_heads_are_taken_out_with_their_steps(steps, inputs):
    model = network(steps)
    first, second = model[0].self_attn, model[1].self_attn

    def gone(heads):
        heads[:, :, :2] = 0
        return heads

    expected = run_changed(model, 2, inputs, gone)
    count = sum(parameter.numel() for parameter in model.parameters())
    remove_heads(model, [(2, 1), (2, 2)], batch=inputs, smaller=True)  # a group
    with torch.no_grad():
        same(model(inputs), expected)
    assert second.o_proj.in_features == 2 * SIZE
    assert sum(parameter.numel() for parameter in model.parameters()) < count
    with torch.no_grad(), heads_off(model, [(1, 2), (1, 4), (2, 2)]):
        expected = model(inputs)
    # of every group one, and of a layer that has lost heads before
    remove_heads(model, [(1, 2), (1, 4), (2, 2)], batch=inputs, smaller=True)
    with torch.no_grad():
        same(model(inputs), expected)
    assert (first.o_proj.in_features, second.o_proj.in_features) == (2 * SIZE, SIZE)


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_the_picture_has_sinks_and_gates_of_whole_heads(steps, inputs):
    model = network(steps)
    if steps["gate"] in ("of entries", "behind queries"):
        with pytest.raises(CaptureError, match="by a gate of its own, which is no attention"):
            capture(model, [inputs], readout="mean")
        return
    with torch.no_grad():
        model(inputs)
        states, expected = inputs, [inputs.mean(dim=1)[:, None]]
        for block in model:
            attention = block.self_attn.weights
            if steps["gate"] is not None:
                gate = torch.sigmoid(block.self_attn.gate_proj(states))
                attention = attention * gate.mT[..., None]
            expected.append((attention @ inputs[:, None]).mean(dim=2))
            states = block(states)
    same(torch.tensor(capture(model, [inputs], readout="mean").xi), torch.cat(expected, dim=1))


class OneOfItsOwn(nn.Module):
    """Attention that no family knows, whose heads have a gate by tanh and a sink."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(WIDTH, HEADS * SIZE) for _ in range(3))
        self.mix, self.factors = nn.Linear(HEADS * SIZE, WIDTH), nn.Linear(WIDTH, HEADS)
        self.rest = nn.Parameter(torch.randn(HEADS))

    def forward(self, states):
        """Attend to states (batch, token, WIDTH)."""
        q, k, v = (part(states).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in self.maps)
        scores = q @ k.mT
        rest = self.rest[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, rest], dim=-1).softmax(-1)[..., :-1]
        factors = torch.tanh(self.factors(states))
        return states + self.mix(((weights @ v).transpose(1, 2) * factors[..., None]).flatten(2))

    def pathkernel_heads(self):
        """Describe the heads."""
        count = self.mix.in_features // SIZE
        return AttentionHeads(
            count, self.mix, self.maps, gate=(self.factors, torch.tanh), parameters=[self.rest]
        )


def test_a_class_of_ones_own_describes_its_steps(inputs):
    torch.manual_seed(3)
    model = nn.Sequential(OneOfItsOwn(), OneOfItsOwn()).double().eval()
    with torch.no_grad(), heads_off(model, [(1, 2), (2, 1)]):
        expected = model(inputs)
    assert capture(model, [inputs], readout="mean").xi.shape == (EXAMPLES, 2 * HEADS + 1, WIDTH)
    remove_heads(model, [(1, 2), (2, 1)], batch=inputs, smaller=True)
    with torch.no_grad():
        same(model(inputs), expected)
    assert model[0].rest.shape == (HEADS - 1,)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"gate": 3}, TypeError, "gate must be a pair, a module and a function"),
        ({"gate": torch.tanh}, TypeError, "gate must be a pair, a module and a function"),
        ({"value_norm": "rms"}, TypeError, "value_norm must be a module"),
        ({"key_norm": 2}, TypeError, "key_norm must be a module"),
        ({"value_scale": "1"}, TypeError, "value_scale must be a number"),
        ({"parameters": [torch.ones(3)]}, CaptureError, "with 4 entries on the first axis"),
        ({"parameters": ["sinks"]}, CaptureError, "with 4 entries on the first axis"),
    ],
)
def test_steps_of_other_kinds_are_refused(arguments, error, match):
    output = nn.Linear(HEADS * SIZE, WIDTH)
    with pytest.raises(error, match=match):
        AttentionHeads(HEADS, output, **arguments)


@pytest.mark.parametrize("fault", ["another function", "another module", "left out"])
def test_a_gate_that_is_not_the_modules_is_told(fault, inputs):
    class Wrong(OneOfItsOwn):
        def pathkernel_heads(self):
            """Describe the heads wrongly."""
            gates = {
                "another function": (self.factors, torch.sigmoid),
                "another module": (nn.Linear(WIDTH, HEADS).double(), torch.tanh),
                "left out": None,
            }
            return AttentionHeads(HEADS, self.mix, self.maps, gate=gates[fault])

    torch.manual_seed(3)
    model = nn.Sequential(Wrong()).double().eval()
    for use in (
        lambda: capture(model, [inputs], readout="mean"),
        lambda: remove_heads(model, [(1, 1)], batch=inputs),
        lambda: pk.magnitude_scores(model, inputs),
    ):
        with pytest.raises(CaptureError, match="passes on other than its attention times its"):
            use()


@pytest.mark.parametrize(
    ("factors", "fault"),
    [
        (lambda z: None, r"gate must return \(batch, token, 4\), or .* but returned None"),
        (lambda z: z[..., None], r"gate must return .* but returned \(3, 6, 4, 1\)"),
        (lambda z: z[..., :3], r"gate must return .* but returned \(3, 6, 3\)"),
        (
            lambda z: z.missing,
            "the function of gate raised AttributeError: .* the output of Linear",
        ),
    ],
)
def test_factors_of_another_shape_are_told(factors, fault, inputs):
    class Wrong(OneOfItsOwn):
        def pathkernel_heads(self):
            """Describe the heads with factors of another shape."""
            return AttentionHeads(HEADS, self.mix, self.maps, gate=(self.factors, factors))

    model = nn.Sequential(Wrong()).double().eval()
    for use in (
        lambda: capture(model, [inputs], readout="mean"),
        lambda: remove_heads(model, [(1, 1)], batch=inputs),
    ):
        with pytest.raises(CaptureError, match=fault):
            use()


@pytest.mark.parametrize(("heads", "off"), [(6, [1]), (6, [2, 3, 5]), (2, [2]), (8, [1, 6])])
def test_a_norm_of_all_heads_at_once_is_known_after_a_cut(heads, off, monkeypatch, inputs):
    monkeypatch.setitem(globals(), "HEADS", heads)
    model = network(ALL[0] | {"groups": heads, "joint_norm": True})
    with torch.no_grad(), heads_off(model, [(2, head) for head in off]):
        expected = model(inputs)
    remove_heads(model, [(2, head) for head in off], batch=inputs, smaller=True)
    with torch.no_grad():
        same(model(inputs), expected)
    assert pk.list_heads(model)["heads"].tolist() == [heads, heads - len(off)]
    assert pk.list_heads(model)["groups"].tolist() == [heads, heads - len(off)]
    if heads - len(off) > 1:
        with torch.no_grad(), heads_off(model, [(2, 1)]):
            off_again = model(inputs)
        same(off_again, run_changed(model, 2, inputs, without(1)))
    assert capture(model, [inputs]).heads == (2 * heads - len(off) + 1,)


class Tabled(Attention):
    """Attention whose scores have a bias by distance, of as many entries as there are heads."""

    def __init__(self):
        super().__init__(**ALL[0])
        self.distances = nn.Parameter(torch.randn(HEADS))

    def forward(self, states):
        """Attend to states (batch, token, WIDTH)."""
        count = states.shape[1]
        distances = (torch.arange(count)[:, None] - torch.arange(count)).abs()
        q, k, v = (
            part(states).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        bias = self.distances[distances.clamp(max=len(self.distances) - 1)]
        return self.o_proj(((q @ k.mT + bias).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_parameter_with_as_many_entries_by_chance_is_left_whole(inputs):
    torch.manual_seed(4)
    model = nn.Sequential(Tabled()).double().eval()
    with torch.no_grad(), heads_off(model, [(1, 4)]):
        expected = model(inputs)
    remove_heads(model, [(1, 4)], batch=inputs[:, :2], smaller=True)
    assert model[0].distances.shape == (HEADS,)
    with torch.no_grad():
        same(model(inputs), expected)


class Summed(Attention):
    """Attention with a sink in front of the keys, or a part of the weights kept for statistics."""

    def __init__(self, sink):
        super().__init__(**ALL[0])
        self.sink = sink

    def forward(self, states, hidden):
        """Attend to states (batch, token, WIDTH) but those that are hidden, (batch, token)."""
        q, k, v = (
            part(states).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.sink:
            k, v = (nn.functional.pad(part, (0, 0, 1, 0)) for part in (k, v))
            hidden = nn.functional.pad(hidden, (1, 0))
        weights = (q @ k.mT).masked_fill(hidden[:, None, None], -math.inf).softmax(-1)
        self.first = weights[..., :1].mean()
        rest = weights[..., 1:] @ v[..., 1:, :] if self.sink else weights @ v
        return self.o_proj(rest.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("sink", [False, True])
def test_other_parts_of_the_weights_are_no_sinks(sink, inputs):
    torch.manual_seed(5)
    model = Summed(sink).double().eval()
    hidden = torch.zeros(EXAMPLES, TOKENS, dtype=torch.bool)
    hidden[1, 4:] = True
    seen = []
    handle = model.o_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        whole = model(inputs, hidden)
        handle.remove()
        mean = seen[0].unflatten(-1, (-1, SIZE))[~hidden].mean(dim=0)
        batch = {"states": inputs, "hidden": hidden}
        off = heads_off(model, [(1, 2)], replace="mean", batches=[batch])
        if sink:  # there are more keys than tokens, of which a mask has to tell the padding
            with pytest.raises(CaptureError, match="which of its 6 tokens are padding"), off:
                pass
            return
        with off:
            given = whole - model(inputs, hidden)
        heads = seen[0].unflatten(-1, (-1, SIZE)).clone()
        heads[:, :, 1] -= mean[1]
        heads[:, :, [0, 2, 3]] = 0
        same(given, heads.flatten(-2) @ model.o_proj.weight.T)


def test_a_gate_of_fewer_rows_than_heads_is_left_whole(inputs):
    class Shared(OneOfItsOwn):
        """One factor for all heads."""

        def __init__(self):
            super().__init__()
            self.factors = nn.Linear(WIDTH, 1)

        def pathkernel_heads(self):
            """Describe the heads."""
            count = self.mix.in_features // SIZE
            gate = (self.factors, lambda z: torch.tanh(z).expand(*z.shape[:-1], count))
            return AttentionHeads(count, self.mix, self.maps, gate=gate, parameters=[self.rest])

    torch.manual_seed(3)
    model = nn.Sequential(Shared()).double().eval()
    with torch.no_grad(), heads_off(model, [(1, 3)]):
        expected = model(inputs)
    remove_heads(model, [(1, 3)], batch=inputs, smaller=True)
    with torch.no_grad():
        same(model(inputs), expected)


class ByGroups(Attention):
    """Attention whose softmax has an axis of groups and one of their heads."""

    def forward(self, states):
        """Attend to states (batch, token, WIDTH)."""
        groups = self.v_proj.out_features // SIZE
        q = self.q_proj(states).unflatten(-1, (groups, -1, SIZE)).movedim(1, 3)
        k, v = (
            part(states).unflatten(-1, (groups, 1, SIZE)).movedim(1, 3)
            for part in (self.k_proj, self.v_proj)
        )
        heads = (q @ k.mT).softmax(-1) @ v
        return self.o_proj(heads.movedim(3, 1).flatten(2))


def test_weights_by_groups_are_those_of_the_heads(inputs):
    torch.manual_seed(7)
    model = nn.Sequential(ByGroups(**ALL[0] | {"groups": 2})).double().eval()
    q, k = (
        part(inputs).unflatten(-1, (-1, SIZE)).transpose(1, 2)
        for part in (model[0].q_proj, model[0].k_proj)
    )
    attention = (q @ k.repeat_interleave(2, dim=1).mT).softmax(-1)
    expected = [inputs.mean(dim=1)[:, None], (attention @ inputs[:, None]).mean(dim=2)]
    given = capture(model, [inputs], readout="mean").xi
    same(torch.tensor(given), torch.cat(expected, dim=1))


def test_self_attention_of_an_encoder_whose_name_is_of_crosses():
    model = nn.ModuleDict({"cross_encoder": nn.Sequential(Block(ALL[0]))})
    assert pk.list_heads(model)["attention"].tolist() == ["self"]
