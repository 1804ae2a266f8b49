"""Set a model's modes for evaluation or capture, and restore them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable gradients inside the context; run compiled code eagerly."""
    with ExitStack() as restored:
        if "torch._dynamo" in sys.modules:  # compiled code ignores new hooks, or cannot trace them
            restored.enter_context(torch.compiler.set_stance("force_eager"))
        restored.enter_context(torch.no_grad())
        for module in model.modules():
            restored.callback(setattr, module, "training", module.training)
        model.eval()
        yield


@contextmanager
def open_to_capture(model: nn.Module) -> Iterator[None]:
    """Evaluate, with attention computed by functions of PyTorch, inside the context."""
    # of transformers: containers come first, and pass the setting on
    switched = [module for module in model.modules() if hasattr(module, "set_attn_implementation")]
    with ExitStack() as restored:
        restored.enter_context(evaluating(model))
        restored.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        for module in reversed(switched):
            restored.callback(module.set_attn_implementation, module.config._attn_implementation)
        for module in switched:
            module.set_attn_implementation("eager")
        yield
