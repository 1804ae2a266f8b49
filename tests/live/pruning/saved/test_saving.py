"""Models of torch.nn and of one's own saved with heads taken out, and loaded; damaged folders."""

import copy
import json
import os
import shutil
from importlib.metadata import version

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from safetensors.torch import load_file, save_file
from test_projections import Attention, Block
from torch import nn
from torch.nn import functional as F

from pathkernel_capture.capture import capture
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

WIDTH, HEADS = 16, 4
INPUTS = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1))


def encoder(layers=3):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


class Tied(nn.Module):
    """Own attention, with one matrix for tokens in and out."""

    def __init__(self, tied=True):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(20, WIDTH), nn.Sequential(Block(), Block())
        self.out = nn.Linear(WIDTH, 20, bias=False)
        if tied:
            self.out.weight = self.tokens.weight
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, ids):
        return self.out(self.blocks(self.tokens(ids) - self.mean))


def outputs(model, batch=INPUTS):
    with torch.no_grad():
        return model(batch)


def changed(model):
    """Give a model weights of its own."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4, generator=generator)
    return model


@pytest.fixture
def smaller(tmp_path):
    """A smaller encoder, and the folder that holds it."""
    model = changed(encoder())
    remove_heads(model, [(1, 2), (2, 1)], smaller=True, batch=INPUTS)
    save_model(model, tmp_path / "smaller")
    return model, tmp_path / "smaller"


def test_heads_keep_their_original_numbers(smaller):
    """Several removals, heads at zero, and a layer without heads, which keeps one of zeros."""
    model, folder = smaller
    remove_heads(model, [(1, 2)], smaller=True, batch=INPUTS)  # 3 of the whole model
    remove_heads(model, [(1, 2)], batch=INPUTS)  # 4, at zero
    remove_heads(model, [(3, 1), (3, 2), (3, 3), (3, 4)], smaller=True, batch=INPUTS)
    saved = save_model(model, folder)
    assert saved.taken_out == ("1-2", "1-3", "2-1", "3-2", "3-3", "3-4")
    assert saved.zero == ("1-4", "3-1")
    assert saved.loaded_by == "load_model with model="
    assert (saved.changes, saved.excess) == ((), "")
    description = json.loads((folder / "pathkernel.json").read_text())
    assert description["taken_out"] == list(saved.taken_out)
    assert description["class"] == "torch.nn.modules.transformer.TransformerEncoder"
    assert description["versions"]["torch"] == version("torch")  # without the wheel's "+cu130"
    whole = encoder().train()
    loaded = load_model(folder, whole)
    assert loaded is whole
    assert not loaded.training
    assert torch.equal(outputs(loaded), outputs(model))
    assert list_heads(loaded).equals(list_heads(model))
    captured = [capture(one, [INPUTS], readout="mean").xi for one in (model, loaded)]
    assert (captured[0] == captured[1]).all()
    again = save_model(loaded, folder)
    assert (again.taken_out, again.zero) == (saved.taken_out, saved.zero)
    remove_heads(loaded, [(2, 1)], smaller=True, batch=INPUTS)
    assert save_model(loaded, folder).taken_out[2:4] == ("2-1", "2-2")


class Fixed(Attention):
    """Always of four heads, whatever its weights."""

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_a_failed_removal_is_not_recorded(tmp_path):
    model = changed(nn.Sequential(Fixed(), Attention()))
    remove_heads(model, [(2, 1)], smaller=True, batch=INPUTS)
    with pytest.raises(CaptureError, match="left as it was"):
        remove_heads(model, [(1, 2), (2, 1)], smaller=True, batch=INPUTS)
    assert save_model(model, tmp_path / "fixed").taken_out == ("2-1",)
    loaded = load_model(tmp_path / "fixed", nn.Sequential(Fixed(), Attention()))
    assert torch.equal(outputs(loaded), outputs(model))


@pytest.mark.parametrize("heads_at_zero", [[], [(2, 3)]])
def test_whole_models(tmp_path, heads_at_zero):
    model = changed(encoder())
    if heads_at_zero:
        remove_heads(model, heads_at_zero, batch=INPUTS)
    saved = save_model(model, str(tmp_path / "deep" / "folder"))
    assert saved.taken_out == ()
    assert saved.zero == ("2-3",) * len(heads_at_zero)
    assert torch.equal(outputs(load_model(saved.folder, encoder())), outputs(model))


def test_a_last_head_that_is_taken_out_again_and_again(tmp_path, monkeypatch):
    model = changed(encoder())
    for heads in (1, 2, 3), (1,), (1,), (1,):
        remove_heads(model, [(2, head) for head in heads], smaller=True, batch=INPUTS)
    save_model(model, tmp_path)
    description = json.loads((tmp_path / "pathkernel.json").read_text())
    assert description["layers"]["layers.1.self_attn"]["left"] == [[4]]
    assert torch.equal(outputs(load_model(tmp_path, encoder())), outputs(model))
    monkeypatch.setattr("pathkernel_pruning.live.saved.description._MOST_REMOVALS", 0)
    with pytest.raises(CaptureError, match=r"taken out 1 times, and only 0 times are saved; take"):
        save_model(model, tmp_path / "again")
    with pytest.raises(CaptureError, match="1 removals of layer"):
        load_model(tmp_path, encoder())


@pytest.mark.parametrize("saved_tied", [True, False])
@pytest.mark.parametrize("given_tied", [True, False])
def test_tied_weights(tmp_path, saved_tied, given_tied):
    """They are stored once, and tied in the loaded model as in the saved one."""
    ids = torch.randint(0, 20, (2, 5), generator=torch.Generator().manual_seed(3))
    model = changed(Tied(saved_tied)).double()
    model.mean += 0.25
    model.steps += 7
    remove_heads(model, [(1, 2), (2, 4)], smaller=True, batch=ids)
    save_model(model, tmp_path / "tied")
    assert ("out.weight" in load_file(tmp_path / "tied/model.safetensors")) != saved_tied
    loaded = load_model(tmp_path / "tied", Tied(given_tied))
    assert torch.equal(outputs(loaded, ids), outputs(model, ids))
    assert (loaded.out.weight is loaded.tokens.weight) == saved_tied
    assert (int(loaded.steps), loaded.mean.dtype) == (7, torch.float64)
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_a_model_without_memory(smaller):
    model, folder = smaller
    with torch.device("meta"):
        whole = encoder()
    assert torch.equal(outputs(load_model(folder, whole)), outputs(model))


def test_a_model_that_does_not_fit_is_left_as_it_was(smaller):
    model, folder = smaller
    with pytest.raises(CaptureError, match=r"holds a torch.nn.*give it: load_model\(folder, mod"):
        load_model(folder)
    wrong = encoder(layers=2)
    state, modules = copy.deepcopy(wrong.state_dict()), dict(wrong.named_modules())
    with pytest.raises(CaptureError, match=r"no layer 'layers.2.self_attn' of 4 heads; give the"):
        load_model(folder, wrong)
    assert dict(wrong.named_modules()) == modules
    assert all(torch.equal(wrong.state_dict()[name], value) for name, value in state.items())
    with pytest.raises(CaptureError, match=r"no layer 'layers.0.self_attn' of 4 heads; give the"):
        load_model(folder, model)  # which is smaller already
    with pytest.raises(CaptureError, match="no attention of a known form"):
        load_model(folder, nn.Linear(2, 2))


def test_folders_with_other_content_stay(smaller, tmp_path):
    model, folder = smaller
    content = (folder / "model.safetensors").read_bytes()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CaptureError, match=r"other files \('notes.txt'\); choose a new folder"):
        save_model(changed(encoder()), folder)
    assert (folder / "model.safetensors").read_bytes() == content
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CaptureError, match="is a file"):
        save_model(model, tmp_path / "file")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/model.safetensors").write_text("of another program")
    with pytest.raises(CaptureError, match="other files"):
        save_model(model, tmp_path / "weights")
    with pytest.raises(ValueError, match="is a URL"):
        save_model(model, "https://example.org/model")
    (tmp_path / "empty").mkdir()
    assert torch.equal(
        outputs(load_model(save_model(model, tmp_path / "empty").folder, encoder())), outputs(model)
    )


def test_an_interrupted_save_leaves_the_older_model(smaller, monkeypatch):
    _, folder = smaller
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathkernel_pruning.live.saved.saving.json.dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(changed(encoder()), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert os.listdir(folder.parent) == [folder.name]


def test_weights_that_are_not_in_memory_are_refused(tmp_path):
    with torch.device("meta"):
        model = encoder()
    with pytest.raises(CaptureError, match=r"in_proj_weight .* is no plain tensor in memory"):
        save_model(model, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def edited(**values):
    """Change entries of the description; those of the first layer by ``layer=``."""

    def edit(folder):
        description = json.loads((folder / "pathkernel.json").read_text())
        description["layers"]["layers.0.self_attn"].update(values.get("layer", {}))
        description.update({name: value for name, value in values.items() if name != "layer"})
        (folder / "pathkernel.json").write_text(json.dumps(description))

    return edit


def flipped(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-3] ^= 8
    (folder / "model.safetensors").write_bytes(content)


def cut(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-5])


def pipe(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def other_type(folder):
    weights = load_file(folder / "model.safetensors")
    weights["layers.1.linear1.bias"] = weights["layers.1.linear1.bias"].to(torch.int32)
    save_file(weights, folder / "model.safetensors")


def other_shape(folder):
    weights = load_file(folder / "model.safetensors")
    weights["layers.1.linear1.bias"] = torch.zeros(10**6)
    save_file(weights, folder / "model.safetensors")


def text(content):
    return lambda folder: (folder / "pathkernel.json").write_bytes(content)


DAMAGED = {
    "no folder": (shutil.rmtree, "there is no saved model in"),
    "no description": (lambda folder: (folder / "pathkernel.json").unlink(), "is missing; save"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "missing, or no plain"),
    "pipe": (pipe, "missing, or no plain file"),
    "no text": (text(b"\xff\x00\x1b[31m"), "pathkernel.json' is damaged or of another program"),
    "a list": (text(b"[1]"), "it is no JSON object"),
    "nested": (text(b"[" * 10**5), "damaged or of another program"),
    "long": (text(b" " * 2**25), "longer than"),
    "another format": (edited(format="mine 3"), "must have the format .* not 'mine 3'"),
    "entries missing": (text(b'{"format": "pathkernel model 1"}'), "KeyError"),
    "another library": (edited(library="subprocess"), "library 'subprocess'"),
    "many heads": (edited(layer={"heads": 10**12}), "heads 1000000000000 of layer"),
    "other heads": (edited(layer={"heads": 8}), "no layer 'layers.0.self_attn' of 8 heads"),
    "heads past the last": (edited(layer={"left": [[1, 9]]}), r"heads \[1, 9\] of layer"),
    "the same heads": (edited(layer={"left": [[1, 2]] * 2}), r"heads \[1, 2\] of layer"),
    "no heads": (edited(layer={"left": [[]]}), r"heads \[\] of layer"),
    "another checksum": (
        edited(sha256={"model.safetensors": "0"}),
        "not the file that pathkernel.json was saved with",
    ),
    "a flipped bit": (flipped, "not the file that pathkernel.json was saved with"),
    "cut": (cut, "model.safetensors' is damaged or of another program"),
    "type": (other_type, "layers.1.linear1.bias has type I32, but of the model torch.float32"),
    "shape": (other_shape, r"layers.1.linear1.bias is \(1000000,\), but of the model \(16,\)"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_folders(smaller, name):
    _, folder = smaller
    damage, message = DAMAGED[name]
    damage(folder)
    model = encoder()
    modules = dict(model.named_modules())
    with pytest.raises(CaptureError, match=message) as error:
        load_model(folder, model)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
    assert dict(model.named_modules()) == modules


def test_a_class_is_never_imported_by_a_name_in_a_file(smaller, monkeypatch):
    _, folder = smaller
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imports {name}"))
    edited(**{"class": "os.system"}, name="system")(folder)
    with pytest.raises(CaptureError, match=r"holds a os.system, which is not built from a file"):
        load_model(folder)


@pytest.mark.parametrize("model", [nn.Linear, "bert-base", {"weight": torch.ones(2)}])
def test_what_is_no_model_is_told(tmp_path, model):
    save_model(nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16)), tmp_path / "whole")
    for use in (
        lambda: save_model(model, tmp_path / "other"),
        lambda: load_model(tmp_path / "whole", model=model),
    ):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, but is"):
            use()
