"""Split batches into a model's arguments and labels."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_core.system.errors import PathkernelError
from pathkernel_models.arguments import check_batch, check_batches
from pathkernel_models.errors import CaptureError

# of inputs that do not fit; a ValueError is the model's own word
_UNFIT = (RuntimeError, AssertionError, AttributeError, LookupError, TypeError)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with the arguments of a batch.

    Raises a CaptureError if it takes other arguments, or does not run on these.
    """
    args, kwargs = (inputs,), {}
    if isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, tuple | list):
        args = tuple(inputs)
    _check_arguments(model, args, kwargs)
    try:
        return model(*args, **kwargs)
    except (PathkernelError, torch.OutOfMemoryError):
        raise
    except _UNFIT as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(inputs))
        raise CaptureError(
            f"{type(model).__name__} does not run on the batch, tensors of shape {shapes} "
            f"({type(error).__name__}: {error}). Check that it runs by itself, model(batch)"
        ) from error


def _check_arguments(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Raise a CaptureError if a model takes other arguments than those of a batch."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of compiled code, which has none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"a batch does not fit {type(model).__name__}: {error}; its arguments are "
            f"{', '.join(signature.parameters)}"
        ) from error


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
