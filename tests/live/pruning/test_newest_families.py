"""Today's language models, smaller: saved, loaded in a new process, and generating the same."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="live models are of PyTorch")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from small_models import SMALL_MODELS

from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.saving import save_model

# the linear attention of Qwen3-Next is left whole, so that the other layer is the first
NAMES = ("Qwen3.5", "Qwen3-Next, a layer linear", "Gemma 4", "GPT-OSS", "OLMo 3", "Phi-3")
NAMES += ("DeepSeek-V3",)
OFF = [(1, 1), (1, 2)]
GENERATE = """
import json, sys, torch, pathkernel as pk
folder, texts = sys.argv[1], {}
for name in json.loads(sys.argv[2]):
    model = pk.load_model(f"{folder}/{name}")
    prompt = torch.tensor([[5, 9, 12, 7, 17, 6], [11, 3, 18, 8, 4, 19]])
    texts[name] = [
        model.generate(prompt, max_new_tokens=8, do_sample=False, num_beams=beams).tolist()
        for beams in (1, 3)
    ]
print(json.dumps(texts))
"""


BATCH = torch.tensor([[5, 9, 12, 7, 17, 6], [11, 3, 18, 8, 4, 19]])


def build(name):
    """A model of random weights."""
    if not hasattr(transformers, SMALL_MODELS[name].kind):
        pytest.skip(f"transformers {transformers.__version__} has no {SMALL_MODELS[name].kind}")
    model, _ = SMALL_MODELS[name].make()
    return model


def run_without(model):
    """Logits without the first two heads of the first layer, by a hook on its projection."""

    def hook(_, inputs):
        heads = inputs[0].clone()
        heads[..., : heads.shape[-1] // 2] = 0  # of four
        return (heads,)

    parts = model.named_modules()
    projection = next(part for name, part in parts if name.endswith("self_attn.o_proj"))
    handle = projection.register_forward_pre_hook(hook)
    with torch.no_grad():
        logits = model(BATCH).logits
    handle.remove()
    return logits


@pytest.mark.parametrize("name", NAMES)
def test_heads_are_off_and_out_as_by_a_hook(name):
    model = build(name)
    expected = run_without(model)
    with torch.no_grad(), heads_off(model, OFF):
        torch.testing.assert_close(model(BATCH).logits, expected, rtol=0, atol=0)
    remove_heads(model, OFF, batch=BATCH, smaller=True)
    with torch.no_grad():
        torch.testing.assert_close(model(BATCH).logits, expected, rtol=1e-5, atol=1e-4)


def test_smaller_models_generate_the_same_in_a_new_process(tmp_path):
    texts = {}
    for name in NAMES:
        model = build(name)
        remove_heads(model, OFF, batch=BATCH, smaller=True)
        assert not save_model(model, tmp_path / name).changes
        texts[name] = [
            model.generate(BATCH, max_new_tokens=8, do_sample=False, num_beams=beams).tolist()
            for beams in (1, 3)
        ]
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, str(tmp_path), json.dumps(NAMES)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == texts
