"""Queries and keys out of state dicts, against the libraries and against plain formulas."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from pathkernel_core import attentioned_inputs
from pathkernel_tasks.heads_file import read_heads, save_heads
from pathkernel_tasks.layouts import find_modules
from pathkernel_tasks.state_dicts import extract_heads, state_dict_shapes

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


def clip(prefix, query, key, generator):
    state = llama(prefix, query, key, generator)
    return {name.replace(".o_proj.", ".out_proj."): array for name, array in state.items()}


def vit_of_transformers_5(prefix, query, key, generator):
    state = llama(prefix, query, key, generator)
    return {name.replace("self_attn.", "attention."): array for name, array in state.items()}


def distilbert(prefix, query, key, generator):
    names = {"self.query.": "q_lin.", "self.key.": "k_lin.", "self.value.": "v_lin."}
    state = bert(prefix, query, key, generator)
    return {
        name.replace(old, new): array
        for name, array in state.items()
        for old, new in names.items()
        if old in name
    }


def neox(prefix, query, key, generator):
    """Queries, keys and values of the first head, then of the second, and so on."""
    parts = [query, key, (generator.normal(size=(WIDTH, WIDTH)), generator.normal(size=WIDTH))]
    return {
        f"{prefix}attention.query_key_value.{kind}": np.concatenate(
            [part[which][h * G : (h + 1) * G] for h in range(HEADS) for part in parts]
        )
        for which, kind in enumerate(("weight", "bias"))
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
        ("separate", bert),
        ("separate", vit),
        ("separate", distilbert),
        ("separate", vit_of_transformers_5),
        ("separate", clip),
        ("separate", llama),
        ("fused", neox),
        ("fused", fused),
        ("fused", fused_without_key_bias),
        ("gpt2", gpt2),
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
    (origin,) = {entry.origin for entry in find_modules(state).values()}
    assert origin in heads.approximation
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


def wave(shape, phase):
    return np.sin(phase + 1.7 * np.arange(np.prod(shape))).reshape(shape)


# attention of torch.nn.MultiheadAttention(4, 2, batch_first=True) of PyTorch 2.13 in float64, query
# before key, for the tokens wave((1, 3, 4), 0.5) and its arrays in the order of their names set to
# wave(shape, 0.0), wave(shape, 1.0), …
TORCH = [
    *(0.0319871, 0.11686771, 0.85114519, 0.01292608, 0.06791314, 0.91916078),
    *(0.01231418, 0.06390698, 0.92377884, 0.12677383, 0.35431898, 0.51890719),
    *(0.25898501, 0.31818193, 0.42283306, 0.43710754, 0.25900875, 0.30388371),
]


def test_attention_that_torch_recorded(save):
    shapes = {"in_proj_bias": (12,), "out_proj.bias": (4,), "out_proj.weight": (4, 4)}
    shapes["in_proj_weight"] = (12, 4)
    state = {name: wave(shapes[name], phase) for phase, name in enumerate(sorted(shapes))}
    heads = extract_heads(save(state), 2)
    assert heads.modules == ("",)
    assert heads.approximation == ""
    found = heads.layers[0].attention(with_constant(wave((1, 3, 4), 0.5)))
    expected = np.reshape(TORCH, (1, 2, 3, 3)).swapaxes(-1, -2)
    assert np.allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("prefix", "build", "layout"),
    [
        ("encoder.layer.0.", bert, "separate"),
        ("roberta.encoder.layer.0.", bert, "separate"),
        ("vit.encoder.layer.0.", vit, "separate"),
        ("vit.layers.0.", vit_of_transformers_5, "separate"),
        ("distilbert.transformer.layer.0.", distilbert, "separate"),
        ("vision_model.encoder.layers.0.", clip, "separate"),
        ("gpt_neox.layers.0.", neox, "fused"),
        ("h.0.self_", neox, "fused"),
        ("blocks.0.", fused, "fused"),
        ("transformer.h.0.", gpt2, "gpt2"),
        ("h.0.", gpt2, "gpt2"),
        ("model.layers.0.", llama, "separate"),
        ("transformer_encoder.layers.0.", multihead, "multihead"),
    ],
)
def test_names_as_published(save, generator, prefix, build, layout):
    """Whole models hold more arrays, of which none is taken for queries and keys."""
    state = build(prefix, *draw(generator), generator)
    for name in (
        "wte",
        "embeddings.word_embeddings",
        "lm_head",
        "pooler.dense",
        f"{prefix}mlp.fc1",
    ):
        state[f"{name}.weight"] = generator.normal(size=(5, WIDTH))
    heads = extract_heads(save(state), HEADS)
    assert len(heads.modules) == 1
    assert heads.modules[0].startswith(prefix)
    assert [entry.name for entry in find_modules(state).values()] == [layout]


def shards(save, generator):
    """A model in two files with an index, as transformers writes large ones."""
    drawn = [draw(generator) for _ in range(2)]
    states = [bert(f"layer.{n}.", *pair, generator) for n, pair in enumerate(drawn)]
    key = "layer.0.attention.self.key.weight"
    states[1][key] = states[0].pop(key)  # a module may lie in both
    places = {}
    for number, state in enumerate(states, start=1):
        path = save(state, f"model-0000{number}-of-00002.safetensors")
        places |= dict.fromkeys(state, path.name)
    index = path.with_name("model.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index, states[0] | states[1]


def test_a_model_in_several_files(save, generator):
    index, state = shards(save, generator)
    whole = extract_heads(save(state, "whole.safetensors"), HEADS)
    for path in (index, index.parent):
        heads = extract_heads(path, HEADS)
        assert heads.modules == whole.modules
        for layer, expected in zip(heads.layers, whole.layers, strict=True):
            assert np.array_equal(layer.queries, expected.queries)
            assert np.array_equal(layer.keys, expected.keys)
    save(state)  # in the folder, too
    assert extract_heads(index.parent, HEADS).modules == whole.modules


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "is damaged"),
        ("{}", "is damaged: 'weight_map'"),
        ('{"weight_map": []}', "is damaged"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "is damaged: Invalid name"),
        ('{"weight_map": {"a": "model.bin"}}', "must end in .safetensors. Such files of PyTorch"),
        ('{"weight_map": {"a": "absent.safetensors"}}', "there is no state dict '.*absent"),
    ],
)
def test_damaged_indices(tmp_path, content, message):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        state_dict_shapes(path)


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt"])
def test_pickled_models_are_named_with_their_conversion(tmp_path, suffix):
    for use in (state_dict_shapes, read_heads):
        with pytest.raises(ValueError, match=rf"x\.{suffix}' must end .*safetensors\.torch\.save_"):
            use(tmp_path / f"x.{suffix}")


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
    layer = extract_heads(path, HEADS).layers[0]
    for found, whole in zip((layer.queries, layer.keys), values):
        assert found.shape == (HEADS, G, WIDTH)
        assert np.allclose(found.reshape(WIDTH, WIDTH), whole, rtol=2**-7)
        assert not np.array_equal(found.reshape(WIDTH, WIDTH), whole)


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
        (
            {"k": np.ones((WIDTH, 5))},
            {},
            r"key.weight' must have .* N_0 = 12 of .*, but has \(12, 5\)",
        ),
        ({"q": np.full((WIDTH, WIDTH), np.nan)}, {}, "query.weight' holds NaN"),
        (
            {"q": np.ones((WIDTH, WIDTH), np.int32)},
            {},
            "query.weight' must hold real floating-point numbers",
        ),
        ({"q": np.ones(WIDTH)}, {}, r"query.weight' must have shape \(H G, N_0\), but has \(12,\)"),
        ({}, {"layers": (2,)}, "has attention modules 1 to 1"),
        (
            {},
            {"layout": "strange"},
            "layout must be auto or one of multihead, separate, gpt2, fused",
        ),
        ({}, {"layout": "gpt2"}, "no queries and keys are found"),
        ({"queries.1": np.ones(3), "keys.1": np.ones(3)}, {}, "holds queries and keys already"),
        ({"b.c_attn.weight": np.ones((WIDTH, 36))}, {}, "layouts gpt2, separate all fit"),
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
    with pytest.raises(ValueError, match=r"must have shape \(\d+, \d+\), but has"):
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


def test_names_alone_tell_the_modules():
    names = [f"transformer.h.{number}.attn.c_attn.weight" for number in (10, 2, 0)]
    modules = find_modules([*names, "transformer.wte.weight"])
    assert {entry.name for entry in modules.values()} == {"gpt2"}
    assert list(modules) == [f"transformer.h.{number}.attn." for number in (0, 2, 10)]
