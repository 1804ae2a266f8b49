#!/usr/bin/env bash
# Torch-Pruning 1.6.1: pruners share the groups of channels that come from numbers of heads. A pruner
# that is given `num_heads` puts them into the default value of its argument `out_channel_groups`,
# which is one dictionary for all pruners. A later pruner of the same layers that is given no heads
# groups their channels by heads all the same, and removes other channels than one of a fresh
# process. The dictionary also keeps every such layer in memory.
#
# Seen with torch-pruning 1.6.1, PyTorch 2.13.0 on a CPU, Python 3.11: the channels of a layer of 8
# channels, the smallest of which are the first two, without heads, before and after another pruner
# was made with 4 heads. Fails if both pruners remove the same channels, or none is kept in memory.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet torch-pruning==1.6.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
cat >pruners.py <<'PYTHON'
import gc
import weakref
from importlib.metadata import version

import torch
import torch_pruning as tp

print(f"torch-pruning {version('torch-pruning')}, PyTorch {torch.__version__}")
model = torch.nn.Sequential(torch.nn.Linear(3, 8, bias=False), torch.nn.Linear(8, 2))
with torch.no_grad():
    model[0].weight.copy_(torch.arange(1.0, 9)[:, None].expand(8, 3))
    model[1].weight.fill_(1)


def removed(**settings):
    """Channels of the first layer that a new pruner would remove, a quarter of them."""
    pruner = tp.pruner.BasePruner(
        model,
        torch.zeros(1, 3),
        tp.importance.MagnitudeImportance(p=1),
        pruning_ratio=0.25,
        ignored_layers=[model[1]],
        **settings,
    )
    (group,) = pruner.step(interactive=True)
    return sorted(group[0].idxs)


before = removed()
removed(num_heads={model[0]: 4})
after = removed()
print(f"removed without heads, before another pruner had heads: {before}")
print(f"removed without heads, after it: {after}, expected the same")
layer = weakref.ref(model[0])
del model
gc.collect()
print(f"the layer is {'gone' if layer() is None else 'still in memory'}, expected gone")
assert before == [0, 1]
assert before != after
assert layer() is not None
PYTHON
environment/bin/python pruners.py
