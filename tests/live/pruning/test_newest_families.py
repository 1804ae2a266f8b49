"""Today's language models, smaller: saved, loaded in a new process, and generating the same."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="live models are of PyTorch")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.saving import save_model

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FULL = {"layer_types": ["full_attention"] * 2}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
EXPERTS |= {"shared_expert_intermediate_size": 16}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
LATENT |= {"v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 4}
GEMMA = {"global_head_dim": 8, "vocab_size_per_layer_input": 50, "hidden_size_per_layer_input": 8}
MODELS = {
    "Qwen3_5TextConfig": FULL,
    # the layer of linear attention is left whole, so that the other is the first
    "Qwen3NextConfig": EXPERTS
    | {"layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [0, 1]}
    | {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "Gemma4TextConfig": FULL | GEMMA | {"num_kv_shared_layers": 0},
    "GptOssConfig": FULL | {"num_local_experts": 2, "num_experts_per_tok": 1},
    "Olmo3Config": FULL,
    "Phi3Config": {},
    "DeepseekV3Config": LATENT
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    | {"moe_intermediate_size": 16, "first_k_dense_replace": 2},
}
GENERATE = """
import json, sys, torch, pathkernel as pk
folder, texts = sys.argv[1], {}
for name in json.loads(sys.argv[2]):
    model = pk.load_model(f"{folder}/{name}")
    prompt = torch.tensor([[5, 9, 30, 7, 21, 6], [11, 3, 42, 8, 4, 19]])
    texts[name] = [
        model.generate(prompt, max_new_tokens=8, do_sample=False, num_beams=beams).tolist()
        for beams in (1, 3)
    ]
print(json.dumps(texts))
"""


BATCH = torch.tensor([[5, 9, 30, 7, 21, 6], [11, 3, 42, 8, 4, 19]])


def build(name):
    """A model of random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, name)(**(SMALL | MODELS[name]))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def run_without(model, layer, size):
    """Logits without heads 1 and 2 of a layer, by a hook on its output projection."""

    def hook(_, inputs):
        heads = inputs[0].clone()
        heads[..., : 2 * size] = 0
        return (heads,)

    projections = [part for name, part in model.named_modules() if name.endswith("attn.o_proj")]
    handle = projections[layer - 1].register_forward_pre_hook(hook)
    with torch.no_grad():
        logits = model(BATCH).logits
    handle.remove()
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_heads_are_off_and_out_as_by_a_hook(name):
    model = build(name)
    expected = run_without(model, 1, 8)
    with torch.no_grad(), heads_off(model, [(1, 1), (1, 2)]):
        torch.testing.assert_close(model(BATCH).logits, expected, rtol=0, atol=0)
    remove_heads(model, [(1, 1), (1, 2)], batch=BATCH, smaller=True)
    with torch.no_grad():
        torch.testing.assert_close(model(BATCH).logits, expected, rtol=1e-5, atol=1e-4)


def test_smaller_models_generate_the_same_in_a_new_process(tmp_path):
    texts = {}
    for name in MODELS:
        model = build(name)
        remove_heads(model, [(1, 1), (1, 2)], batch=BATCH, smaller=True)
        assert not save_model(model, tmp_path / name).changes
        texts[name] = [
            model.generate(BATCH, max_new_tokens=8, do_sample=False, num_beams=beams).tolist()
            for beams in (1, 3)
        ]
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, str(tmp_path), json.dumps([*MODELS])],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == texts
