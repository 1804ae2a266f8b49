#!/usr/bin/env bash
# accelerate 1.15.0 takes off more than it put on. Accelerator.prepare wraps the forward pass of a
# model for mixed precision; unwrap_model(model, keep_fp32_wrapper=False) undoes it. It follows
# __wrapped__ until it meets the function that was there before, but compares a function with a bound
# method, which are never equal. So it ends at the innermost function, without the decorators that the
# model's class has: transformers' models then ignore return_dict and return no attentions, and a
# Llama raises an AttributeError. Leave the wrapper on, and save the state.
#
# Seen with accelerate 1.15.0, transformers 5.24.0, PyTorch 2.13.0 on a CPU, Python 3.11: BERT returns
# a tuple for return_dict=False when prepared, and an object of its own when unwrapped. Fails if it
# returns a tuple again.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet \
  accelerate==1.15.0 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
cat >unwrap.py <<'PYTHON'
import torch
from accelerate import Accelerator
from transformers import BertConfig, BertModel

sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
model = BertModel(BertConfig(vocab_size=50, num_attention_heads=4, **sizes)).eval()
tokens = torch.arange(6)[None]
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
accelerator.prepare(model)
prepared = model(tokens, return_dict=False)
accelerator.unwrap_model(model, keep_fp32_wrapper=False)
unwrapped = model(tokens, return_dict=False)
print(f"prepared: {type(prepared).__name__}, unwrapped: {type(unwrapped).__name__}")
assert isinstance(prepared, tuple) and not isinstance(unwrapped, tuple)
PYTHON
environment/bin/python unwrap.py
