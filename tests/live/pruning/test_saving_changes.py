"""What was changed on a model after it was built: saved, told by loaded_by, or refused."""

import random

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_models.batches import tensors_of
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.saving import load_model, save_model

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
    else:
        transformers = pytest.importorskip("transformers", minversion="5")
        kind = getattr(transformers, FAMILIES[name][0])
        model = kind(kind.config_class(**FAMILIES[name][1]))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.eval()


def outputs(model):
    with torch.no_grad():
        images = getattr(model, "main_input_name", None) == "pixel_values"
        return list(tensors_of(model(IMAGES if images else IDS)))


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
    """A random change, its numbers, a model with it, and outputs; None if that does not run."""
    rng = random.Random(f"{name} {seed}")
    change = rng.choice(CHANGES)
    model, state = built(name), rng.getstate()
    try:
        change(model, rng)
        return change, state, model, outputs(model)
    except Exception:  # a change that the family does not have, or that its code does not take
        return None


def came_of(change, state, name, model, expected, folder):
    """Save and load a changed model; say what came of it, and fail if its function is lost."""
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
    try:
        plain = load_model(folder, built(name))
    except CaptureError as error:
        return str(error)
    assert are_equal(outputs(plain), expected)
    return saved.loaded_by


@pytest.mark.parametrize("name", ["own", *FAMILIES])
def test_twenty_random_changes_are_never_lost_in_silence(tmp_path, name):
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
