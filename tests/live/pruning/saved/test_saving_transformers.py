"""Smaller models of transformers, loaded in another process by pathkernel and by transformers."""

import json
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)
from edited_models import correct_checksums
from safetensors.torch import load_file, save_file
from test_transformers import GROUPED, MODELS, OTHERS, SMALL, T5

from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_table import list_heads
from pathkernel_models.inputs.batches import tensors_of
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own
FAMILIES = {name: (kind, options) for name, (_, kind, options, _, _) in MODELS.items()}
FAMILIES |= {name: (kind, options) for name, (kind, options, _, fits) in OTHERS.items() if fits}
FAMILIES["vit"] = ("ViTModel", SMALL | {"image_size": 8, "patch_size": 4})
FAMILIES["t5 encoder"] = ("T5EncoderModel", T5)
FAMILIES["mistral"] = ("MistralForCausalLM", GROUPED)
FAMILIES["gemma"] = ("GemmaModel", GROUPED | {"head_dim": 4})
MULTI_QUERY = SMALL | {"num_key_value_heads": 1, "head_dim": 4, "num_experts": 4}
FAMILIES["laguna"] = (
    "LagunaForCausalLM",
    MULTI_QUERY | {"moe_intermediate_size": 8, "num_experts_per_tok": 2},
)
# families whose configuration tells the size of a head apart from the number of heads
EXPRESSED = {"llama", "qwen2", "qwen3", "t5 encoder", "mistral", "gemma", "laguna"}
# and those whose configuration tells the heads of every layer
UNEQUAL = {"laguna"}
LOAD = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, transformers
import pathkernel as pk
from pathkernel_models.inputs.batches import tensors_of
from safetensors.torch import load_file, save_file
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
for folder in sorted(Path(sys.argv[1]).iterdir()):
    models = {"ours": pk.load_model(folder / "model")}
    if json.loads((folder / "model/pathkernel.json").read_text())["loaded_by"] == "from_pretrained":
        (kind,) = json.loads((folder / "model/config.json").read_text())["architectures"]
        auto = transformers.AutoModelForCausalLM if "CausalLM" in kind else transformers.AutoModel
        auto = transformers.T5EncoderModel if kind == "T5EncoderModel" else auto
        models["library"] = auto.from_pretrained(folder / "model").eval()
    for name, model in models.items():
        with torch.no_grad():
            outputs = tensors_of(model(**load_file(folder / "batch")))
            save_file({str(i): value.clone() for i, value in enumerate(outputs)}, folder / name)
"""


def built(name):
    """A model of a family with random weights, and a batch."""
    kind, options = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    model = model(model.config_class(**options)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 20, (2, 7))
    batch = {"input_ids": ids}
    if name == "vit":
        batch = {"pixel_values": torch.randn(2, 3, 8, 8)}
    elif name == "whisper":
        batch = {"input_features": torch.randn(2, 4, 20), "decoder_input_ids": ids}
    elif model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids[:, :4].clone()
    return model, batch


def outputs_of(model, batch):
    with torch.no_grad():
        return {str(i): value.clone() for i, value in enumerate(tensors_of(model(**batch)))}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Folders in which a new process has loaded every family, even and uneven, and run it."""
    root = tmp_path_factory.mktemp("families")
    for name in FAMILIES:
        for form in ("even", "uneven"):
            model, batch = built(name)
            heads = [(layer, head) for layer in list_heads(model).index for head in (1, 2)]
            if form == "uneven":  # of T5, whose layers share their bias, another number
                heads = heads[::2] if "t5" in name else heads[:-2]
            remove_heads(model, heads, smaller=True, batch=batch)
            folder = root / f"{name} {form}"
            saved = save_model(model, folder / "model")
            assert saved.taken_out == tuple(f"{layer}-{head}" for layer, head in heads)
            save_file(batch, folder / "batch")
            save_file(outputs_of(model, batch), folder / "expected")
    subprocess.run([sys.executable, "-c", LOAD, str(root)], check=True, timeout=300)
    return root


@pytest.mark.parametrize("form", ["even", "uneven"])
@pytest.mark.parametrize("name", FAMILIES)
def test_loaded_in_another_process(loaded, name, form):
    folder = loaded / f"{name} {form}"
    expected, actual = load_file(folder / "expected"), load_file(folder / "ours")
    assert expected.keys() == actual.keys()
    assert all(torch.equal(actual[key], value) for key, value in expected.items())
    if name in (EXPRESSED if form == "even" else UNEQUAL):
        actual = load_file(folder / "library")
        assert all(torch.equal(actual[key], value) for key, value in expected.items())
    by_library = json.loads((folder / "model/pathkernel.json").read_text())["loaded_by"]
    if by_library != "from_pretrained":  # refused, and not misread
        kind = getattr(transformers, FAMILIES[name][0])
        with pytest.raises((RuntimeError, ValueError), match=r"size mismatch|ignore_mismatched"):
            kind.from_pretrained(folder / "model")


def test_which_families_the_library_loads_itself(loaded):
    by_library = {
        name
        for name in FAMILIES
        if (loaded / f"{name} even/library").exists() and name != "vit"  # by its version
    }
    assert by_library == EXPRESSED


def test_the_day_that_the_library_loads_unequal_layers(loaded):
    """``save_model`` writes ``per_layer_config`` and lists of heads, and tries what comes of it."""
    by_library = {
        name
        for name in FAMILIES
        if (loaded / f"{name} uneven/library").exists() and "t5" not in name  # the same heads
    }
    assert by_library == UNEQUAL, (
        f"transformers {transformers.__version__} loads layers with unlike numbers of heads of "
        f"{', '.join(sorted(by_library - UNEQUAL)) or 'no further family'}, and no longer of "
        f"{', '.join(sorted(UNEQUAL - by_library)) or 'none'}: save_model has written it, so "
        "change only UNEQUAL here, and the families that docs/models.md names under Configurations "
        "of smaller models"
    )


def own_layers(name):
    """A model whose code reads the configuration of every layer, and a batch."""
    sizes = SMALL | {"num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 4}
    sizes |= {"num_key_value_heads": 4, "sliding_window": 4}
    sizes["layer_types"] = ["sliding_attention", "full_attention"] * 2
    torch.manual_seed(0)
    if name == "gemma4":
        sizes |= {"global_head_dim": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
        sizes |= {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 20}
        config = transformers.Gemma4TextConfig(**sizes, num_kv_shared_layers=0)
        model = transformers.Gemma4ForCausalLM(config)
    else:
        config = transformers.Step3p7TextConfig(**sizes, mlp_layer_types=["dense"] * 4)
        model = transformers.Step3p7TextModel(config)
    return model.eval(), {"input_ids": torch.randint(3, 20, (2, 7))}


@pytest.mark.parametrize("name", ["step3p7", "gemma4"])
def test_layers_that_the_configuration_tells_one_by_one(name, tmp_path):
    """Step 3.7 reads all numbers of a layer; Gemma 4 the keys of layers of one kind."""
    if not hasattr(transformers, "Step3p7TextModel"):
        pytest.skip(f"transformers {transformers.__version__} has no model that reads them")
    model, batch = own_layers(name)
    rng = random.Random(name)
    left = [rng.choice([range(1, 9, 2), range(1, 5), range(1, 9)]) for _ in range(4)]
    if name == "gemma4":  # half of the heads: a query of each group, or half of the groups
        left = [range(1, 9, 2), range(1, 5)] * 2
    gone = [(n, head) for n, row in enumerate(left, 1) for head in range(1, 9) if head not in row]
    remove_heads(model, gone, smaller=True, batch=batch)
    assert save_model(model, tmp_path).loaded_by == "from_pretrained"
    entries = json.loads((tmp_path / "config.json").read_text())["per_layer_config"]
    assert any("num_key_value_heads" in values for values in entries.values())
    expected = outputs_of(model, batch)
    for loaded in (type(model).from_pretrained(tmp_path).eval(), load_model(tmp_path)):
        actual = outputs_of(loaded, batch)
        assert all(torch.equal(actual[key], value) for key, value in expected.items())


def test_heads_at_zero_are_loaded_by_the_library(tmp_path):
    model, batch = built("bert")
    remove_heads(model, [(1, 2), (3, 4)], batch=batch)
    saved = save_model(model, tmp_path)
    assert (saved.taken_out, saved.zero) == ((), ("1-2", "3-4"))
    assert saved.loaded_by == "from_pretrained"
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    expected, actual = outputs_of(model, batch), outputs_of(again, batch)
    assert all(torch.equal(actual[key], value) for key, value in expected.items())


def test_precision_generation_and_ties(tmp_path):
    """Of a language model in double precision, whose smaller sizes its configuration tells."""
    model, batch = built("llama")
    model = model.double()
    model.generation_config.max_new_tokens = 3
    heads = [(layer, head) for layer in (1, 2, 3) for head in (3, 4)]
    remove_heads(model, heads, smaller=True, batch=batch)
    save_model(model, tmp_path)
    ours = load_model(tmp_path)
    library = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for other in (ours, library):
        assert other.dtype == torch.float64
        assert other.generation_config.max_new_tokens == 3
        assert torch.equal(outputs_of(other, batch)["0"], outputs_of(model, batch)["0"])
    assert library.config.num_attention_heads == 2
    remove_heads(ours, [(1, 1), (1, 2)], smaller=True, batch=batch)
    saved = save_model(ours, tmp_path)
    assert saved.taken_out == ("1-2", "1-3", "1-4", *(f"{n}-{h}" for n in (2, 3) for h in (3, 4)))
    assert saved.zero == ("1-1",)
    assert saved.loaded_by == "load_model"
    tied, batch = built("gpt2")
    remove_heads(tied, [(1, 1)], smaller=True, batch=batch)
    save_model(tied, tmp_path / "tied")
    again = load_model(tmp_path / "tied")
    assert again.lm_head.weight is again.transformer.wte.weight


def test_attention_that_a_model_exchanges_is_not_built(tmp_path):
    """BigBird replaces its modules when a sequence is short."""
    torch.manual_seed(0)
    model = transformers.BigBirdModel(transformers.BigBirdConfig(**SMALL)).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    outputs_of(model, batch)
    remove_heads(model, [(1, 2)], smaller=True, batch=batch)
    assert save_model(model, tmp_path).loaded_by == "load_model with model="


def test_random_numbers_are_not_drawn(tmp_path):
    model, _ = built("bert")
    save_model(model, tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    load_model(tmp_path)
    assert torch.equal(torch.rand(4), expected)


class Own(transformers.BertModel):
    """A class that a file can name, but load_model does not import."""


def test_a_class_from_elsewhere_is_given(tmp_path):
    model, batch = built("bert")
    own = Own(model.config).eval()
    remove_heads(own, [(2, 2)], smaller=True, batch=batch)
    assert save_model(own, tmp_path).loaded_by == "load_model with model="
    with pytest.raises(CaptureError, match=r"holds a test_.*\.Own, which is not built from a file"):
        load_model(tmp_path)
    again = load_model(tmp_path, Own(model.config))
    assert torch.equal(outputs_of(again, batch)["0"], outputs_of(own, batch)["0"])


def configured(*, checksum=True, **values):
    """Change entries of the configuration, and its checksum."""

    def edit(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))
        if checksum:
            correct_checksums(folder)

    return edit


def described(**values):
    def edit(folder):
        content = json.loads((folder / "pathkernel.json").read_text())
        (folder / "pathkernel.json").write_text(json.dumps(content | values))

    return edit


NESTED = {"text_config": {}}
for _ in range(40):
    NESTED = {"text_config": NESTED}
STEPS = {"heads": 4, "left": [[1]] * 2000, "kinds": ["width"] * 2000}
MANY = {f"layer {i}": {"heads": 2**16, "left": [[1]], "kinds": ["width"]} for i in range(10**4)}
ALIKE = {
    "kinds": [{"class": "torch.Linear"} | {f"entry {i}": "1" for i in range(10**4)}],
    "modules": {f"part {i}": 0 for i in range(10**4)},
}
TWICE = {"heads": 4, "left": [[1, 2], [1, 2, 3]], "kinds": ["width"] * 2}
HOSTILE = {
    "edited": (configured(checksum=False, vocab_size=21), "not the file that pathkernel.json was"),
    "layers": (configured(num_hidden_layers=10**9), "num_hidden_layers = 1000000000, but the"),
    "layers in numbers": (configured(num_hidden_layers=900), "more than 1[0-9]{3} modules and par"),
    "labels": (configured(num_labels=10**9), "num_labels = 1000000000, but the weights are 55"),
    "labels elsewhere": (configured(text_config={"num_labels": 10**9}), "num_labels = 1000000000"),
    "words": (configured(vocab_size=10**13), r"vocab_size = 10000000000000, but the weights"),
    "wide": (configured(intermediate_size=2**16), r"more than \d+ elements, but the weights are"),
    "positions": (configured(max_position_embeddings=2**23), "tensors of 537 MB, but"),
    "nested": (configured(text_config=NESTED), "nested more than 32 deep"),
    "entries": (configured(layer_types=[0] * 2**19), "more than 262144 entries"),
    "steps": (
        described(layers={"encoder.layer.1.attention.self": STEPS}),
        "2000 removals of layer",
    ),
    "steps back": (
        described(layers={"encoder.layer.1.attention.self": TWICE}),
        "heads .* of layer",
    ),
    "many layers of many heads": (described(layers=MANY), "no layer 'layer 0' of 65536 heads"),
    "many modules of many entries": (described(**ALIKE), "100010000 attributes of modules"),
    "ties": (described(tied={f"n{i}": "m" for i in range(9999)}), "9999 names are tied to the 55"),
    "a type": (configured(dtype="hub"), "dtype = 'hub', which names no part of BertModel"),
    "a file": (
        configured(backbone="/etc/hosts"),
        "backbone = '/etc/hosts', which names no part of Be",
    ),
    "text": (configured(hidden_size="wide"), "BertModel of transformers cannot be built"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "it is missing"),
    "another class": (
        described(name="GPT2Model"),
        "cannot be built|are not those of this|no layer",
    ),
    "no model": (described(name="AutoModel"), "has no model 'AutoModel'"),
    "a function": (described(name="pipeline"), "has no model 'pipeline'"),
    "a path": (described(name="os.system"), "has no model 'os.system'"),
    "another library": (described(library="timm", name="hf-hub:x/y"), "timm"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders(tmp_path, name):
    model, batch = built("bert")
    remove_heads(model, [(2, 2)], smaller=True, batch=batch)
    save_model(model, tmp_path)
    edit, message = HOSTILE[name]
    edit(tmp_path)
    with pytest.raises(CaptureError, match=message) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)


def test_code_of_others_is_not_loaded(tmp_path):
    model, batch = built("bert")
    save_model(model, tmp_path)
    foreign = {"auto_map": {"AutoModel": "of--others.Model"}, "attn_implementation": "of/others"}
    configured(**foreign, quantization_config={"quant_method": "bitsandbytes"})(tmp_path)
    (tmp_path / "Model.py").write_text("raise SystemExit")
    again = load_model(tmp_path)
    assert type(again) is transformers.BertModel
    assert again.config._attn_implementation == "sdpa"
    assert torch.equal(outputs_of(again, batch)["0"], outputs_of(model, batch)["0"])


def test_a_pass_that_told_hidden_states_changes_nothing(tmp_path):
    """Transformers leaves the hooks by which it tells them on the modules."""
    config = transformers.LlamaConfig(**SMALL)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model(torch.tensor([[3, 4, 5]]), output_hidden_states=True, output_attentions=True)
    saved = save_model(model, tmp_path)
    assert (saved.loaded_by, saved.changes) == ("from_pretrained", ())
