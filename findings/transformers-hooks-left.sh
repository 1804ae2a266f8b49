#!/usr/bin/env bash
# transformers 5.24.0 leaves forward hooks on a model that was once asked for its hidden states: a
# pass with output_hidden_states=True installs them on its layers, and they stay for good. Passes
# that ask for nothing run through them as well. Whoever compares the hooks of a model before and
# after, or copies or compiles a model, sees another one than was built.
#
# Seen with transformers 5.24.0, PyTorch 2.13.0 on a CPU, Python 3.11: a BERT of two layers. Fails if
# no hook is left after such a pass.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
cat >hooks.py <<'PYTHON'
import torch
from transformers import BertConfig, BertModel

sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
model = BertModel(BertConfig(vocab_size=50, num_attention_heads=4, **sizes)).eval()
tokens = torch.arange(6)[None]


def hooks():
    return sum(len(module._forward_hooks) for module in model.modules())


counts = [hooks()]
for settings in ({}, {"output_hidden_states": True}, {}):
    with torch.no_grad():
        model(tokens, **settings)
    counts.append(hooks())
    print(f"after a pass with {settings}: {counts[-1]} forward hooks, expected 0")
assert counts[:2] == [0, 0] and counts[2] == counts[3] > 0
PYTHON
environment/bin/python hooks.py
