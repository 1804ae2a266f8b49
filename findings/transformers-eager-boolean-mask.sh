#!/usr/bin/env bash
# transformers 5.24.0 adds an attention mask to the scores of eager attention. A boolean mask of
# four dimensions, True where a query may attend, therefore adds 1 and 0 and hides nothing, while
# sdpa attention, the default, takes the same mask as a mask. Neither says a word. A model that is
# switched to eager attention, as one that is to return its attention weights, needs the mask as
# floating-point numbers: 0, and minus infinity where a key is hidden.
#
# Seen with transformers 5.24.0, PyTorch 2.13.0 on a CPU, Python 3.11: outputs of a causal encoder by
# boolean and by floating-point masks are equal by sdpa, and differ by more than .1 by eager
# attention. Fails if these differ by sdpa, or agree by eager attention.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
cat >compare.py <<'PYTHON'
import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
config = BertConfig(vocab_size=50, num_attention_heads=4, initializer_range=0.5, **sizes)
model = BertModel(config, add_pooling_layer=False).eval()
tokens = torch.randint(0, 50, (2, 6))
shown = torch.ones(6, 6).tril().bool()[None, None].expand(2, 1, 6, 6)
added = torch.zeros(2, 1, 6, 6).masked_fill(~shown, float("-inf"))
for kind in ("sdpa", "eager"):
    model.set_attn_implementation(kind)
    with torch.no_grad():
        one, other = (
            model(input_ids=tokens, attention_mask=mask).last_hidden_state
            for mask in (shown, added)
        )
    difference = float((one - other).abs().max())
    print(f"{kind}: boolean and floating-point masks differ by {difference:.2g}")
    assert difference < 1e-4 if kind == "sdpa" else difference > 0.1
PYTHON
environment/bin/python compare.py
