"""A model as it must be while attention is taken from it, and afterwards as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; then all put back."""
    with ExitStack() as put_back:
        put_back.enter_context(torch.no_grad())
        for module in model.modules():
            put_back.callback(setattr, module, "training", module.training)
        model.eval()
        yield


@contextmanager
def open_to_capture(model: nn.Module) -> Iterator[None]:
    """As :func:`evaluating`, and attention in functions of PyTorch; then all put back."""
    # transformers': what contains others comes first, and setting it sets them too
    switched = [module for module in model.modules() if hasattr(module, "set_attn_implementation")]
    with ExitStack() as put_back:
        put_back.enter_context(evaluating(model))
        put_back.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        for module in reversed(switched):
            put_back.callback(module.set_attn_implementation, module.config._attn_implementation)
        for module in switched:
            module.set_attn_implementation("eager")
        yield
