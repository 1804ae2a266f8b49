"""Split batches into a model's arguments and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with the arguments of a batch."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


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
    if isinstance(masks, Tensor | Mapping | np.ndarray):
        raise TypeError("masks must be several, one for each batch; put a single one into a list")
    remaining, missing = iter(masks), object()
    for batch in batches:
        if (mask := next(remaining, missing)) is missing:
            raise ValueError("masks ends before batches; give one for each batch, (batch, M)")
        yield batch, mask
    if next(remaining, missing) is not missing:
        raise ValueError("masks goes on after batches; give one for each batch, (batch, M)")
