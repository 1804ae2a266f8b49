"""Queries and keys out of state dicts, against the libraries and against plain formulas."""

import importlib.util
import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from pathkernel_core import attentioned_inputs
from pathkernel_tasks.heads_file import read_heads, save_heads
from pathkernel_tasks.state_dict_files import read_state_dict, state_dict_shapes
from pathkernel_tasks.state_dicts import LAYOUTS, extract_heads, find_modules

WIDTH, HEADS = 12, 3
G = WIDTH // HEADS


@pytest.fixture
def generator():
    return np.random.default_rng(3)


@pytest.fixture
def save(tmp_path):
    def write(state, name="model.safetensors"):
        path = tmp_path / name
        save_file({key: np.ascontiguousarray(array) for key, array in state.items()}, path)
        return path

    return write


def with_constant(tokens):
    return np.concatenate([tokens, np.ones((*tokens.shape[:-1], 1))], axis=-1)


def reference(tokens, query, key, heads=HEADS, key_heads=None):
    """Attention (P, H, key, query) of x → W x + b, computed head by head and token by token."""
    (wq, bq), (wk, bk) = query, key
    group = heads // (key_heads or heads)
    size = wq.shape[0] // heads
    result = np.zeros((len(tokens), heads, tokens.shape[1], tokens.shape[1]))
    for p, sequence in enumerate(tokens):
        for h in range(heads):
            mine = slice(h * size, (h + 1) * size)
            shared = slice(h // group * size, (h // group + 1) * size)
            for t, asking in enumerate(sequence):
                q = wq[mine] @ asking + bq[mine]
                scores = np.array([(wk[shared] @ x + bk[shared]) @ q for x in sequence])
                weights = np.exp(scores / np.sqrt(size))
                result[p, h, :, t] = weights / weights.sum()
    return result


def draw(generator, key_rows=WIDTH, rows=WIDTH):
    query = generator.normal(size=(rows, WIDTH)), generator.normal(size=rows)
    key = generator.normal(size=(key_rows, WIDTH)), generator.normal(size=key_rows)
    return query, key


def stacked(query, key, generator, axis=0):
    """Queries, keys and values in one array, with the bias."""
    weights = [query[0], key[0], generator.normal(size=key[0].shape)]
    biases = [query[1], key[1], generator.normal(size=key[1].shape)]
    return np.concatenate(weights), np.concatenate(biases)


def bert(prefix, query, key, generator):
    return {
        f"{prefix}attention.self.query.weight": query[0],
        f"{prefix}attention.self.query.bias": query[1],
        f"{prefix}attention.self.key.weight": key[0],
        f"{prefix}attention.self.key.bias": key[1],
        f"{prefix}attention.self.value.weight": generator.normal(size=(WIDTH, WIDTH)),
    }


def vit(prefix, query, key, generator):
    state = bert(prefix, query, key, generator)
    return {name.replace(".self.", ".attention."): array for name, array in state.items()}


def fused(prefix, query, key, generator):
    weight, bias = stacked(query, key, generator)
    return {f"{prefix}attn.qkv.weight": weight, f"{prefix}attn.qkv.bias": bias}


def fused_without_key_bias(prefix, query, key, generator):
    weight, _ = stacked(query, key, generator)
    return {f"{prefix}attn.qkv.weight": weight, f"{prefix}attn.q_bias": query[1]}


def gpt2(prefix, query, key, generator):
    weight, bias = stacked(query, key, generator)
    return {
        f"{prefix}attn.c_attn.weight": weight.T,
        f"{prefix}attn.c_attn.bias": bias,
        f"{prefix}attn.c_proj.weight": generator.normal(size=(WIDTH, WIDTH)),
    }


def llama(prefix, query, key, generator):
    return {
        f"{prefix}self_attn.q_proj.weight": query[0],
        f"{prefix}self_attn.q_proj.bias": query[1],
        f"{prefix}self_attn.k_proj.weight": key[0],
        f"{prefix}self_attn.k_proj.bias": key[1],
        f"{prefix}self_attn.o_proj.weight": generator.normal(size=(WIDTH, WIDTH)),
    }


def multihead(prefix, query, key, generator):
    weight, bias = stacked(query, key, generator)
    return {
        f"{prefix}self_attn.in_proj_weight": weight,
        f"{prefix}self_attn.in_proj_bias": bias,
        f"{prefix}linear1.weight": generator.normal(size=(5, WIDTH)),
    }


@pytest.mark.parametrize(
    ("layout", "build"),
    [
        ("bert", bert),
        ("bert", vit),
        ("fused", fused),
        ("fused", fused_without_key_bias),
        ("gpt2", gpt2),
        ("llama", llama),
        ("multihead", multihead),
    ],
)
def test_attention_of_every_layout(save, generator, tmp_path, layout, build):
    drawn = [draw(generator) for _ in range(11)]
    state = {}
    for number, pair in enumerate(drawn):
        state |= build(f"model.layers.{number}.", *pair, generator)
    path = save(state)
    heads = extract_heads(path, HEADS)
    assert heads.constant
    assert LAYOUTS[layout].origin in heads.approximation
    assert "hidden states" in heads.approximation
    assert extract_heads(path, HEADS, layout).modules == heads.modules
    tokens = generator.normal(size=(2, 4, WIDTH))
    save_heads(tmp_path / "heads.safetensors", heads.layers, approximation=heads.approximation)
    held = read_heads(tmp_path / "heads.safetensors", WIDTH + 1)
    assert held.approximation == heads.approximation
    for layer, pair in zip(held.layers, drawn, strict=True):  # layer 10 follows layer 9
        found = layer.attention(with_constant(tokens))
        assert np.allclose(found, reference(tokens, *pair), atol=1e-12)


def test_grouped_keys_are_repeated(save, generator):
    rows = 4 * 5  # heads of width 5, which is not N_0 / H
    query, key = draw(generator, key_rows=2 * 5, rows=rows)
    heads = extract_heads(save(llama("model.layers.0.", query, key, generator)), 4)
    tokens = generator.normal(size=(2, 3, WIDTH))
    expected = reference(tokens, query, key, heads=4, key_heads=2)
    assert np.allclose(heads.layers[0].attention(with_constant(tokens)), expected)
    assert "rotary" in heads.approximation


def test_layers_are_chosen_by_number(save, generator):
    drawn = [draw(generator) for _ in range(3)]
    state = {}
    for number, pair in enumerate(drawn):
        state |= bert(f"encoder.layer.{number}.", *pair, generator)
    heads = extract_heads(save(state), HEADS, layers=(3, 1))
    assert heads.modules == ("encoder.layer.2.attention.self.", "encoder.layer.0.attention.self.")
    assert np.array_equal(heads.layers[0].queries[:, :, :-1].reshape(WIDTH, -1), drawn[2][0][0])


def test_biases_left_out_and_absent(save, generator):
    query, key = draw(generator)
    state = bert("", query, key, generator)
    heads = extract_heads(save(state), HEADS, biases=False)
    assert not heads.constant
    assert "biases" in heads.approximation
    tokens = generator.normal(size=(2, 4, WIDTH))
    zero = np.zeros(WIDTH)
    expected = reference(tokens, (query[0], zero), (key[0], zero))
    assert np.allclose(heads.layers[0].attention(tokens), expected)
    state = {name: array for name, array in state.items() if not name.endswith("bias")}
    bare = extract_heads(save(state), HEADS)
    assert not bare.constant
    assert np.array_equal(bare.layers[0].queries, heads.layers[0].queries)
    assert bare.approximation == "", "a lone module of attention is the theory's own"
    assert extract_heads(save(state), HEADS, scale=0.3).layers[0].scale == 0.3


def test_normalised_queries_are_a_departure(save, generator):
    state = llama("model.layers.0.", *draw(generator), generator)
    state["model.layers.0.self_attn.q_norm.weight"] = np.ones(G)
    assert "normalisation of its queries" in extract_heads(save(state), HEADS).approximation


@pytest.mark.parametrize("key_width", [None, WIDTH])
def test_torch_multihead_attention(save, key_width):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(
        WIDTH, HEADS, batch_first=True, kdim=key_width, vdim=key_width, dtype=torch.float64
    )
    torch.nn.init.normal_(module.in_proj_bias)
    path = save({name: array.numpy() for name, array in module.state_dict().items()})
    heads = extract_heads(path, HEADS)
    assert heads.modules == ("",)
    assert heads.approximation == ""
    tokens = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        _, expected = module(tokens, tokens, tokens, average_attn_weights=False)
    found = heads.layers[0].attention(with_constant(tokens.numpy()))
    assert np.allclose(found, expected.numpy().swapaxes(-1, -2), atol=1e-12)


def test_torch_separate_projections(save):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, vdim=5, bias=False, batch_first=True)
    state = {name: array.numpy() for name, array in module.state_dict().items()}
    assert "q_proj_weight" in state
    heads = extract_heads(save(state), HEADS)
    tokens, values = torch.randn(2, 4, WIDTH), torch.randn(2, 4, 5)
    with torch.no_grad():
        _, expected = module(tokens, tokens, values, average_attn_weights=False)
    found = heads.layers[0].attention(tokens.numpy().astype(np.float64))
    assert np.allclose(found, expected.numpy().swapaxes(-1, -2), atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama"])
def test_transformers(save, name):
    if not importlib.util.find_spec("transformers"):
        pytest.skip("transformers is not installed")
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": HEADS, "hidden_size": WIDTH}
    sizes |= {"intermediate_size": 16, "vocab_size": 9, "attn_implementation": "eager"}
    if name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**sizes))
    elif name == "vit":
        sizes.pop("vocab_size")
        model = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **sizes))
    elif name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=1, n_head=HEADS, n_embd=WIDTH, vocab_size=9, attn_implementation="eager"
        )
        model = transformers.GPT2Model(config)
    else:
        config = transformers.LlamaConfig(num_key_value_heads=1, **sizes)
        model = transformers.LlamaModel(config)
    path = save({key: array.numpy() for key, array in model.state_dict().items()})
    heads = extract_heads(path, HEADS)
    assert len(heads.layers) == 1
    if name == "bert":
        model.eval()
        ids = torch.arange(5)[None]
        with torch.no_grad():
            tokens = model.embeddings(ids).double().numpy()
            expected = model(ids, output_attentions=True).attentions[0].numpy()
        found = heads.layers[0].attention(with_constant(tokens) if heads.constant else tokens)
        assert np.allclose(found, expected.swapaxes(-1, -2), atol=1e-5)


def test_heads_give_the_attentioned_inputs_of_the_model(save, generator):
    """The constant appended to tokens stays 1 along every path."""
    pair = draw(generator)
    heads = extract_heads(save(bert("", *pair, generator)), HEADS)
    tokens = generator.normal(size=(2, 4, WIDTH))
    xi = attentioned_inputs(with_constant(tokens), heads.layers, "mean")
    expected = np.einsum("phst,psi->phi", reference(tokens, *pair) / 4, tokens)
    assert np.allclose(xi[..., :-1], expected)
    assert np.allclose(xi[..., -1], 1)


def test_bfloat16(tmp_path, generator):
    values = generator.normal(size=(2, WIDTH, WIDTH)).astype(np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    names = [f"self_attn.{kind}_proj.weight" for kind in "qk"]
    size = halves[0].nbytes
    header = json.dumps(
        {
            name: {
                "dtype": "BF16",
                "shape": [WIDTH, WIDTH],
                "data_offsets": [place * size, (place + 1) * size],
            }
            for place, name in enumerate(names)
        }
    ).encode()
    path = tmp_path / "half.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + halves.tobytes())
    read = read_state_dict(path, names)
    for name, whole in zip(names, values):
        assert np.allclose(read[name], whole, rtol=2**-7)
        assert not np.array_equal(read[name], whole)
    assert extract_heads(path, HEADS).layers[0].queries.shape == (HEADS, G, WIDTH)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"q": None, "k": None},
            {},
            r"no queries and keys are found among 1 arrays, such as other",
        ),
        ({"k": None}, {}, r"lacks 'a\.attention\.self\.key\.weight'"),
        ({}, {"heads_per_layer": 5}, "12 rows of queries do not divide into 5 heads"),
        ({}, {"heads_per_layer": 0}, "heads_per_layer must be at least 1"),
        ({"k": np.ones((8, WIDTH))}, {}, "8 rows of keys do not divide into groups for 3 heads"),
        ({"k": np.ones((WIDTH, 5))}, {}, "queries see tokens of width 12, keys of 5"),
        ({"q": np.full((WIDTH, WIDTH), np.nan)}, {}, "query.weight' holds NaN"),
        ({"q": np.ones((WIDTH, WIDTH), np.int32)}, {}, "query.weight' holds I32, no real numbers"),
        ({"q": np.ones(WIDTH)}, {}, "must have 2 axes"),
        ({}, {"layers": (2,)}, "has attention modules 1 to 1"),
        ({}, {"layout": "strange"}, "layout must be auto or one of multihead, fused"),
        ({}, {"layout": "gpt2"}, "no queries and keys are found"),
        ({"b.c_attn.weight": np.ones((WIDTH, 36))}, {}, "layouts bert, gpt2 all fit"),
    ],
)
def test_refusals(save, change, options, message):
    short = {"q": "a.attention.self.query.weight", "k": "a.attention.self.key.weight"}
    state = {short["q"]: np.ones((WIDTH, WIDTH)), short["k"]: np.ones((WIDTH, WIDTH))}
    state["other"] = np.ones(3)
    for name, array in change.items():
        state[short.get(name, name)] = array
    path = save({name: array for name, array in state.items() if array is not None})
    with pytest.raises(ValueError, match=message):
        extract_heads(path, **{"heads_per_layer": HEADS, **options})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("qkv.weight", (35, WIDTH)),
        ("attn.qkv.weight", (2 * WIDTH, WIDTH)),  # grouped keys and values
        ("attn.c_attn.weight", (2 * WIDTH, WIDTH)),
        ("in_proj_weight", (6 * WIDTH, WIDTH)),
    ],
)
def test_fused_arrays_hold_three_of_equal_size(save, name, shape):
    with pytest.raises(ValueError, match=r"of shape .* does not hold .*save_heads"):
        extract_heads(save({name: np.ones(shape)}), HEADS)


def test_other_names_that_end_alike_are_not_taken(save):
    state = {"layers.0.attention.wqkv.weight": np.ones((3 * WIDTH, WIDTH))}
    with pytest.raises(ValueError, match="no queries and keys are found"):
        extract_heads(save(state), HEADS)


def test_a_fused_array_with_outputs_first_is_read_too(save, generator):
    weight, bias = stacked(*draw(generator), generator)
    one, two = (
        extract_heads(save({"h.0.c_attn.weight": array, "h.0.c_attn.bias": bias}), HEADS)
        for array in (weight, weight.T.copy())
    )
    np.testing.assert_array_equal(one.layers[0].queries, two.layers[0].queries)
    np.testing.assert_array_equal(one.layers[0].keys, two.layers[0].keys)


@pytest.mark.parametrize(
    ("build", "before", "after"),
    [
        (bert, "attention.self", "crossattention.self"),
        (llama, "self_attn", "encoder_attn"),
        (multihead, "self_attn", "multihead_attn"),
    ],
)
def test_attention_to_another_sequence_is_left_out(save, generator, build, before, after):
    own = build("layers.0.", *draw(generator), generator)
    other = build("layers.0.", *draw(generator), generator)
    other = {name.replace(before, after): array for name, array in other.items()}
    found = extract_heads(save(own | other), HEADS)
    assert len(found.layers) == 1
    np.testing.assert_array_equal(
        found.layers[0].queries, extract_heads(save(own), HEADS).layers[0].queries
    )


def test_a_key_that_no_token_holds(save):
    state = {"in_proj_weight": np.ones((36, WIDTH)), "bias_k": np.ones((1, 1, WIDTH))}
    with pytest.raises(ValueError, match="bias_k adds a key"):
        extract_heads(save(state), HEADS)


def test_layers_of_different_widths(save, generator):
    state = bert("a.", *draw(generator), generator)
    state |= {
        "b.attention.self.query.weight": np.ones((3, 6)),
        "b.attention.self.key.weight": np.ones((3, 6)),
    }
    with pytest.raises(ValueError, match=r"different widths \[7, 13\]; choose some"):
        extract_heads(save(state), HEADS)


def test_wrong_files(tmp_path, save):
    with pytest.raises(FileNotFoundError, match="no state dict"):
        state_dict_shapes(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        state_dict_shapes(tmp_path / "model.bin")
    (tmp_path / "broken.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="damaged or of another format"):
        state_dict_shapes(tmp_path / "broken.safetensors")
    path = save({"../../qkv.weight": np.ones((36, WIDTH))})
    with pytest.raises(ValueError, match="leads out of the file"):
        extract_heads(path, HEADS)
    with pytest.raises(ValueError, match="lacks 'b'"):
        read_state_dict(save({"a": np.ones(2)}), ["a", "b"])


def test_names_alone_tell_the_modules():
    names = [f"transformer.h.{number}.attn.c_attn.weight" for number in (10, 2, 0)]
    layout, modules = find_modules([*names, "transformer.wte.weight"])
    assert layout.name == "gpt2"
    assert modules == tuple(f"transformer.h.{number}.attn." for number in (0, 2, 10))
