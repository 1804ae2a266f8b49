"""What was changed on a model after it was built: saved, told by loaded_by, or refused."""

import functools
import json
import math
import random
import struct
import warnings

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from safetensors.torch import load_file
from torch import nn

from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_table import list_heads
from pathkernel_models.inputs.batches import tensors_of
from pathkernel_models.state import suspend_compilation
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries' own
WIDTH, HEADS = 16, 4
SMALL = {
    "vocab_size": 30,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
}
IDS = torch.randint(3, 30, (2, 6), generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
FAMILIES = {
    "llama": ("LlamaForCausalLM", SMALL | {"num_key_value_heads": 2}),
    "bert": ("BertModel", SMALL),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 30, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "vit": ("ViTModel", SMALL | {"image_size": 8, "patch_size": 4}),
}


LOADED_BY = ("from_pretrained", "load_model", "load_model with model=")


class Own(nn.Module):
    """A table that is not saved, a function, and numbers that the forward pass reads."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tokens, self.norm = nn.Embedding(30, WIDTH), nn.LayerNorm(WIDTH)
        self.scale, self.normalised, self.function = 2.0, True, torch.tanh
        self.settings = {"shift": 0.5, "names": ["a", "b"]}
        self.register_buffer("table", torch.arange(6.0)[:, None].sin(), persistent=False)
        self.seen = None

    def forward(self, ids):
        states = self.tokens(ids) * self.scale + self.table.to(self.tokens.weight.dtype)
        self.seen = self.encoder(states)
        states = self.norm(self.seen) if self.normalised else self.seen
        return self.function(states + self.settings["shift"])


def built(name):
    torch.manual_seed(0)
    if name == "own":
        model = Own()
    elif name == "timm":
        timm = pytest.importorskip("timm", reason="timm is not installed")
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3)
    else:
        transformers = pytest.importorskip("transformers", minversion="5")
        kind = getattr(transformers, FAMILIES[name][0])
        model = kind(kind.config_class(**FAMILIES[name][1]))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.eval()


def batch_of(model):
    if hasattr(model, "patch_embed"):  # of timm
        return IMAGES.repeat(1, 1, 4, 4)
    return IMAGES if getattr(model, "main_input_name", None) == "pixel_values" else IDS


def outputs(model):
    with torch.no_grad():
        return list(tensors_of(model(batch_of(model))))


def are_equal(one, other):
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(one, other)
    )


def modules(model, rng):
    """Modules in random order; the same for a model that is built alike."""
    named = list(model.named_modules())
    rng.shuffle(named)
    return [module for _, module in named]


def own_attributes(model, rng, kind):
    """Modules and the names of their attributes of a type, in random order."""
    pairs = [
        (module, name)
        for module in modules(model, rng)
        for name, value in vars(module).items()
        if type(value) is kind and name not in {**vars(nn.Module()), "gradient_checkpointing": 0}
    ]
    rng.shuffle(pairs)
    return pairs


def change_number(model, rng):
    module, name = own_attributes(model, rng, rng.choice([float, float, int]))[0]
    setattr(module, name, getattr(module, name) * 2 + 1)


def change_flag(model, rng):
    module, name = own_attributes(model, rng, bool)[0]
    setattr(module, name, not getattr(module, name))


def change_buffer(model, rng):
    buffers = [*model.named_buffers()]
    name, value = rng.choice(buffers)
    module = model.get_submodule(name.rpartition(".")[0])
    module._buffers[name.rpartition(".")[2]] = value * 2 + 1


def change_configuration(model, rng):
    keys = [key for key, value in model.config.to_dict().items() if type(value) in (int, float)]
    key = rng.choice(sorted(keys))
    setattr(model.config, key, getattr(model.config, key) * 2)


def change_activation(model, rng):
    for module in modules(model, rng):
        for name, child in [*module._modules.items(), *vars(module).items()]:
            if name in ("act", "activation", "function", "act_fn", "intermediate_act_fn"):
                old = callable(child) and not isinstance(child, nn.Module)
                setattr(module, name, torch.sigmoid if old else nn.Softplus())
                return


def change_norm(model, rng):
    for module in modules(model, rng):
        for name, child in module._modules.items():
            if "norm" in type(child).__name__.lower():
                module._modules[name] = nn.Identity()
                return


def change_precision(model, rng):
    rng.choice([m for m in modules(model, rng) if isinstance(m, nn.Linear)]).double()


def change_precision_of_all(model, rng):
    model.to(rng.choice([torch.float64, torch.bfloat16]))


def change_ties(model, rng):
    for module in modules(model, rng):
        if type(module) is nn.Linear:
            module.weight = nn.Parameter(module.weight.detach().clone())
            for other in modules(model, rng):
                if (
                    type(other) is nn.Linear
                    and other is not module
                    and other.weight.shape == module.weight.shape
                ):
                    other.weight = module.weight
                    return


def untie(model, rng):
    for module in modules(model, rng):
        if isinstance(module, nn.Embedding):
            module.weight = nn.Parameter(module.weight.detach() * 1.5)
            return


def add_hook(model, rng):
    module = rng.choice([m for m in modules(model, rng) if isinstance(m, nn.LayerNorm | nn.Linear)])
    factor = rng.choice([2, 3])
    if rng.random() < 0.5:
        module.register_forward_hook(lambda _, inputs, output: output * factor)
    else:
        module.register_forward_pre_hook(lambda _, inputs: (inputs[0] * factor,))


def replace_forward(model, rng):
    module = rng.choice([m for m in modules(model, rng) if isinstance(m, nn.LayerNorm | nn.Linear)])
    before, factor = module.forward, rng.choice([2, 3])
    module.forward = lambda *values: before(*values) * factor


def swap_layers(model, rng):
    for module in modules(model, rng):
        if isinstance(module, nn.ModuleList) and len(module) > 1:
            module[1] = module[0]
            return


CHANGES = [
    change_activation,
    change_buffer,
    change_configuration,
    change_flag,
    change_norm,
    change_number,
    change_precision,
    change_precision_of_all,
    change_ties,
    untie,
    add_hook,
    replace_forward,
    swap_layers,
]


def changed(name, seed):
    """A random change, its numbers, a model with it, and outputs; None if that does not run.

    Half of the models lose a head afterwards.
    """
    rng = random.Random(f"{name} {seed}")
    change = rng.choice(CHANGES)
    model, state = built(name), rng.getstate()
    try:
        change(model, rng)
        if rng.random() < 0.5:
            remove_heads(model, [(2, 1)], smaller=True, batch=batch_of(model))
        return change, state, model, outputs(model)
    except Exception:  # a change that the family does not have, or that its code does not take
        return None


def came_of(change, state, name, model, expected, folder):
    """Save and load a changed model; say what came of it, and fail if its function is lost.

    Attributes of a class of one's own, and hooks, are told by a warning.
    """
    saved = save_model(model, folder)
    if saved.loaded_by == "from_pretrained":
        assert are_equal(outputs(type(model).from_pretrained(folder).eval()), expected)
    if saved.loaded_by != "load_model with model=":
        assert are_equal(outputs(load_model(folder)), expected)
    # a model with the same change is loaded; one without has the same function, or is refused
    again, rng = built(name), random.Random()
    rng.setstate(state)
    change(again, rng)
    assert are_equal(outputs(load_model(folder, again)), expected)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            plain = load_model(folder, built(name))
        except CaptureError as error:
            return str(error)
    if differing := [str(one.message) for one in told if "differs in" in str(one.message)]:
        return differing[0]
    assert are_equal(outputs(plain), expected)
    return saved.loaded_by


@pytest.mark.parametrize("name", ["own", *FAMILIES, "timm"])
def test_random_changes_are_never_lost_in_silence(tmp_path, name):
    """Four of every family; those that a plain model lacks are told with a module's name."""
    tried, seed = 0, 0
    while tried < 4:
        if (drawn := changed(name, seed)) is not None:
            change, state, model, expected = drawn
            result = came_of(change, state, name, model, expected, tmp_path / str(seed))
            named = [part for part, _ in model.named_modules() if part] + ["the model itself"]
            assert result in LOADED_BY or any(part in result for part in named), result
            tried += 1
        seed += 1


def encoder(heads=HEADS, **changes):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, heads, 24, batch_first=True, **changes)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


STATES = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(2))


def changed_epsilon():
    model = encoder()
    model.layers[1].norm2.eps = 0.1
    return model


OTHERS = {
    "heads": (lambda: encoder(heads=8), "no layer 'layers.0.self_attn' of 4 heads"),
    "order of norms": (lambda: encoder(norm_first=True), r"layers.0 has norm_first True"),
    "activation": (lambda: encoder(activation="gelu"), r"layers.0 has activation.*gelu|_gelu 2"),
    "epsilon": (lambda: encoder(layer_norm_eps=0.1), r"layers.0.norm1 has eps 0.1.* and 3 more"),
    "epsilon of one": (changed_epsilon, r"layers.1.norm2 has eps 0.1, where .* 1e-05\);"),
}


@pytest.mark.parametrize("smaller", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_computes_otherwise_is_refused(tmp_path, name, smaller):
    model = encoder()
    remove_heads(model, [(1, 2)], smaller=smaller, batch=STATES)
    save_model(model, tmp_path / "saved")
    other, message = OTHERS[name]
    whole = other()
    modules = dict(whole.named_modules())
    with pytest.raises(CaptureError, match=message):
        load_model(tmp_path / "saved", whole)
    assert dict(whole.named_modules()) == modules


def compiled_parts(model):
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    model.layers[1].self_attn = torch.compile(model.layers[1].self_attn, backend="eager")
    return model


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "compiled": functools.partial(torch.compile, backend="eager"),
    "both": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    "compiled parts": compiled_parts,
    "compiled in place": compiled_in_place,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_left_out(tmp_path, name):
    model = encoder()
    remove_heads(model, [(1, 2), (2, 1)], smaller=True, batch=STATES)
    with torch.no_grad():
        expected = model(STATES)
        names = [*model.state_dict()]
        wrapped = WRAPPERS[name](model)
        before = {key: type(module) for key, module in wrapped.named_modules()}
        save_model(wrapped, tmp_path)
        assert {key: type(module) for key, module in wrapped.named_modules()} == before
        assert sorted(load_file(tmp_path / "model.safetensors")) == sorted(names)
        assert torch.equal(load_model(tmp_path, encoder())(STATES), expected)
        given = WRAPPERS[name](encoder())
        loaded = load_model(tmp_path, given)
        assert loaded is given
        with suspend_compilation():
            assert torch.equal(loaded(STATES), expected)


def test_hooks_of_a_wrapper_are_refused(tmp_path):
    wrapped = nn.DataParallel(encoder())
    wrapped.register_forward_hook(print)
    with pytest.raises(CaptureError, match="the model itself has hooks on its wrapper, a DataPar"):
        save_model(wrapped, tmp_path)


def test_parts_compiled_by_jit_are_refused(tmp_path):
    """Whose numbers are in their code; their heads, and those beside them, are listed."""
    model = built("own")
    model.part = torch.jit.trace(nn.Linear(2, 2), torch.ones(2))
    assert list_heads(model)["heads"].tolist() == [HEADS, HEADS]
    with pytest.raises(CaptureError, match=r"^part was compiled by torch.jit, .*; put the module"):
        save_model(model, tmp_path / "scripted")


def test_parameters_that_the_state_lacks_are_kept(tmp_path):
    class Partial(Own):
        def state_dict(self, *args, **kwargs):
            state = super().state_dict(*args, **kwargs)
            return {name: value for name, value in state.items() if not name.startswith("norm")}

    model, other = Partial(), Partial()
    nn.init.normal_(model.norm.weight)
    save_model(model, tmp_path)
    parameter = other.norm.weight
    assert load_model(tmp_path, model=other).norm.weight is parameter
    torch.testing.assert_close(parameter, model.norm.weight, rtol=0, atol=0)


def test_types_that_a_file_does_not_store_are_refused(tmp_path):
    model = built("own")
    model.table = model.table.to(torch.complex128)
    with pytest.raises(CaptureError, match=r"table has a type .* torch\.complex128; convert it"):
        save_model(model, tmp_path / "complex")
    assert not (tmp_path / "complex").exists()


def test_caches_of_forward_passes_are_kept(tmp_path):
    """A tensor that a class stores, and whole numbers that stay, load into a fresh model."""
    model = built("own")
    expected = outputs(model)
    assert save_model(model, tmp_path).loaded_by == "load_model with model="
    loaded = load_model(tmp_path, built("own"))
    assert torch.equal(loaded.seen, model.seen)
    assert are_equal(outputs(loaded), expected)


def replace_buffers(folder, kind, **shapes):
    """Write a file of arrays of any size, which takes no space, in place of the buffers."""
    size = {"F32": 4, "U8": 1}[kind]
    header, start = {}, 0
    for name, shape in shapes.items():
        stop = start + size * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    with open(folder / "buffers.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + start)


OTHER_BUFFERS = {
    "unknown": ("F32", {"other.table": [2]}, "other.table is no tensor of the model outside of"),
    "of the state": ("F32", {"norm.weight": [16]}, "norm.weight is no tensor of the model outside"),
    "a method": ("F32", {"forward": [16]}, "forward is no tensor of the model outside"),
    "another kind": ("U8", {"table": [6, 1]}, "table has numbers of another kind .*float32"),
    "axes": ("F32", {"table": [6]}, r"table is \(6,\), but of the model \(6, 1\)"),
    "large": ("F32", {"table": [2**28, 1]}, r"table is \(268435456, 1\), larger than a model"),
    "large cache": ("F32", {"seen": [2**28]}, r"seen is \(268435456,\), larger than a model"),
}


@pytest.mark.parametrize("name", OTHER_BUFFERS)
def test_buffers_that_a_model_does_not_hold(tmp_path, name):
    """They are told by the header of their file, whose content is not read."""
    save_model(built("own"), tmp_path)
    kind, shapes, message = OTHER_BUFFERS[name]
    replace_buffers(tmp_path, kind, **shapes)
    model = built("own")
    with pytest.raises(CaptureError, match=rf"buffers.safetensors in .*\({message}"):
        load_model(tmp_path, model)
    assert model.table.shape == (6, 1)
    path = tmp_path / "pathkernel.json"
    content = json.loads(path.read_text())
    content["versions"]["torch"] = "1.0"  # then they are left out, and nothing of them is read
    path.write_text(json.dumps(content))
    assert torch.equal(load_model(tmp_path, model).table, model.table)


def test_tables_that_grow_are_kept(tmp_path):
    model = built("own")
    model.table = torch.arange(9.0)[:, None]
    save_model(model, tmp_path)
    assert torch.equal(load_model(tmp_path, built("own")).table, model.table)


def test_the_precision_of_a_module(tmp_path):
    """Weights of one precision are what from_pretrained gives."""
    transformers = pytest.importorskip("transformers", minversion="5")
    model = built("gpt2")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().double())
    assert save_model(model, tmp_path).loaded_by == "load_model"
    assert load_model(tmp_path).lm_head.weight.dtype == torch.float64
    # it would take its default configuration, were there weights of a name that it knows
    with pytest.raises(OSError, match=r"no file named model.safetensors"):
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path)


def test_rounded_buffers_are_not_those_of_the_library(tmp_path):
    """In half precision, where a model that is loaded computes them again in single precision."""
    model = built("llama").bfloat16()
    assert save_model(model, tmp_path).loaded_by == "load_model"
    loaded = load_model(tmp_path)
    assert torch.equal(loaded.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert are_equal(outputs(loaded), outputs(model))


def test_from_pretrained_is_tried(tmp_path, monkeypatch):
    model = built("bert")
    assert save_model(model, tmp_path).loaded_by == "from_pretrained"
    original = type(model).from_pretrained.__func__

    def from_pretrained(kind, *args, **kwargs):
        loaded = original(kind, *args, **kwargs)
        loaded.encoder.layer[0].output.dense.bias.data += 1e-6
        return loaded

    monkeypatch.setattr(type(model), "from_pretrained", classmethod(from_pretrained))
    assert save_model(model, tmp_path).loaded_by == "load_model"
    assert not (tmp_path / "config.json").exists()
    assert are_equal(outputs(load_model(tmp_path)), outputs(model))


def test_from_pretrained_opens_files_of_the_folder_alone(tmp_path, monkeypatch):
    model = built("bert")
    original = type(model).from_pretrained.__func__
    outside = tmp_path / "outside"
    outside.write_text("{}")

    def from_pretrained(kind, folder, **kwargs):
        outside.read_text()
        return original(kind, folder, **kwargs)

    monkeypatch.setattr(type(model), "from_pretrained", classmethod(from_pretrained))
    assert save_model(model, tmp_path / "saved").loaded_by == "load_model"
    assert are_equal(outputs(load_model(tmp_path / "saved")), outputs(model))


def test_changes_are_named(tmp_path):
    model = built("llama")
    model.config.rms_norm_eps = 0.25
    model.model.layers[1].mlp.act_fn = nn.ReLU()
    model.generation_config.max_new_tokens = 3
    (change,) = save_model(model, tmp_path).changes
    assert change.startswith("model.layers.0.input_layernorm has variance_epsilon 0.25, where")
    with pytest.raises(CaptureError, match=r"needs what was changed: model\.layers\.0\.input_l"):
        load_model(tmp_path)
    with pytest.raises(
        CaptureError, match=r"differs in .*config.rms_norm_eps 1e-06.*0\.25, and 1 more"
    ):
        load_model(tmp_path, built("llama"))
    whole = built("llama")
    whole.config.rms_norm_eps, whole.model.layers[1].mlp.act_fn = 0.25, nn.ReLU()
    loaded = load_model(tmp_path, whole)
    assert are_equal(outputs(loaded), outputs(model))
    assert loaded.generation_config.max_new_tokens == 3


def test_the_live_model_stays_as_it_is(tmp_path):
    """Though BigBird exchanges its attention when short sequences pass."""
    transformers = pytest.importorskip("transformers", minversion="5")
    options = SMALL | {"block_size": 2, "num_random_blocks": 1}
    model = transformers.BigBirdModel(transformers.BigBirdConfig(**options)).eval()
    before = {name: type(module) for name, module in model.named_modules()}
    save_model(model, tmp_path)
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert model.encoder.attention_type == "block_sparse"


def test_other_versions_of_libraries(tmp_path):
    """Attributes that only one version has, and buffers that it lacks, are passed over."""
    model = built("own")
    save_model(model, tmp_path)
    path = tmp_path / "pathkernel.json"
    content = json.loads(path.read_text())
    for kind in content["kinds"]:
        if kind["class"] == "torch.TransformerEncoderLayer":
            kind["new_attribute"] = "1"
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=r"has new_attribute not set"):
        load_model(tmp_path, built("own"))
    content["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(content))
    assert are_equal(outputs(load_model(tmp_path, built("own"))), outputs(model))
    other = built("own")
    other.norm.eps = 0.5
    with pytest.raises(CaptureError, match=r"norm has eps 0.5.*; it was saved with torch 1.0"):
        load_model(tmp_path, other)
