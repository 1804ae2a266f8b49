"""Set a model's modes for evaluation or capture, and restore them."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.inputs.masks import LOW

_VISIBLE = ("eager", "sdpa")  # attention of transformers by functions that a mode sees
_ENCODER_LAYER = inspect.signature(nn.TransformerEncoderLayer.forward)
_READ = {  # parts of an encoder layer whose weights its fused kernel reads, and does not run
    "self_attn": nn.MultiheadAttention,
    "self_attn.out_proj": nn.Linear,
    "linear1": nn.Linear,
    "linear2": nn.Linear,
    "norm1": nn.LayerNorm,
    "norm2": nn.LayerNorm,
}


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
def without_fused_layers(model: nn.Module | None = None) -> Iterator[None]:
    """Keep fused encoder layers of PyTorch, which read weights, from running in the context.

    With a model, a RuntimeWarning names its first layer that computes something else when fused.
    """
    enabled, told = torch.backends.mha.get_fastpath_enabled(), False

    def tell(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        nonlocal told
        if not told and (fault := _fault_of_fusion(layer, args, kwargs)):
            told = True
            warnings.warn(
                "PyTorch fuses this model's encoder layers in evaluation without gradients, and "
                f"then {fault}: the plain model computes another function than here, where no "
                "layer is fused. Compare with the model inside heads_off(model, []), or call "
                "torch.backends.mha.set_fastpath_enabled(False) first",
                RuntimeWarning,
                stacklevel=2,
            )

    with ExitStack() as restored:
        restored.callback(torch.backends.mha.set_fastpath_enabled, enabled)
        torch.backends.mha.set_fastpath_enabled(False)
        for module in model.modules() if model is not None and enabled else ():
            if isinstance(module, nn.TransformerEncoderLayer):
                handle = module.register_forward_pre_hook(tell, with_kwargs=True)
                restored.callback(handle.remove)
        yield


def _fault_of_fusion(layer: Any, args: tuple, kwargs: dict) -> str:
    """Return what an encoder layer would compute wrongly if fused, or nothing."""
    if type(layer).forward is not nn.TransformerEncoderLayer.forward:
        return ""
    parts = dict(layer.named_modules())  # registered, which a substitute may hide
    attention: Any = parts["self_attn"]
    is_fused = (
        isinstance(attention, nn.MultiheadAttention)
        and not layer.training
        and layer.activation_relu_or_gelu
        and layer.norm1.eps == layer.norm2.eps
        and attention.batch_first
        and attention.in_proj_bias is not None
        and attention._qkv_same_embed_dim
        and attention.num_heads % 2 == 0
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and any(part.requires_grad for part in layer.parameters()))
    )
    if not is_fused:
        return ""
    for name, kind in _READ.items():
        if type(parts[name]).forward is not kind.forward:
            substitute = f"{type(parts[name]).__module__}.{type(parts[name]).__qualname__}"
            return f"leaves out what {name} ({substitute}) does beside its weight"
    given = _ENCODER_LAYER.bind(layer, *args, **kwargs).arguments
    for name in ("src_mask", "src_key_padding_mask"):
        mask = given.get(name)
        if not isinstance(mask, Tensor) or not mask.is_floating_point():
            continue
        if ((mask != 0) & (mask > LOW)).any():
            return f"takes every number but 0 of an additive {name} for a hidden key"
    return ""


@contextmanager
def open_to_observation(model: nn.Module) -> Iterator[None]:
    """Evaluate, with attention that gradients pass and heads can be observed in, in the context.

    ``scaled_dot_product_attention`` stays. It keeps no weights for the backward pass, and takes
    boolean masks, which eager attention of transformers adds as 0 and 1.
    """
    with set_evaluation(model), without_fused_layers(model), _set_visible(model):
        yield


def hides_attention(model: nn.Module) -> bool:
    """Whether a model's attention is by another kernel than the one that can be observed."""
    return any(module.config._attn_implementation not in _VISIBLE for module in _switchable(model))


def _switchable(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "set_attn_implementation")]


@contextmanager
def _set_visible(model: nn.Module) -> Iterator[None]:
    """Take eager attention of transformers in place of kernels that hide their weights."""
    # containers come first, and pass the setting on
    switched = _switchable(model) if hides_attention(model) else []
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
