"""Set a model's modes for evaluation or capture, and restore them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn


def suspend_compilation() -> AbstractContextManager[Any]:
    """Return a context in which compiled models run uncompiled, since their code ignores hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextmanager
def set_evaluation(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, without gradients and compiled code, inside the context."""
    with ExitStack() as restored:
        restored.enter_context(suspend_compilation())
        restored.enter_context(torch.no_grad())
        for module in model.modules():
            restored.callback(setattr, module, "training", module.training)
        model.eval()
        yield


@contextmanager
def without_fused_layers() -> Iterator[None]:
    """Keep fused encoder layers of PyTorch, which read weights, from running in the context."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def open_to_capture(model: nn.Module) -> Iterator[None]:
    """Evaluate, with attention computed step by step by functions of PyTorch, in the context."""
    with set_evaluation(model), without_fused_layers(), _set_eager(model, kept=()):
        yield


@contextmanager
def open_to_gradients(model: nn.Module) -> Iterator[None]:
    """Evaluate, with attention that gradients pass and heads can be compared in, in the context.

    ``scaled_dot_product_attention`` stays, which keeps no weights for the backward pass.
    """
    with set_evaluation(model), without_fused_layers(), _set_eager(model, kept=("sdpa",)):
        yield


@contextmanager
def _set_eager(model: nn.Module, kept: tuple[str, ...]) -> Iterator[None]:
    """Take eager attention of transformers, unless all that a model has is kept, in the context."""
    # containers come first, and pass the setting on
    switched = [module for module in model.modules() if hasattr(module, "set_attn_implementation")]
    if all(module.config._attn_implementation in kept for module in switched):
        switched = []
    with ExitStack() as restored:
        for module in reversed(switched):
            restored.callback(module.set_attn_implementation, module.config._attn_implementation)
        for module in switched:
            module.set_attn_implementation("eager")
        yield


@contextmanager
def without_parameter_gradients(model: nn.Module) -> Iterator[None]:
    """Let no parameter need gradients inside the context, which keeps fewer activations."""
    needing = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in needing:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in needing:
            parameter.requires_grad_(True)
