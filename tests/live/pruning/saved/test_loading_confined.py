"""Saved models that others made: nothing but their files is opened, in bounded time and memory."""

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)
from test_saving_transformers import built
from torch import nn

from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.bounds import Bounds
from pathkernel_pruning.live.saved.confinement import confined
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own
# a hundred take half a minute: PATHKERNEL_EDITS=100 PATHKERNEL_SEED=7
EDITS = int(os.environ.get("PATHKERNEL_EDITS", "25"))
REMOVED = {
    "llama": [(1, 3), (1, 4), (2, 3), (2, 4)],
    "bert": [(1, 2), (1, 3)],
    "vit": [(2, 2)],
    "t5 encoder": [],
    "gpt2": [(1, 1)],
}


@pytest.fixture(scope="module")
def loads(tmp_path_factory):
    """What came of loading models of five families after random edits, in a new process."""
    root = tmp_path_factory.mktemp("models")
    (root / "families").mkdir()
    for name, heads in REMOVED.items():
        model, batch = built(name)
        if heads:
            remove_heads(model, heads, smaller=True, batch=batch)
        assert save_model(model, root / "families" / name).loaded_by != "load_model with model="
    (root / "outside").mkdir()
    (root / "outside/config.json").write_text('{"model_type": "bert"}')
    program = Path(__file__).with_name("edited_models.py")
    command = [sys.executable, program, root, os.environ.get("PATHKERNEL_SEED", "0"), str(EDITS)]
    done = subprocess.run(command, check=True, timeout=30 * EDITS, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_edited_models(loads):
    assert len(loads) == EDITS
    for load in loads:
        assert load["seen"] == [], load
        assert load["outcome"].startswith(("loaded", "refused: ")), load
        assert load["seconds"] < 20, load
        assert load["bytes"] < 1.5e9, load
    assert sum(load["outcome"] == "loaded" for load in loads) < EDITS / 2


def start_thread(path):
    threading.Thread(target=str).start()


def test_a_class_that_opens_what_its_configuration_names(tmp_path, monkeypatch):
    """Whatever class does so: here, one that is made to."""
    model, _ = built("bert")
    save_model(model, tmp_path / "model")
    plain = transformers.BertConfig.from_dict

    def open_name(options):
        Path(options["model_type"]).read_text()
        return plain(options)

    outside = tmp_path / "bert"
    outside.write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transformers.BertConfig, "from_dict", open_name)
    with pytest.raises(CaptureError, match="'bert' is not opened while a model is built"):
        load_model(tmp_path / "model")
    outside.unlink()
    assert save_model(model, tmp_path / "again").loaded_by == "load_model with model="


ACTS = {
    "a file": Path.read_text,
    "a file to write": lambda path: path.with_name("other").write_text(""),
    "a descriptor": lambda path: os.open(path, os.O_RDONLY),
    "a connection": lambda path: socket.socket(),
    "a process": lambda path: subprocess.Popen([sys.executable, "-c", ""]),
    "a pickle": lambda path: pickle.loads(pickle.dumps(Path)),
    **({"a thread": start_thread} if sys.version_info >= (3, 12) else {}),
    "a module of the folder": lambda path: __import__("module_of_the_folder"),
}


@pytest.mark.parametrize("name", ACTS)
def test_refused_acts(tmp_path, monkeypatch, name):
    path = tmp_path / "module_of_the_folder.py"
    path.write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with confined(tmp_path), pytest.raises(PermissionError, match="while a model is built"):
        ACTS[name](path)
    assert path.read_text()  # outside of the context


def test_files_that_may_be_read(tmp_path):
    paths = [tmp_path / name for name in ("own", "other")]
    for path in paths:
        path.write_text("text")
    with confined(tmp_path, paths[:1], threads=True):
        assert paths[0].read_text() == "text"
        threading.Thread(target=str).start()
        with pytest.raises(PermissionError, match="is not opened while a model is built"):
            paths[1].read_text()
        with pytest.raises(PermissionError, match="is not opened while a model is built"):
            paths[0].write_text("")


def test_libraries_import_theirs():
    with confined():
        assert Path(torch.__file__).read_text()
        sys.modules.pop("colorsys", None)
        assert __import__("colorsys").__file__


class Claiming(nn.Module):
    """Asks for what ``claim`` makes."""

    def __init__(self, claim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))
        claim(self)


def repeat(count, make):
    return lambda module: [module.register_module(str(i), make()) for i in range(count)]


CLAIMS = {
    "modules": (repeat(2000, nn.Identity), "more than 1008 modules"),
    "parameters": (repeat(90, lambda: nn.Linear(30, 30)), "more than 65792 elements"),
    "a tensor": (lambda module: torch.zeros(10**5, 10**5), "tensors of 40 GB"),
    "a tensor in the end": (lambda module: torch.ones(10**5)[:, None] * torch.ones(10**5), "40 GB"),
    "buffers": (
        lambda module: [module.register_buffer(f"b{i}", torch.empty(2**20)) for i in range(170)],
        "asks for tensors",
    ),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", CLAIMS)
def test_claims_are_refused(name, device):
    claim, message = CLAIMS[name]
    with (
        Bounds.of_shapes([(4, 4)]).watch(),
        torch.device(device),
        pytest.raises(CaptureError, match=message),
    ):
        Claiming(claim)
    assert Claiming(repeat(2000, nn.Identity))  # outside of the context
