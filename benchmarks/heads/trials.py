"""Losses of a model with gains in front of its heads, and the passes that they take."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from benchmarks.heads.models import Batch, HeadModel
from pathkernel_core.paths.heads import every_head
from pathkernel_models.attention_module import block_name
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.watching import replaced_forward
from pathkernel_pruning.live.gains import with_gains


class Gained:
    """A model whose heads have gains, measured on batches of examples.

    Attributes
    ----------
    heads : list of (layer, number)
    per_layer : list of int
    """

    def __init__(self, head_model: HeadModel):
        self.head_model, self.model = head_model, head_model.model
        self.layers = attention_modules(self.model)
        self.per_layer = [attention.heads for attention in self.layers]
        self.heads = every_head(self.per_layer)
        self.layer_of = np.repeat(np.arange(len(self.layers)), self.per_layer)
        self._compared = ComparedLayers()

    def without(self, off: Sequence[int]) -> np.ndarray:
        """Gains (ΣH_ℓ,) of 1, and 0 at the positions of the heads that are off."""
        gains = np.ones(len(self.heads))
        gains[list(off)] = 0.0
        return gains

    def gains(
        self, gains: np.ndarray, with_gradients: bool = False
    ) -> AbstractContextManager[list]:
        """Multiply heads by gains (ΣH_ℓ,) inside the context, as ``with_gains`` does."""
        return with_gains(self.model, self.layers, gains, self._compared, with_gradients)

    def measure(self, batches: Sequence[Batch], gains: np.ndarray) -> dict[str, np.ndarray]:
        """Loss and accuracy of every example, (P,) each, in float32."""
        with self.gains(gains):
            values = self.head_model.measure(batches)
        return {name: value.float().numpy() for name, value in values.items()}

    def loss(self, batches: Sequence[Batch], gains: np.ndarray) -> float:
        """Mean loss of the examples."""
        return float(self.measure(batches, gains)["loss"].mean(dtype=float))


class Trials:
    """Mean losses with single heads off in turn, each from the first changed layer on.

    Blocks of the model below the head that is tried give what they gave with the heads off so far,
    which saves nearly half of a trial, unless a block is but its attention. Passes are counted as
    whole ones.
    """

    def __init__(self, gained: Gained, batches: Sequence[Batch]):
        self._gained, self._batches = gained, list(batches)
        modules = dict(gained.model.named_modules())
        # attention without its projections would be taken for one of its own ways
        skips = all(block_name(attention) != attention.name for attention in gained.layers)
        self._blocks = [modules[block_name(a)] for a in gained.layers] if skips else []
        self._outputs: dict[tuple[int, int], Any] = {}  # by batch and layer
        self._first = 0  # layer from which blocks run
        self._batch = 0

    def start(self, off: Sequence[int]) -> float:
        """Switch heads off for all trials to come, and return the mean loss."""
        self._outputs.clear()
        return self._run(off, 0)

    def loss(self, off: Sequence[int], head: int) -> float:
        """Mean loss without one more head."""
        return self._run([*off, head], int(self._gained.layer_of[head]))

    def _run(self, off: Sequence[int], first: int) -> float:
        gained, losses = self._gained, []
        self._first = first
        with ExitStack() as stack:
            stack.enter_context(gained.gains(gained.without(off)))
            for layer, block in enumerate(self._blocks):
                replacement = self._resumed(layer, block, block.forward)
                stack.enter_context(replaced_forward(block, replacement))
            for number, batch in enumerate(self._batches):
                self._batch = number
                losses.append(gained.head_model.measure([batch])["loss"])
        return float(torch.cat(losses).mean())

    def _resumed(self, layer: int, block: nn.Module, forward: Callable) -> Callable:
        @functools.wraps(forward)
        def resumed(*args: Any, **kwargs: Any) -> Any:
            key = self._batch, layer
            if layer < self._first:
                return self._outputs[key]
            output = forward(*args, **kwargs)
            if self._first == 0 and key not in self._outputs:
                self._outputs[key] = output
            return output

        return resumed


class Passes:
    """Number of forward and backward passes of a model, of all examples of a set."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, batches: int) -> float:
        """Passes of all examples, in so many batches."""
        return self.calls / batches


@contextmanager
def counted_passes(model: nn.Module) -> Iterator[Passes]:
    """Count forward passes of a model, and backward passes of PyTorch, inside the context."""
    passes, gradients = Passes(), torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        passes.calls += 1
        return gradients(*args, **kwargs)

    def ran(*_: Any) -> None:
        passes.calls += 1

    handle = model.register_forward_pre_hook(ran)
    try:
        with mock.patch("torch.autograd.grad", grad):
            yield passes
    finally:
        handle.remove()
