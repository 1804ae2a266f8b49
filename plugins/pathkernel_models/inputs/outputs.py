"""Outputs of a live model on a batch, with their targets, as a user's function gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from pathkernel_models.precision import is_half

LossName: TypeAlias = Literal["squared", "cross-entropy"]


Outputs = Callable[[Any], tuple[Tensor, Tensor]]
"""Runs the model on a batch and gives its outputs and their targets."""


MANY_OUTPUTS = 2**21  # numbers, 16 MiB in float64


def target_tensor(targets: Any, outputs: Tensor) -> Tensor:
    """Return targets as real numbers on the device of outputs, or raise a ValueError."""
    try:
        targets = torch.as_tensor(targets, device=outputs.device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"outputs gives targets that are no numbers, a {type(targets).__name__} ({error}); "
            "give a tensor, of the same shape as outputs or of classes, (B,)"
        ) from error
    if targets.is_complex():
        raise ValueError(f"outputs gives targets of {targets.dtype}; give real ones")
    return targets


def checked_outputs(given: Any, loss: LossName) -> tuple[Tensor, Tensor]:
    """Outputs (B, C) and targets, (B, C) or (B,) of classes, if a loss takes them.

    Outputs are in float64, or in float32 where the model gives them in half precision, or gives
    many of single precision.

    Raises
    ------
    ValueError
        If they are not a pair of tensors of fitting shapes, or outputs are not finite.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(
            "outputs must give a pair for a batch, the model's outputs and their targets, but "
            f"gives a {type(given).__name__}"
        )
    outputs, targets = given
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        kind = outputs.dtype if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            "outputs must give a tensor of real numbers, those of the model with their gradients, "
            f"but gives {kind}"
        )
    if outputs.ndim not in (1, 2) or not outputs.numel():
        raise ValueError(
            "outputs must give numbers of every example, (B,) or (B, C), but gives "
            f"{tuple(outputs.shape)}; join tokens with examples, z.flatten(0, 1)"
        )
    if not outputs.isfinite().all():
        raise ValueError("outputs gives values that are NaN or infinite; every one must be finite")
    targets = target_tensor(targets, outputs)
    # half precision has three digits, and float64 of the logits of many tokens takes much memory
    is_many = outputs.dtype == torch.float32 and outputs.numel() > MANY_OUTPUTS
    outputs = outputs.to(torch.float32 if is_half(outputs.dtype) or is_many else torch.float64)
    if loss == "squared":
        if targets.shape != outputs.shape:
            raise ValueError(
                f"outputs gives shape {tuple(outputs.shape)}, but targets of "
                f"{tuple(targets.shape)}; the squared error needs a target for every number; "
                'for classes set loss="cross-entropy"'
            )
        targets = targets.double().reshape(len(outputs), -1)
        if not targets.isfinite().all():
            raise ValueError("outputs gives targets that are NaN or infinite")
        return outputs.reshape(len(outputs), -1), targets
    classes = outputs.shape[1] if outputs.ndim == 2 else 1
    if classes < 2:
        raise ValueError(
            f"outputs gives shape {tuple(outputs.shape)}, but cross-entropy needs a column for "
            "each class, (B, C); of a single logit z give torch.stack([0 * z, z], 1)"
        )
    if targets.is_floating_point() or targets.shape != (len(outputs),):
        raise ValueError(
            f"outputs gives targets of shape {tuple(targets.shape)} and {targets.dtype}, but "
            f"cross-entropy needs classes, integers of shape ({len(outputs)},)"
        )
    targets = targets.long()
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise ValueError(
            f"outputs gives classes from {int(targets.min())} to {int(targets.max())}, but has "
            f"{classes} columns, classes 0 to {classes - 1}; leave out examples without a class"
        )
    return outputs, targets
