"""Smaller encoders and decoders, loaded in another process, which generates with them."""

import json
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)
from encoders_and_decoders import GENERATED, HEADS, built, logits_of, sources_of
from safetensors.torch import load_file, save_file

from pathkernel_models.cross_attention import include_cross_attention
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own
CROSSED = [(4, 2), (4, 4), (6, 1), (6, 2)]
REMOVED = {"bart": CROSSED, "t5": CROSSED, "whisper": CROSSED}
REMOVED["t5 even"] = [(layer, head) for layer in range(1, 7) for head in (2, 3)]
WAYS = {"greedy": {}, "beams": {"num_beams": 3}}
LOAD = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, transformers
import pathkernel as pk
from safetensors.torch import load_file, save_file
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
options = json.loads(sys.argv[2])
for folder in sorted(Path(sys.argv[1]).iterdir()):
    batch = load_file(folder / "batch")
    models = {"ours": pk.load_model(folder / "model")}
    if json.loads((folder / "model/pathkernel.json").read_text())["loaded_by"] == "from_pretrained":
        kind = transformers.T5ForConditionalGeneration
        models["library"] = kind.from_pretrained(folder / "model").eval()
    for name, model in models.items():
        if name == "ours":
            pk.list_heads(model).to_json(folder / "table.json")
        sources = {key: value for key, value in batch.items() if "decoder" not in key}
        with torch.no_grad():
            outputs = {"logits": model(**batch).logits}
            for way, further in options["ways"].items():
                tokens = model.generate(**sources, **options["generated"], **further)
                outputs[way] = tokens.contiguous()
        save_file(outputs, folder / name)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Folders in which a new process has loaded every family, run it, and generated with it."""
    root = tmp_path_factory.mktemp("families")
    for name, heads in REMOVED.items():
        model, batch = built(name.partition(" ")[0])
        include_cross_attention(model)
        whole = {way: generated(model, batch, way) for way in WAYS}
        remove_heads(model, heads, smaller=True, batch=batch)
        saved = save_model(model, root / name / "model")
        assert saved.taken_out == tuple(f"{layer}-{head}" for layer, head in heads)
        assert saved.changes == ()
        expected = {way: generated(model, batch, way) for way in WAYS}
        assert any(not torch.equal(expected[way], whole[way]) for way in WAYS)
        save_file(expected | {"logits": logits_of(model, batch)}, root / name / "expected")
        save_file(batch, root / name / "batch")
        list_heads(model).to_json(root / name / "expected.json")
    options = json.dumps({"ways": WAYS, "generated": GENERATED})
    subprocess.run([sys.executable, "-c", LOAD, str(root), options], check=True, timeout=300)
    return root


def generated(model, batch, way):
    return model.generate(**sources_of(batch), **GENERATED, **WAYS[way]).contiguous()


@pytest.mark.parametrize("name", REMOVED)
def test_loaded_in_another_process(loaded, name):
    """Also by transformers, where its configuration can tell the heads."""
    folder, by_library = loaded / name, name == "t5 even"
    expected = load_file(folder / "expected")
    assert (folder / "library").exists() == by_library
    for loader in ("ours", *["library"] * by_library):
        actual = load_file(folder / loader)
        assert expected.keys() == actual.keys()
        assert all(torch.equal(actual[key], value) for key, value in expected.items())
    assert (folder / "table.json").read_text() == (folder / "expected.json").read_text()


def test_a_model_that_is_given(tmp_path):
    """It has the layers of the saved one, and is as it was if it does not fit."""
    model, batch = built("bart")
    include_cross_attention(model)
    remove_heads(model, CROSSED, smaller=True, batch=batch)
    save_model(model, tmp_path)
    other, _ = built("marian")
    before = list_heads(other)
    with pytest.raises(CaptureError, match="are not those of this Marian"):
        load_model(tmp_path, other)
    assert list_heads(other).equals(before)
    included, _ = built("bart")
    include_cross_attention(included)
    for whole in (built("bart")[0], included):
        with warnings.catch_warnings():  # no attribute differs
            warnings.filterwarnings("error", message=".*differs in attributes")
            again = load_model(tmp_path, whole)
        assert torch.equal(logits_of(again, batch), logits_of(model, batch))
        assert list_heads(again).equals(list_heads(model))
    # a further removal, in the numbering of the whole model
    remove_heads(again, [(4, 1), (4, 2)], smaller=True, batch=batch)
    assert save_model(again, tmp_path).taken_out == ("4-2", "4-3", "4-4", "6-1", "6-2")
    assert list_heads(load_model(tmp_path))["heads"][4] == 1


def test_layers_without_removed_heads(tmp_path):
    """A model that lost none, or heads at zero, has the same layers again, too."""
    model, batch = built("bart")
    table = include_cross_attention(model)
    remove_heads(model, [(4, 3)], batch=batch)
    saved = save_model(model, tmp_path)
    assert (saved.zero, saved.loaded_by) == (("4-3",), "from_pretrained")
    assert list_heads(load_model(tmp_path)).equals(table)
    library = type(model).from_pretrained(tmp_path)
    assert list_heads(library)["attention"].tolist() == ["self"] * 4
    assert include_cross_attention(library).equals(table)


def test_names_of_a_file_include_cross_attention_only(tmp_path):
    """Other modules that a damaged file names are no layers."""
    model, _ = built("bart")
    save_model(model, tmp_path)
    path = tmp_path / "pathkernel.json"
    content = json.loads(path.read_text())
    for name in ("model.decoder.layers.0.encoder_attn.q_proj", "model.encoder", "lm_head"):
        layers = content["layers"] | {name: {"heads": HEADS, "left": [], "kinds": []}}
        path.write_text(json.dumps(content | {"layers": layers}))
        with pytest.raises(CaptureError, match=f"has no layer '{name}' of 4 heads"):
            load_model(tmp_path)
