#!/usr/bin/env bash
# Torch-Pruning 1.6.1 follows queries, keys and values that one linear layer makes through `unbind`,
# but not through indices: where a model writes qkv[0], qkv[1] and qkv[2], as some vision models do,
# the group of channels of the output projection names the first third of the layer alone, its
# queries. Keys and values have no part in the importance of a head, and nothing says so.
#
# Seen with torch-pruning 1.6.1, PyTorch 2.13.0 on a CPU, Python 3.11: two models of the same weights
# and outputs, one with unbind and one with indices, whose groups hold 48 and 16 channels of the
# layer. Fails if both groups hold all, or the outputs differ.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet torch-pruning==1.6.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
cat >groups.py <<'PYTHON'
from importlib.metadata import version

import torch
import torch_pruning as tp
from torch import nn

print(f"torch-pruning {version('torch-pruning')}, PyTorch {torch.__version__}")
HEADS, SIZE = 4, 16


class Attention(nn.Module):
    def __init__(self, by_index):
        super().__init__()
        self.by_index = by_index
        self.fused = nn.Linear(SIZE, 3 * SIZE)
        self.projection = nn.Linear(SIZE, SIZE)

    def forward(self, tokens):
        batch, length, _ = tokens.shape
        made = self.fused(tokens).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = (made[0], made[1], made[2]) if self.by_index else made.unbind(0)
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, -1))


torch.manual_seed(0)
tokens, models = torch.randn(2, 5, SIZE), {"unbind": Attention(False), "indices": Attention(True)}
models["indices"].load_state_dict(models["unbind"].state_dict())
outputs, channels = [], []
for name, model in models.items():
    graph = tp.DependencyGraph().build_dependency(model, tokens)
    inputs = list(range(SIZE))
    group = graph.get_pruning_group(model.projection, tp.prune_linear_in_channels, inputs)
    (of_fused,) = (item.idxs for item in group if item.dep.target.module is model.fused)
    outputs.append(model(tokens))
    channels.append(sorted(set(of_fused)))
    print(f"by {name}: {len(channels[-1])} channels of the layer in its group, expected 48")
torch.testing.assert_close(*outputs)
assert channels == [list(range(48)), list(range(16))]
PYTHON
environment/bin/python groups.py
