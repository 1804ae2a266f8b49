"""Derivatives of what a model gives by factors or summands of its layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.errors import CaptureError


def check_kept(values: Tensor, name: str) -> None:
    """Raise a ValueError if values that the function ``name`` gives have no gradients."""
    if not values.requires_grad:
        raise ValueError(
            f"{name} must keep the gradients of what the model gives, and depend on its heads; "
            "leave no_grad and detach out"
        )


def check_leaves(leaves: Sequence[Tensor], layers: Sequence[AttentionModule]) -> None:
    """Raise a CaptureError if a layer ran without gradients by its leaf."""
    for leaf, attention in zip(leaves, layers):
        if not leaf.requires_grad:
            raise CaptureError(
                f"{attention.where} runs without gradients, as under reentrant gradient "
                "checkpointing; turn it off, or take use_reentrant=False"
            )


def derivatives(
    values: Tensor,
    leaves: Sequence[Tensor],
    directions: Tensor | None = None,
    *,
    name: str,
    keeps_graph: bool = True,
) -> list[Tensor]:
    """Derivatives of values by leaves, 0 where the values do not depend on them.

    Parameters
    ----------
    values : Tensor
        A number, or an array whose sum times ``directions`` is differentiated.
    leaves : sequence of Tensor
    directions : Tensor, of the shape of ``values``, optional
        As they are: a product with the values would be one more array of their size.
    name : str
        Function that gives the values, for the message.
    keeps_graph : bool
        Whether other derivatives of the same values follow; else activations are freed on the way.

    Raises
    ------
    ValueError
        If the values depend on none of the leaves.
    """
    slopes = torch.autograd.grad(
        values, leaves, directions, retain_graph=keeps_graph, allow_unused=True
    )
    if all(slope is None for slope in slopes):
        raise ValueError(
            f"{name} does not depend on the heads of the model, or its gradients do not reach "
            "them, as through quantised weights or detach"
        )
    return [
        torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(slopes, leaves)
    ]
