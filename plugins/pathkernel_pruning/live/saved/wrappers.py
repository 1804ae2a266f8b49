"""Take wrappers off a model, which only change how it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from pathkernel_models.errors import CaptureError

_MIXED_PRECISION = "accelerate.utils.operations"  # module of the function


@contextmanager
def without_wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model without the wrappers of torch.compile, DataParallel and DDP, at any depth.

    The wrapper that accelerate, as in the Trainer of transformers, puts around the forward pass to
    train in mixed precision is left out, too. Wrappers of its parts are back at the end. Raises a
    CaptureError if one has hooks.
    """
    inner = _inner(model, "the model itself")
    with ExitStack() as restored:
        _leave_mixed_precision(inner, restored)
        for title, parent in list(inner.named_modules()):
            for name, child in parent._modules.items():
                if child is not None and (plain := _inner(child, f"{title}.{name}")) is not child:
                    restored.callback(_wrap_again, parent._modules, name, child, plain)
                    parent._modules[name] = plain
        yield inner


def _leave_mixed_precision(model: nn.Module, restored: ExitStack) -> None:
    """Run the forward pass that a model had before accelerate wrapped it for mixed precision."""
    attributes = vars(model)
    forward, original = attributes.get("forward"), attributes.get("_original_forward")
    if original is None or getattr(forward, "__module__", None) != _MIXED_PRECISION:
        return
    for key in ("forward", "_original_forward"):
        restored.callback(attributes.__setitem__, key, attributes.pop(key))
    if getattr(original, "__func__", None) is not type(model).forward:  # replaced by hand, before
        attributes["forward"] = original


def _wrap_again(modules: dict, name: str, wrapper: nn.Module, inner: nn.Module) -> None:
    if modules[name] is inner:  # else a smaller one took its place
        modules[name] = wrapper


def _inner(module: nn.Module, title: str) -> nn.Module:
    dynamo: Any = sys.modules.get("torch._dynamo")  # else nothing is compiled
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        elif dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            inner = module._orig_mod
        else:
            return module
        if module._forward_hooks or module._forward_pre_hooks:
            raise CaptureError(
                f"{title.lstrip('.')} has hooks on its wrapper, a {type(module).__name__}, which "
                "no folder keeps; remove them, or register them on the module inside"
            )
        module = inner
