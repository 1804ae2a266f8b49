"""Smaller models, exported by torch.export and to ONNX, against the model in PyTorch."""

import importlib.util
import random

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from test_saving_changes import IDS, IMAGES, STATES, built
from torch import nn

from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries' own
LACKING = [name for name in ("onnxscript", "onnxruntime") if not importlib.util.find_spec(name)]
NAMES = ["encoder", "own", "bert", "gpt2", "llama", "vit"]
BATCH, TOKENS = torch.export.Dim("batch"), torch.export.Dim("tokens", max=30)


def encoder():
    layer = nn.TransformerEncoderLayer(STATES.shape[-1], 4, 24, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.fixture(params=NAMES)
def case(request, tmp_path):
    """A smaller model, loaded from its folder, its arguments and their axes."""
    name = request.param
    if name not in ("encoder", "own"):
        pytest.importorskip("transformers", minversion="5")
    torch.manual_seed(0)
    model = encoder() if name == "encoder" else built(name)
    batch = {"encoder": STATES, "vit": IMAGES}.get(name, IDS)
    rng = random.Random(name)
    heads = [(layer, head) for layer in list_heads(model).index for head in (1, 2)]
    heads = heads[:2] if name == "llama" else rng.sample(heads, 3)  # a group of two
    remove_heads(model, heads, smaller=True, batch=batch)
    save_model(model, tmp_path)
    whole = {"encoder": encoder, "own": lambda: built("own")}.get(name, lambda: None)()
    key = {"encoder": "src", "own": "ids", "vit": "pixel_values"}.get(name, "input_ids")
    axes = {0: BATCH} if name in ("vit", "own") else {0: BATCH, 1: TOKENS}
    inputs, shapes = {key: batch}, {key: axes}
    if name in ("gpt2", "llama"):
        inputs["use_cache"], shapes["use_cache"] = False, None
    return load_model(tmp_path, whole), inputs, shapes


def first(output):
    return output if isinstance(output, torch.Tensor) else output[0]


def larger(inputs):
    """The same inputs, and the first example again."""
    return {
        key: torch.cat([value, value[:1]]) if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }


@pytest.mark.parametrize("case", ["encoder"], indirect=True)  # ONNX takes all by this way
def test_exported_program(case, tmp_path):
    model, inputs, shapes = case
    path = tmp_path / "smaller.pt2"
    torch.export.save(torch.export.export(model, (), inputs, dynamic_shapes=shapes), path)
    program = torch.export.load(path).module()
    for arguments in (inputs, larger(inputs)):
        with torch.no_grad():
            torch.testing.assert_close(first(program(**arguments)), first(model(**arguments)))


@pytest.mark.skipif(bool(LACKING), reason=f"nox -s tests_deployment installs {LACKING}")
def test_onnx(case, tmp_path):
    import onnxruntime

    model, inputs, shapes = case
    path = str(tmp_path / "smaller.onnx")
    options = {"dynamo": True, "dynamic_shapes": shapes, "verbose": False}
    torch.onnx.export(model, (), path, kwargs=inputs, **options)
    session = onnxruntime.InferenceSession(path)
    for arguments in (inputs, larger(inputs)):
        feeds = {one.name: arguments[one.name].numpy() for one in session.get_inputs()}
        with torch.no_grad():
            expected = first(model(**arguments))
        found = torch.from_numpy(session.run(None, feeds)[0])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
