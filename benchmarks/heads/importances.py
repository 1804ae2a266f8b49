"""Importances of heads by Torch-Pruning, for the orders of ``benchmarks.heads``.

Torch-Pruning traces which layers lose channels together, and averages importances of channels over
the layers of such a group. A head has the mean of its channels, and all heads are ranked together,
as by its ``prune_num_heads`` and ``global_pruning``. It needs by hand:

- a batch, a function that runs it, and weights with gradients;
- the output projection of every layer, where the groups of heads begin, and the number of heads;
- ``Linear`` in place of the ``Conv1D`` of transformers, and three in place of one that makes
  queries, keys and values, of which it would see the first third alone;
- queries and keys of the size of values. Of larger ones it would take the first channels, of other
  heads; they are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.heads.models import Batch
from benchmarks.heads.trials import Gained


class UntracedError(Exception):
    """Torch-Pruning has no importances of a model's heads; the message says why."""


def taylor_importances(gained: Gained, batches: Sequence[Batch]) -> np.ndarray:
    """Score heads (ΣH_ℓ,) by Σ |w ∂L/∂w| over the weights of a channel.

    Without a norm of every layer, which ranks worse on most of the models.
    """
    from torch_pruning import importance

    return _importances(
        gained, batches, importance.GroupTaylorImportance(normalizer=None), slopes=True
    )


def magnitude_importances(gained: Gained, batches: Sequence[Batch]) -> np.ndarray:
    """Score heads (ΣH_ℓ,) by the sum of squared weights of a channel, over the mean of its layer.

    This is the default of Torch-Pruning, and better than sums alone.
    """
    from torch_pruning import importance

    return _importances(
        gained, batches, importance.GroupMagnitudeImportance(normalizer="mean"), slopes=False
    )


def _importances(
    gained: Gained,
    batches: Sequence[Batch],
    importance: Callable[..., Tensor | None],
    *,
    slopes: bool,
) -> np.ndarray:
    import torch_pruning as tp

    if any(attention.groups != attention.heads for attention in gained.layers):
        raise UntracedError("Torch-Pruning's channels of heads that share keys are not by head")
    names = {module: name for name, module in gained.model.named_modules()}
    with _prepared(gained.model), torch.enable_grad():
        graph = tp.DependencyGraph().build_dependency(
            gained.model,
            example_inputs=batches[0],
            forward_fn=lambda _, batch: gained.head_model.outputs(batch)[0],
            verbose=False,
        )
        for batch in batches if slopes else ():
            gained.head_model.losses(batch).sum().backward()
        scores = []
        for attention in gained.layers:
            projection = gained.model.get_submodule(names[attention.projection])
            channels = list(range(projection.in_features))
            try:
                group = graph.get_pruning_group(projection, tp.prune_linear_in_channels, channels)
            except ValueError as error:  # a function reads its weight
                raise UntracedError(f"Torch-Pruning does not trace {attention.where}") from error
            group.items[:] = [item for item in group.items if _has_channels(item.dep, channels)]
            if len(group.items) < 2:
                raise UntracedError(f"Torch-Pruning finds no values in {attention.where}")
            scores.append(importance(group).reshape(attention.heads, -1).mean(dim=1))
    return torch.cat(scores).double().numpy()


def _has_channels(dependency, channels: list[int]) -> bool:
    """Whether a layer is linear, and has these channels and no others."""
    layer = dependency.target.module
    if not isinstance(layer, nn.Linear):
        return False
    is_input = dependency.handler.__name__ == "prune_in_channels"
    return (layer.in_features if is_input else layer.out_features) == len(channels)


@contextmanager
def _prepared(model: nn.Module) -> Iterator[None]:
    """Make the weights of a model leaves of gradients, and its projections ``Linear``."""
    with ExitStack() as restored, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Unwrapped parameters detected")
        for name, module in list(model.named_modules()):
            if type(module).__name__ == "Conv1D":
                place, _, attribute = name.rpartition(".")
                parent = model.get_submodule(place)
                restored.callback(setattr, parent, attribute, module)
                setattr(parent, attribute, _linear(module))
        for weight in model.parameters():
            restored.callback(weight.requires_grad_, weight.requires_grad)
            restored.callback(setattr, weight, "grad", weight.grad)
            weight.requires_grad_(True)
            weight.grad = None
        yield


def _linear(conv: nn.Module) -> nn.Module:
    """The same map as a ``Conv1D``; three side by side of one that triples its inputs."""
    inputs, outputs = conv.weight.shape
    parts = 3 if outputs == 3 * inputs else 1
    layers = []
    for weight, bias in zip(conv.weight.T.chunk(parts), conv.bias.chunk(parts)):
        layer = nn.Linear(inputs, outputs // parts)
        layer.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        layers.append(layer)
    return _SideBySide(layers) if parts > 1 else layers[0]


class _SideBySide(nn.ModuleList):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([layer(inputs) for layer in self], dim=-1)
