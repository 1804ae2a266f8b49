"""Capture of transformers' models of small random weights, against the attentions they return."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.removal import remove_heads

LAYERS, HEADS, WIDTH, EXAMPLES, TOKENS = 3, 4, 16, 3, 7
ROUNDING = 2e-7  # some of the attentions that models return are of float32
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
            np.testing.assert_allclose(on_tokens.xi[p], ours, atol=ROUNDING)
            ours = side_by_side(paid, seen, tokens, read)
            np.testing.assert_allclose(on_states.xi[p], ours, atol=ROUNDING)
            first = [layer[None] for layer in paid[:2]]
            ours = product(first, tokens[None], readout)[0]
            np.testing.assert_allclose(paths.xi[p], ours, atol=ROUNDING)
            ours = product(first, tokens[None], readout, skips=True)[0]
            np.testing.assert_allclose(skipping.xi[p], ours, atol=ROUNDING)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore")
def test_tangent_kernels_are_of_derivatives_by_weights(case, check_tangents):
    """Of two outputs that read the tokens which are no padding."""
    model, batch, _, _ = case
    model = copy.deepcopy(model).eval()

    def output(batch):
        given = model(**batch)
        hidden = given["logits" if "logits" in given else "last_hidden_state"]
        mask = batch.get("attention_mask", torch.ones(hidden.shape[:2]))[..., None]
        return (hidden * mask).sum(dim=1)[:, :2].sin()

    check_tangents(model, batch, output)
    assert model.config._attn_implementation == "sdpa"


def test_tangents_of_an_encoder_and_a_decoder(check_tangents):
    torch.manual_seed(0)
    config = transformers.T5Config(
        **{"d_model": 12, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 3},
        **{"vocab_size": 20, "decoder_start_token_id": 0},
    )
    model = transformers.T5Model(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = {
        "input_ids": torch.randint(3, 20, (EXAMPLES, 5)),
        "decoder_input_ids": torch.randint(3, 20, (EXAMPLES, 4)),
    }
    check_tangents(model, batch, lambda batch: model(**batch).last_hidden_state[:, -1, :2])


@pytest.mark.filterwarnings("ignore")
def test_heads_off_is_zeroing_what_they_pass_on(case):
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
        remove_heads(model, off, batch=batch)
        np.testing.assert_allclose(model(**batch)[0], expected, atol=1e-12)
        model.load_state_dict(weights)
        if model.config.model_type in ("llama", "qwen2", "qwen3"):  # heads 1 and 2 share keys
            _untouched(smaller, off, batch)
            off = [(1, 2), (1, 3), (3, 1), (3, 2)]
        off += [(2, head) for head in (1, 2, 3, 4)]
        with heads_off(smaller, off):
            expected = smaller(**batch)[0]
        remove_heads(smaller, off, smaller=True, batch=batch)
        np.testing.assert_allclose(smaller(**batch)[0], expected, atol=1e-12)
    members = capture(smaller, [batch], readout="mean").members[0]
    left = [4 - sum(layer == n for layer, _ in off) or 1 for n in (1, 2, 3)]  # one of zeros
    assert [sum(layer == n for layer, _ in members) for n in (1, 2, 3)] == left
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, smaller))
    assert before - after >= (len(off) - 1) * 2 * size * WIDTH


def _untouched(model, heads, batch):
    """Heads that leave groups of unlike size are refused, and the model is as it was."""
    parameters, before = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    numbers = [vars(module).copy() for module in model.modules()]
    config = model.config.to_dict()
    with pytest.raises(CaptureError, match=r"left as it was|keeps its shape|leave out head"):
        remove_heads(model, heads, smaller=True, batch=batch)
    assert all(parameters[name] is value for name, value in model.named_parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [vars(module) for module in model.modules()] == numbers
    assert model.config.to_dict() == config


NEO = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 20}
NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 3}
GPTJ = {"n_embd": 16, "n_layer": 2, "n_head": 4, "rotary_dim": 2, "vocab_size": 20}
OPT = SMALL | {"ffn_dim": 24, "word_embed_proj_dim": 16}
XGLM = {"d_model": 16, "num_layers": 2, "attention_heads": 4, "ffn_dim": 24, "vocab_size": 20}
T5 = {"d_model": 16, "d_kv": 4, "num_layers": 2, "num_heads": 4, "d_ff": 24, "vocab_size": 20}
WHISPER = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 4}
WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 20}
WHISPER |= {"max_source_positions": 10, "pad_token_id": 0, "decoder_start_token_id": 1}
OTHERS = {  # name: configuration, its options, heads, and whether they can be taken out
    "opt": ("OPTModel", OPT, [(1, 2), (2, 1), (2, 4)], True),
    "gptj": ("GPTJModel", GPTJ, [(1, 2), (2, 1), (2, 4)], True),
    "gpt_neo": ("GPTNeoModel", NEO, [(1, 2), (2, 1), (2, 4)], True),
    "xglm": ("XGLMModel", XGLM, [(1, 2), (2, 1), (2, 4)], True),
    "persimmon": ("PersimmonModel", SMALL, [(1, 2), (2, 1), (2, 4)], True),
    "whisper": ("WhisperModel", WHISPER, [(1, 2), (3, 1), (4, 4)], True),
    "t5, all layers": ("T5Model", T5, [(layer, 3) for layer in (1, 2, 3, 4)], True),
    "t5, one layer": ("T5Model", T5, [(1, 2)], False),
    "bloom": ("BloomModel", {"hidden_size": 16, "n_layer": 2, "n_head": 4}, [(1, 2)], False),
    "codegen": ("CodeGenModel", GPTJ, [(1, 2)], False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OTHERS)
def test_smaller_or_untouched(name):
    kind, options, off, fits = OTHERS[name]
    config = getattr(transformers, kind.replace("Model", "Config"))(**options)
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 20, (2, TOKENS))
    batch = {"input_ids": ids}
    if name == "whisper":
        batch = {"input_features": torch.randn(2, 4, 20), "decoder_input_ids": ids}
    elif name.startswith("t5"):
        batch |= {"decoder_input_ids": ids[:, :4]}
    if not fits:
        _untouched(model, off, batch)
        return
    with torch.no_grad(), heads_off(model, off):
        expected = model(**batch)[0]
    remove_heads(model, off, smaller=True, batch=batch)
    with torch.no_grad():
        np.testing.assert_allclose(model(**batch)[0], expected, atol=1e-4)
        model(**{part: value[:1] for part, value in batch.items()})


@pytest.mark.filterwarnings("ignore")
def test_decoder_beside_an_encoder():
    """Its layers are captured on the tokens that enter it, and cross-attention is none of them."""
    torch.manual_seed(0)
    model = transformers.T5Model(transformers.T5Config(**T5)).eval()
    ids = torch.randint(3, 20, (2, TOKENS))
    batch = {"input_ids": ids, "decoder_input_ids": ids[:, :4]}
    with pytest.raises(CaptureError, match="choose the layers of one sequence with layers="):
        capture(model, [batch], readout="last")
    captured = capture(model, [batch], readout="last", layers=(4,))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True, output_hidden_states=True)
    tokens, paid = output.decoder_hidden_states[0], output.decoder_attentions[1]
    expected = torch.cat([tokens[:, -1:], paid[:, :, -1] @ tokens], dim=1)
    np.testing.assert_allclose(captured.xi, expected, atol=1e-5)
    assert captured.members == (((0, 0), (4, 1), (4, 2), (4, 3), (4, 4)),)


@pytest.mark.filterwarnings("ignore")
def test_attention_is_put_back_when_a_pass_fails():
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    model.train()
    with pytest.raises(CaptureError, match="IndexError: index out of range"):
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
