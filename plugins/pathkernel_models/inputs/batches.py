"""Split batches into a model's arguments and labels."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_core.system.errors import PathkernelError
from pathkernel_models.arguments import check_batch, check_batches
from pathkernel_models.errors import CaptureError

# of inputs that do not fit; a ValueError is the model's own word
_UNFIT = (RuntimeError, AssertionError, AttributeError, LookupError, TypeError)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with the arguments of a batch.

    Raises a CaptureError if it takes other arguments, or does not run on these.
    """
    args, kwargs = _split_arguments(inputs)
    try:
        return model(*args, **kwargs)
    except (PathkernelError, torch.OutOfMemoryError):
        raise
    except _UNFIT as error:
        if misfit := _misfit(model, error):
            raise CaptureError(f"a batch does not fit {type(model).__name__}: {misfit}") from error
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(inputs))
        raise CaptureError(
            f"{type(model).__name__} does not run on the batch, tensors of shape {shapes} "
            f"({type(error).__name__}: {error}). Check that it runs by itself, model(batch)"
        ) from error


def named_arguments(model: nn.Module, inputs: Any) -> Iterator[tuple[str, Any]]:
    """Yield a batch's arguments of a model and their names, "" where the model gives none."""
    args, kwargs = _split_arguments(inputs)
    parameters = _parameters(model.forward) or ()
    names = [entry.name for entry in parameters if entry.kind in _BY_POSITION][: len(args)]
    yield from zip([*names, *[""] * (len(args) - len(names))], args)
    yield from kwargs.items()


def _split_arguments(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    """Arguments of a batch by position, and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    """Parameters of a function, or None of compiled code, which does not tell."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None


def _misfit(model: nn.Module, error: Exception) -> str:
    """How the arguments of a call differ from those that a model takes; "" for other errors.

    Hooks and a ``__call__`` of the class may change arguments, so only a call that failed tells.
    """
    if not isinstance(error, TypeError):
        return ""
    entered = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    for function in (model.forward, MethodType(type(model).__call__, model)):
        inner = inspect.unwrap(function)
        # a module inside may be of the same class: this one's code has not begun
        start = f"{getattr(inner, '__qualname__', '')}() "
        if str(error).startswith(start) and getattr(inner, "__code__", None) not in entered:
            names = ", ".join(entry.name for entry in _parameters(function) or ())
            return f"{str(error).removeprefix(start)}; its arguments are {names}"
    return ""


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Split a batch into the model's arguments and labels or None."""
    labels = None
    if isinstance(batch, tuple | list):
        if len(batch) != 2:
            raise ValueError(
                "a batch that is a tuple must be a pair of inputs and labels, but has "
                f"{len(batch)} parts; pair several inputs up, ((inputs, more), labels)"
            )
        batch, labels = batch
    if isinstance(batch, Mapping):
        batch = dict(batch)
        if labels is not None and batch.get("labels") is not None:
            raise ValueError("a batch has labels twice, in its mapping and beside it; give one")
        labels = batch.pop("labels", labels)
    check_batch(batch)
    tensors = [tensor for tensor in tensors_of(batch) if tensor.ndim]
    if tensors and not any(map(len, tensors)):
        raise ValueError("a batch holds no example; leave it out")
    return batch, labels


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a model's arguments or outputs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(item)


def check_device(model: nn.Module, inputs: Any) -> None:
    """Raise a CaptureError if a batch does not lie on the model's device."""
    devices = {parameter.device for parameter in model.parameters()}
    if offloaded := {device for device in devices if device.type == "meta"}:
        if not any(hasattr(module, "_hf_hook") for module in model.modules()):
            raise CaptureError(
                f"{type(model).__name__} has weights that are not loaded (device meta); load them, "
                "such as by from_pretrained or load_state_dict(…, assign=True)"
            )
        devices -= offloaded  # which hooks of accelerate load where they are needed
    for tensor in tensors_of(inputs):
        if len(devices) == 1 and tensor.device not in devices:
            (device,) = devices
            raise CaptureError(
                f"a batch lies on {tensor.device}, but the model on {device}; move the batch, "
                f'batch.to("{device}")'
            )


def join_batches(batches: list[np.ndarray]) -> np.ndarray:
    """Concatenate all batches, releasing each after its copy."""
    # concatenate would have everything twice at its end: here it is one array and what is left
    everything = np.empty((sum(map(len, batches)), *batches[0].shape[1:]), batches[0].dtype)
    start = 0
    batches.reverse()
    while batches:
        batch = batches.pop()
        everything[start : start + len(batch)] = batch
        start += len(batch)
    return everything


def with_masks(
    batches: Iterable[Any], masks: Iterable[Any] | None
) -> Iterator[tuple[Any, Any | None]]:
    """Yield every batch and its mask, if masks are given; a ValueError tells of missing ones."""
    if masks is None:
        yield from ((batch, None) for batch in batches)
        return
    check_batches(masks, "masks", "one for each batch")
    remaining, missing = iter(masks), object()
    for batch in batches:
        if (mask := next(remaining, missing)) is missing:
            raise ValueError("masks ends before batches; give one for each batch, (batch, M)")
        yield batch, mask
    if next(remaining, missing) is not missing:
        raise ValueError("masks goes on after batches; give one for each batch, (batch, M)")
