"""The check of families finds wrong descriptions, and tells refusals from faults."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="live models are of PyTorch")
from torch import nn
from torch.nn import functional as F

import pathkernel as pk
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.testing import _distance, check_heads, reason

WIDTH, HEADS, GROUPS, SIZE = 12, 4, 2, 3
STATES = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1))
REFUSED = "layer 1 keeps its shape, since the order of the rows in its projections is not known"


class Attention(nn.Module):
    """Grouped attention that describes its heads."""

    def __init__(self):
        super().__init__()
        self.heads, self.kv_heads = HEADS, GROUPS
        self.queries, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.keys, self.values = (nn.Linear(WIDTH, GROUPS * SIZE) for _ in range(2))
        self.further = nn.Linear(WIDTH, WIDTH)

    def forward(self, states):
        """Attend to states (batch, token, WIDTH)."""
        q = self.queries(states).unflatten(-1, (self.heads, SIZE)).transpose(1, 2)
        k, v = (
            part(states).unflatten(-1, (self.kv_heads, SIZE)).transpose(1, 2)
            for part in (self.keys, self.values)
        )
        heads = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.further(self.out(heads.transpose(1, 2).flatten(2)))

    def pathkernel_heads(self):
        """Describe the heads."""
        return pk.AttentionHeads(self.heads, self.out, [self.queries, self.keys, self.values])


def network(describe=None):
    torch.manual_seed(0)
    kind = Attention if describe is None else type("Own", (Attention,), {})
    if describe is not None:
        kind.pathkernel_heads = describe
    model = nn.Sequential(kind(), kind()).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def test_a_family_that_holds():
    model = network()
    before = copy.deepcopy(model.state_dict())
    answers = pk.plugins.check_heads(model, STATES, "out", heads=HEADS)
    assert [*answers] == ["off", "mean", "gains", "zero", "smaller", "saved", "loaded"]
    assert answers.pop("loaded") == "load_model with model="
    assert {*answers.values()} == {"yes"}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model[0].out.in_features == WIDTH


def test_what_is_refused_is_told():
    model = network(lambda self: pk.AttentionHeads(HEADS, self.out))
    answers = check_heads(model, STATES, "out", [HEADS, HEADS])
    assert answers["smaller"] == REFUSED
    assert answers["zero"] == answers["saved"] == "yes"


def test_two_readings_of_one_refusal():
    message = (
        "Net with heads taken out does not compute what it does with them off (ValueError: outputs "
        "differ by 2, the largest of which is 3 (or 4)); it is left as it was. "
    )
    zero = "Leave smaller out, and their weights are set to zero"
    fault = "Net with heads taken out does not compute what it does with them off"
    assert reason(CaptureError(message + zero)) == fault
    cause = "Of heads that share keys and values take whole groups, or as many of each. "
    assert reason(CaptureError(message + cause + zero)) == cause.rstrip(". ")


@pytest.mark.parametrize(
    ("describe", "projection", "words"),
    [
        (None, "o_proj", "0 modules end with 'o_proj', but list_heads shows 2 layers"),
        (lambda self: pk.AttentionHeads(2, self.out), "out", r"have \[2, 2\] heads, not \[4, 4\]"),
        # nothing is compared with attention: the hooks alone tell
        (lambda self: pk.AttentionHeads(HEADS, self.further), "out", "head 1-1 off: .* differ by"),
    ],
)
def test_wrong_descriptions(describe, projection, words):
    with pytest.raises(AssertionError, match=words):
        check_heads(network(describe), STATES, projection, HEADS)


def test_a_projection_that_is_not_run():
    """Its weight is read, as by WavLM."""
    model = network()
    projection = model[0].out
    model[0].forward = lambda states: F.linear(states, projection.weight, projection.bias)
    with pytest.raises(AssertionError, match="of layer 1 is not run as a module"):
        check_heads(model, STATES, "out", HEADS)


def test_a_batch_that_proves_nothing():
    model = network()
    nn.init.zeros_(model[1].further.weight)
    with pytest.raises(AssertionError, match="head 1-1 off, which proves nothing"):
        check_heads(model, STATES, "out", HEADS)


def test_means_leave_padding_out():
    """And attention of torch.nn reads its projection, which no hook sees."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    for mask in (padding, torch.zeros_like(padding)):
        batch = {"src": STATES, "src_key_padding_mask": mask}
        answers = check_heads(model, batch, "self_attn.out_proj", HEADS)
        assert answers == dict.fromkeys(answers, "yes") | {"loaded": "load_model with model="}


def test_outputs_that_are_not_finite():
    one = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])
    assert _distance([one, one[:0]], [one.clone(), one[:0]]) == 0
    for number in range(4):
        other = one.clone()
        other[number] = torch.nan if number < 3 else 0.0
        assert _distance([one], [other]) == _distance([other], [one]) == float("inf")
