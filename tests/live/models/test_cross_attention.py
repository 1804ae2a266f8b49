"""Heads of cross-attention of transformers against hooks of the tests' own."""

import copy
from contextlib import ExitStack

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)
from encoders_and_decoders import (
    GENERATED,
    HEADS,
    KINDS,
    SOURCE,
    batch_of,
    built,
    crossed_layers,
    logits_of,
    put_in,
    sources_of,
)
from torch import nn
from torch.nn import functional as F

from pathkernel_capture.capture import capture
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.cross_attention import include_cross_attention
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.head_choice import choose_heads
from pathkernel_pruning.live.head_scores import gradient_scores
from pathkernel_pruning.live.removal import remove_heads

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own
FAMILIES = ("bart", "t5", "whisper")
ROUNDING = 1e-5  # of the largest logit; T5 adds its bias in single precision


def assert_same(outputs, expected, whole):
    """Outputs are those expected to rounding, and not those of the whole model."""
    size = expected.abs().max()
    assert (outputs - expected).abs().max() < ROUNDING * size
    assert (whole - expected).abs().max() > 1e-3 * size


def included(name):
    model, batch = built(name)
    include_cross_attention(model)
    return model, batch


def test_layers_are_numbered_anew_only_if_asked():
    model, _ = built("bart")
    before = list_heads(model)
    assert before["attention"].tolist() == ["self"] * 4
    table = include_cross_attention(model)
    assert table["attention"].tolist() == ["self"] * 3 + ["cross", "self", "cross"]
    assert table["module"][4] == "model.decoder.layers.0.encoder_attn"
    for same in (include_cross_attention(model), list_heads(copy.deepcopy(model))):
        assert same.equals(table)
    one = include_cross_attention(model, [table["module"][6]])
    assert one["attention"].tolist() == ["self"] * 4 + ["cross"]
    assert include_cross_attention(model, []).equals(before)


def test_what_cannot_be_included():
    model, _ = built("bart")
    with pytest.raises(
        ValueError, match=r"names 'encoder', which is no cross-.* choose from model"
    ):
        include_cross_attention(model, ["encoder"])
    with pytest.raises(TypeError, match=r"must be a list of names .* but is 'decoder'"):
        include_cross_attention(model, "decoder")
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, but is 'bart'"):
        include_cross_attention("bart")
    with pytest.raises(CaptureError, match="BartEncoder has no attention to another sequence"):
        include_cross_attention(model.model.encoder)
    crossed = nn.Sequential(model.model.decoder.layers[0].encoder_attn)
    crossed.add_module("encoder_attn", crossed[0])
    with pytest.raises(CaptureError, match=r"call pathkernel.include_cross_attention first"):
        list_heads(nn.ModuleDict({"encoder_attn": crossed[0]}))


def inputs_of(projections, model, batch):
    """Outputs of the heads, side by side, of every projection."""
    seen = []
    with ExitStack() as stack:
        for projection in projections:
            handle = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
            stack.callback(handle.remove)
        logits_of(model, batch)
    return seen


@pytest.mark.parametrize("name", FAMILIES)
def test_off_and_at_their_mean(name):
    """Means are over the tokens of the decoder, which ask, without their padding."""
    model, batch = included(name)
    whole = logits_of(model, batch)
    projections = crossed_layers(model)
    heads = [(number, head) for number in projections for head in (2, 4)]
    with heads_off(model, heads):
        outputs = logits_of(model, batch)
    with ExitStack() as stack:
        for projection in projections.values():
            stack.enter_context(put_in(projection, (2, 4)))
        assert_same(outputs, logits_of(model, batch), whole)
    padded = batch["decoder_attention_mask"].bool()
    for mask, given in ((padded, batch), (torch.ones_like(padded), _without_masks(batch))):
        whole = logits_of(model, given)
        seen = inputs_of(projections.values(), model, given)
        with ExitStack() as stack:
            for projection, states in zip(projections.values(), seen):
                means = states[mask].unflatten(-1, (HEADS, -1)).mean(dim=0)[[1, 3]]
                stack.enter_context(put_in(projection, (2, 4), means))
            expected = logits_of(model, given)
        with heads_off(model, heads, replace="mean", batches=[given]):
            assert_same(logits_of(model, given), expected, whole)
        masks = [mask]  # given by hand, they are the same
        with heads_off(model, heads, replace="mean", batches=[given], masks=masks):
            assert_same(logits_of(model, given), expected, whole)


def _without_masks(batch):
    return {name: value for name, value in batch.items() if "mask" not in name}


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_slopes_by_gains(name):
    model, batch = included(name)

    def loss(batch):
        return model(**batch).logits[:, -1].square().sum(dim=-1)

    scores = gradient_scores(model, [batch], loss, normalised=False)
    for number, projection in crossed_layers(model).items():
        for head in (1, 3):
            weight = projection.weight.data[:, 4 * head - 4 : 4 * head]
            kept, losses = weight.clone(), []
            for factor in (1.001, 0.999):
                weight.copy_(factor * kept)
                with torch.no_grad():
                    losses.append(loss(batch))
            weight.copy_(kept)
            slope = ((losses[0] - losses[1]) / 0.002).abs().mean()
            label = f"{number}-{head}"
            assert float(scores.sel(head=label)) == pytest.approx(float(slope), rel=1e-2)


@pytest.mark.parametrize("name", FAMILIES)
def test_chosen_heads_cost_what_the_choice_says(name):
    model, batch = included(name)
    targets = torch.tensor([3, 4, 5])

    def outputs(batch):
        return model(**batch).logits[:, -1], targets

    choice = choose_heads(model, [batch], outputs, 12, loss="cross-entropy", proposals=2)
    crossed = crossed_layers(model)
    assert {layer for layer, _ in choice.heads} & crossed.keys()
    with torch.no_grad():
        before = F.cross_entropy(*outputs(batch))
    remove_heads(model, choice.heads, gains=choice.gains, batch=batch)
    with torch.no_grad():
        rise = F.cross_entropy(*outputs(batch)) - before
    assert float(rise) == pytest.approx(choice.rise.measured, rel=1e-3)
    for number, projection in crossed.items():
        for head in range(1, HEADS + 1):
            is_zero = not projection.weight[:, 4 * head - 4 : 4 * head].any()
            assert is_zero == ((number, head) in choice.heads)


@pytest.mark.parametrize("name", KINDS)
def test_any_family_off_and_smaller(name):
    """Heads and lengths are drawn at random."""
    random = np.random.default_rng([*KINDS].index(name))
    model, _ = included(name)
    batch = batch_of(name, *random.integers(3, 9, size=2))
    whole, projections = logits_of(model, batch), crossed_layers(model)
    assert len(projections) == 2
    lost = {
        number: sorted(1 + random.choice(HEADS, size=2, replace=False)) for number in projections
    }
    heads = [(number, int(head)) for number, numbers in lost.items() for head in numbers]
    with ExitStack() as stack:
        for number, projection in projections.items():
            stack.enter_context(put_in(projection, lost[number]))
        expected = logits_of(model, batch)
    with heads_off(model, heads):
        assert_same(logits_of(model, batch), expected, whole)
    weights = sum(parameter.numel() for parameter in model.parameters())
    remove_heads(model, heads, batch=batch, smaller=True)
    assert_same(logits_of(model, batch), expected, whole)
    assert sum(parameter.numel() for parameter in model.parameters()) < weights
    table = list_heads(model)
    assert table["heads"][table["attention"] == "cross"].tolist() == [HEADS - 2] * 2


@pytest.mark.parametrize("name", FAMILIES)
def test_generation_with_caches(name):
    """A cache holds the keys of cross-attention from the first pass on, also a static one."""
    model, batch = included(name)
    source, heads = sources_of(batch), [(4, 1), (4, 2), (6, 3)]
    ways = ({}, {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False})
    projections = crossed_layers(model)
    for way in ways:
        whole = model.generate(**source, **GENERATED, **way)
        with put_in(projections[4], (1, 2)), put_in(projections[6], (3,)):
            expected = model.generate(**source, **GENERATED, **way)
        with heads_off(model, heads):
            assert torch.equal(model.generate(**source, **GENERATED, **way), expected)
        assert not torch.equal(whole, expected)


def test_a_pass_of_cached_keys_is_not_compared():
    """As many tokens as keys, which are not of these tokens."""
    model, batch = included("bart")
    batch = _without_masks(batch)
    following = torch.randint(3, 40, (3, SOURCE), generator=torch.Generator().manual_seed(5))
    projections = crossed_layers(model)
    results = []
    for context in (put_in(projections[4], (2,)), heads_off(model, [(4, 2)])):
        with torch.no_grad():
            first = model(**batch, use_cache=True)
            cached = {"past_key_values": first.past_key_values}
            cached["encoder_outputs"] = (first.encoder_last_hidden_state,)
            with context:
                results.append(model(**cached, decoder_input_ids=following).logits)
    torch.testing.assert_close(*results)


def test_cross_attention_is_compared():
    """A description that takes keys for values is refused in the first pass, of generation, too."""
    model, batch = built("bart")
    crossed = model.model.decoder.layers[0].encoder_attn

    def exchanged():
        projections = [crossed.q_proj, crossed.v_proj, crossed.k_proj]
        return AttentionHeads(crossed.num_heads, crossed.out_proj, projections)

    crossed.pathkernel_heads = exchanged
    for run in (lambda: model(**batch), lambda: model.generate(**sources_of(batch))):
        with (
            pytest.raises(CaptureError, match=r"4 .*encoder_attn.* passes on other than its atten"),
            heads_off(model, [(4, 1)]),
        ):
            run()


def test_a_learned_query_that_pools_patches():
    """Is no layer of the sequence, whose capture needs no choice of layers; it can be included."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "image_size": 8}
    config = transformers.SiglipVisionConfig(**sizes, num_attention_heads=4, patch_size=4)
    torch.manual_seed(0)
    model = transformers.SiglipVisionModel(config).eval()
    batch = {"pixel_values": torch.randn(3, 3, 8, 8)}
    assert capture(model, [batch], readout="mean").heads == (9,)
    table = include_cross_attention(model)
    assert table["attention"].tolist() == ["self", "self", "cross"]
    with torch.no_grad():
        whole = model(**batch).pooler_output
        with heads_off(model, [(3, 1), (3, 2)]):
            off = model(**batch).pooler_output
        remove_heads(model, [(3, 1), (3, 2)], batch=batch, smaller=True)
        torch.testing.assert_close(model(**batch).pooler_output, off)
    assert not torch.allclose(whole, off)


@pytest.mark.parametrize("picture", ["heads", "product", "tangent"])
def test_cross_attention_is_not_captured(picture):
    model, batch = included("bart")

    def outputs(batch):
        return model(**batch).logits[:, -1], torch.tensor([3, 4, 5])

    options = {"picture": picture, "outputs": outputs if picture == "tangent" else None}
    with pytest.raises(CaptureError, match=r"layer 4 .* attends to another sequence, which no"):
        capture(model, [batch], layers=[3, 4], **options)
    if picture != "tangent":
        plain, _ = built("bart")
        numbered = ((model, [3, 5]), (plain, [3, 4]))
        one, other = (capture(m, [batch], layers=n, picture=picture) for m, n in numbered)
        np.testing.assert_array_equal(one.xi, other.xi)
