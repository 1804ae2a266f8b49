"""Models of TransformerLens 4 against their own hooks and caches, and the models inside them."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
pytest.importorskip("transformer_lens.model_bridge", reason="TransformerLens 4 is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformer_lens.model_bridge import TransformerBridge

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.head_choice import choose_heads, curvature_scores, refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of TransformerLens and few examples

HEADS, OFF = 4, [(1, 2), (2, 4)]
SMALL = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS}
SMALL |= {"intermediate_size": 24}
# attention that the bridge computes itself, with a joint projection split, or leaves to the model
KINDS = {
    "LlamaForCausalLM": SMALL | {"num_key_value_heads": 2},
    "GPT2LMHeadModel": {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": HEADS},
    "BertForMaskedLM": SMALL,
}
OTHERS = {
    "BloomForCausalLM": {"vocab_size": 20, "hidden_size": 16, "n_layer": 2, "n_head": HEADS},
    "FalconForCausalLM": SMALL,
    "Gemma3ForCausalLM": SMALL | {"num_key_value_heads": 2, "head_dim": 4},
    "GPTNeoXForCausalLM": SMALL,
    "MixtralForCausalLM": SMALL | {"num_key_value_heads": 2, "num_local_experts": 2},
    "OPTForCausalLM": SMALL | {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "Phi3ForCausalLM": SMALL | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


def ids(number=40, tokens=5):
    return torch.randint(3, 20, (number, tokens), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    """A bridge and the model inside; take :func:`pair`."""
    torch.manual_seed(0)
    kind = getattr(transformers, request.param)
    model = kind(kind.config_class(**(KINDS | OTHERS)[request.param])).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("model") / "saved"
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(20)}, unk_token="w0"))
    special = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.save_pretrained(folder)

    def bridged():
        options = {"hf_model": copy.deepcopy(model), "device": "cpu", "dtype": torch.float32}
        options["tokenizer"] = transformers.AutoTokenizer.from_pretrained(folder)
        return TransformerBridge.boot_transformers(str(folder), **options).eval()

    return bridged, model


@pytest.fixture
def pair(saved):
    bridged, model = saved
    return bridged(), copy.deepcopy(model)


def logits(model, batch, **options):
    given = model(batch, **options)
    return given if isinstance(given, torch.Tensor) else given.logits


def outputs_of(model):
    def outputs(batch):
        z = logits(model, batch)[:, -1, :3]
        return z, torch.linspace(-1, 1, z.numel()).reshape(z.shape)

    return outputs


def close(given, expected):
    tolerance = 1e-4 * float(np.abs(expected).max())
    np.testing.assert_allclose(given, expected, atol=tolerance)


def test_heads_are_listed(pair):
    table, expected = (list_heads(model) for model in pair)
    for column in ("heads", "groups", "head_size", "width"):
        assert list(table[column]) == list(expected[column])


def without_heads(bridge, batch):
    """Logits without the heads of OFF, by the bridge's own hooks."""

    def silence(z, hook):
        z = z.clone()
        for layer, head in OFF:
            if layer == hook.layer() + 1:
                z[:, :, head - 1] = 0
        return z

    hooks = [(f"blocks.{layer}.attn.hook_z", silence) for layer in range(2)]
    return bridge.run_with_hooks(batch, fwd_hooks=hooks)


@pytest.mark.parametrize("tokens", [5, HEADS])
def test_heads_off_is_zeroing_what_they_pass_on(pair, tokens):
    bridge, model = pair
    batch = ids(2, tokens)
    with torch.no_grad():
        whole, expected = bridge(batch), without_heads(bridge, batch)
        with heads_off(bridge, OFF):
            close(bridge(batch), expected)
        with heads_off(model, OFF):
            close(logits(model, batch), expected)
        assert torch.equal(bridge(batch), whole)
        assert not torch.allclose(whole, expected, atol=1e-3)
        bridge.enable_compatibility_mode()  # folds norms and biases of values into other weights
        with heads_off(bridge, OFF):
            close(bridge(batch), without_heads(bridge, batch))


def test_heads_at_their_means(pair):
    shown = (torch.arange(5) < torch.tensor([[5], [3], [2]])).long()
    given = []
    for model, name in zip(pair, ("input", "input_ids")):
        batches = [{name: ids(3), "attention_mask": shown}]
        with torch.no_grad(), heads_off(model, OFF, replace="mean", batches=batches):
            given.append(logits(model, ids(3), attention_mask=shown)[shown.bool()])
    close(*given)


def test_capture_is_the_cache(pair, files_route):
    bridge, _ = pair
    side_by_side, product = files_route
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids(2))
    cached = {name: value.detach().double().numpy() for name, value in cache.items()}
    tokens = cached["blocks.0.hook_resid_pre"]
    attention = [cached[f"blocks.{layer}.attn.hook_pattern"] for layer in range(2)]
    captured = capture(bridge, [ids(2)], readout="last")
    for p in range(2):
        paid = [layer[p] for layer in attention]
        close(captured.xi[p], side_by_side(paid, [tokens[p]] * 2, tokens[p], np.eye(5)[-1]))
    captured = capture(bridge, [ids(2)], readout="last", picture="product")
    close(captured.xi, product(attention, tokens, "last"))
    states = [capture(each, [ids(2)], readout="mean", attend="states").xi for each in pair]
    close(*states)
    tangents = [
        capture(each, [ids(4)], picture="tangent", outputs=outputs_of(each)).xi for each in pair
    ]
    close(*tangents)


def test_padding_is_that_of_the_model_inside(pair):
    shown = (torch.arange(5) < torch.tensor([[5], [3], [2]])).long()
    batches = [{name: ids(3), "attention_mask": shown} for name in ("input", "input_ids")]
    close(*(capture(each, [batch]).xi for each, batch in zip(pair, batches)))


def test_scores_and_choice(pair):
    for score in (
        lambda each: magnitude_scores(each, ids()),
        lambda each: curvature_scores(each, [ids()], outputs_of(each)),
        lambda each: gradient_scores(
            each, [ids()], lambda batch: outputs_of(each)(batch)[0].square().sum(dim=1)
        ),
        lambda each: refit_gains(each, [ids()], outputs_of(each), OFF),
    ):
        close(*map(score, pair))
    chosen, expected = (
        choose_heads(each, [ids()], outputs_of(each), 3, groups=False) for each in pair
    )
    assert chosen.heads == expected.heads
    close(chosen.gains, expected.gains)


def test_removal_and_comparison(saved, tmp_path):
    bridged, _ = saved
    bridge = bridged()
    with torch.no_grad(), heads_off(bridge, OFF):
        expected = bridge(ids())
    with pytest.raises(CaptureError, match=r"layer 1 .* keeps its shape"):
        remove_heads(bridge, OFF, batch=ids(), smaller=True)
    remove_heads(bridge, OFF, batch=ids())
    assert save_model(bridge, tmp_path / "smaller").loaded_by == "load_model with model="
    loaded = load_model(tmp_path / "smaller", model=bridged())
    with torch.no_grad():
        close(bridge(ids()), expected)
        assert torch.equal(loaded(ids()), bridge(ids()))

    def measure(_):
        with torch.no_grad():
            return {"squared error": outputs_of(bridge)(ids())[0].square().sum(dim=1)}

    result = compare_heads(bridge, measure, {"magnitude": magnitude_scores(bridge, ids())})
    assert result.sizes["head"] == 2 * HEADS


@pytest.mark.parametrize("saved", OTHERS, indirect=True)
def test_other_attention(pair):
    captured = [capture(each, [ids(3)], picture="product").xi for each in pair]
    close(*captured)
    close(*(magnitude_scores(each, ids(3)) for each in pair))
    given = []
    for each in pair:
        with torch.no_grad(), heads_off(each, OFF):
            given.append(logits(each, ids(3)))
    close(*given)
    with torch.no_grad():
        assert not np.allclose(given[1], logits(pair[1], ids(3)), atol=1e-3)


@pytest.mark.parametrize("saved", ["LlamaForCausalLM", "GPT2LMHeadModel"], indirect=True)
def test_heads_that_do_not_pass_the_projection(pair):
    """Their results are added one by one."""
    bridge, _ = pair
    bridge.set_use_attn_result(True)
    refusal = r"attn adds the results of its heads .* set_use_attn_result\(False\)"
    with pytest.raises(CaptureError, match=refusal):
        list_heads(bridge)
