"""Capture of transformers' models of small random weights, against the attentions they return."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from pathkernel_capture import CaptureError, capture, heads_off, remove_heads  # noqa: E402

LAYERS, HEADS, WIDTH, EXAMPLES, TOKENS = 3, 4, 16, 3, 7
SMALL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "vocab_size": 20,
}
DISTIL = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 24, "vocab_size": 20}
GROUPED = SMALL | {"num_key_value_heads": 2}
# name: configuration, class, options, and the blocks with their norm before attention, if any
MODELS = {
    "bert": ("BertConfig", "BertModel", SMALL, "encoder.layer", None),
    "roberta": ("RobertaConfig", "RobertaModel", SMALL, "encoder.layer", None),
    "distilbert": ("DistilBertConfig", "DistilBertModel", DISTIL, "transformer.layer", None),
    "vit": ("ViTConfig", "ViTModel", SMALL | {"image_size": 8}, "layers", "layernorm_before"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", SMALL, "transformer.h", "ln_1"),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXModel", SMALL, "layers", "input_layernorm"),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED, "model.layers", "input_layernorm"),
    "qwen2": ("Qwen2Config", "Qwen2Model", GROUPED, "layers", "input_layernorm"),
    "qwen3": ("Qwen3Config", "Qwen3Model", GROUPED | {"head_dim": 6}, "layers", "input_layernorm"),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """A model, a batch for it, its blocks and their norms."""
    config, kind, options, blocks, norm = MODELS[request.param]
    torch.manual_seed(0)
    if request.param == "vit":
        options = options | {"patch_size": 4}
    model = getattr(transformers, kind)(getattr(transformers, config)(**options)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert model.config._attn_implementation == "sdpa"
    if request.param == "vit":
        return model, {"pixel_values": torch.randn(3, 3, 8, 8).double()}, blocks, norm
    mask = torch.ones(EXAMPLES, TOKENS, dtype=torch.long)
    mask[1, 5:] = 0
    ids = torch.randint(3, 20, (EXAMPLES, TOKENS))
    return model, {"input_ids": ids, "attention_mask": mask}, blocks, norm


def returned(case):
    """Attentions and states attended to, from what the model returns; of single sequences."""
    model, batch, blocks, norm = case
    eager = type(model)(model.config).double()
    eager.load_state_dict(model.state_dict())
    eager.set_attn_implementation("eager")
    sequences = []
    for p in range(EXAMPLES):
        one = {name: value[p : p + 1] for name, value in batch.items()}
        if "attention_mask" in one:
            length = int(one.pop("attention_mask").sum())
            one = {name: value[:, :length] for name, value in one.items()}
        with torch.no_grad():
            output = eager.eval()(**one, output_attentions=True, output_hidden_states=True)
            states = output.hidden_states[:LAYERS]
            seen = states
            if norm is not None:
                layers = eager.get_submodule(blocks)
                seen = [getattr(layer, norm)(x) for layer, x in zip(layers, states)]
        tokens = states[0][0].numpy()
        paid = [weights[0].numpy() for weights in output.attentions]
        sequences.append((tokens, [x[0].numpy() for x in seen], paid))
    model.set_attn_implementation("sdpa")  # which shares its configuration
    return sequences


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_capture_is_the_files_route(case, files_route):
    side_by_side, product = files_route
    model, batch, _, _ = case
    expected = returned(case)
    model.train()
    readouts = {"mean": lambda m: np.full(m, 1 / m), "last": lambda m: np.eye(m)[-1]}
    for readout, weights in readouts.items():
        on_tokens = capture(model, [batch], readout=readout)
        on_states = capture(model, [batch], readout=readout, attend="states")
        paths = capture(model, [batch], readout=readout, picture="product", layers=(1, 2))
        skipping = capture(
            model, [batch], readout=readout, picture="product", layers=(1, 2), skips=True
        )
        assert on_tokens.heads == (1 + LAYERS * HEADS,)
        for p, (tokens, seen, paid) in enumerate(expected):
            read = weights(len(tokens))
            ours = side_by_side(paid, [tokens] * LAYERS, tokens, read)
            np.testing.assert_allclose(on_tokens.xi[p], ours, atol=1e-9)
            ours = side_by_side(paid, seen, tokens, read)
            np.testing.assert_allclose(on_states.xi[p], ours, atol=1e-9)
            first = [layer[None] for layer in paid[:2]]
            ours = product(first, tokens[None], readout)[0]
            np.testing.assert_allclose(paths.xi[p], ours, atol=1e-9)
            ours = product(first, tokens[None], readout, skips=True)[0]
            np.testing.assert_allclose(skipping.xi[p], ours, atol=1e-9)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore")
def test_heads_off_is_zeroing_what_they_pass_on(case, request):
    """Against hooks that zero a head's part of what goes into the output projection."""
    model, batch, blocks, _ = case
    model.eval()
    off = [(1, 2), (3, 1), (3, 4)]
    size = getattr(model.config, "head_dim", None) or WIDTH // HEADS
    names = ("attention.output.dense", "attention.out_lin", "attention.o_proj", "attn.c_proj")
    names += ("attention.dense", "self_attn.o_proj")
    handles = []
    for number, block in enumerate(model.get_submodule(blocks), start=1):
        (projection,) = [part for name, part in block.named_modules() if name in names]

        def silence(_, given, number=number):
            (passed,) = given
            passed = passed.clone()
            for layer, head in off:
                if layer == number:
                    passed[..., (head - 1) * size : head * size] = 0
            return (passed,)

        handles.append(projection.register_forward_pre_hook(silence))
    with torch.no_grad():
        expected = model(**batch)[0]
        for handle in handles:
            handle.remove()
        whole = model(**batch)[0]
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        with heads_off(model, off) as same:
            assert same is model
            np.testing.assert_allclose(model(**batch)[0], expected, atol=1e-12)
        assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
        assert not torch.allclose(whole, expected)
        smaller = copy.deepcopy(model)
        remove_heads(model, off)
        np.testing.assert_allclose(model(**batch)[0], expected, atol=1e-12)
        model.load_state_dict(weights)
        if request.node.callspec.params["case"] in ("gpt2", "llama", "qwen2", "qwen3"):
            with pytest.raises(CaptureError, match="keeps its shape; leave smaller out"):
                remove_heads(smaller, off, smaller=True)
            return
        with pytest.raises(ValueError, match="all of layer 2"):
            remove_heads(smaller, [(2, head) for head in (1, 2, 3, 4)], smaller=True)
        remove_heads(smaller, off, smaller=True)
        np.testing.assert_allclose(smaller(**batch)[0], expected, atol=1e-12)
    members = capture(smaller, [batch], readout="mean").members[0]
    assert [sum(layer == n for layer, _ in members) for n in (1, 2, 3)] == [3, 4, 2]
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, smaller))
    biases = 0 if model.config.model_type == "gpt_neox" and not model.config.attention_bias else 3
    assert before - after == 3 * (4 * size * WIDTH + biases * size)


@pytest.mark.filterwarnings("ignore")
def test_attention_is_put_back_when_a_pass_fails():
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    model.train()
    with pytest.raises(IndexError):
        capture(model, [{"input_ids": torch.tensor([[99]])}], readout="mean")
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.filterwarnings("ignore")
def test_shared_layers_are_refused():
    options = SMALL | {"embedding_size": 8, "num_hidden_groups": 1}
    model = transformers.AlbertModel(transformers.AlbertConfig(**options))
    with pytest.raises(CaptureError, match="runs more than once"):
        capture(model, [{"input_ids": torch.tensor([[3, 4]])}], readout="mean")


@pytest.mark.filterwarnings("ignore")
def test_gradients_and_values(case, check_scores):
    model, batch, _, _ = case
    check_scores(model, batch, lambda batch: model(**batch)[0])
