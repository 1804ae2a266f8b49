"""Scores of the heads of a live model from its gradients and its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError
from pathkernel_capture.evaluations import host_array
from pathkernel_capture.families import AttentionModule, attention_modules
from pathkernel_capture.removal import refuse_shared_weights
from pathkernel_capture.state import open_to_capture
from pathkernel_trained.heads import Head, every_head, per_layer

HeadScores = Mapping[Head, Any]
"""A number for every (layer, head) of a model, or an array (C,) of one for each of C draws."""


def gradient_scores(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any], Tensor],
    *,
    normalised: bool = True,
) -> dict[Head, Any]:
    """Mean over examples of |∂L/∂m_h|, with a factor m_h = 1 in front of the output of head h.

    This is the importance of Michel, Levy and Neubig (NeurIPS 2019), who divide it by its ℓ2 norm
    over the heads of a layer. It takes one forward and one backward pass.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_capture.capture`.
    batches : iterable
        Whatever ``loss`` takes. Of validation or training examples: a score must not know the test
        set.
    loss : callable
        Runs the model on a batch and gives the loss of every example, shape (P,); or (P, C), and
        every head has C scores.
    normalised : bool
        Whether to divide by the norm of each layer, as the authors do.

    Returns
    -------
    dict of (layer, head) to float or array, shape (C,)

    Raises
    ------
    CaptureError
        If the model's attention is not known, or layers share their weights.
    ValueError
        If there is no batch, or a loss is not a finite one of every example that depends on the
        heads.
    """
    refuse_shared_weights(model)
    known = attention_modules(model)
    heads = [attention.heads for attention in known]
    total, examples, shape = np.zeros(()), 0, None
    with open_to_capture(model), torch.enable_grad():
        for batch in batches:
            with _factors(known) as factors:
                losses = loss(batch)
            _check_losses(losses, factors, known)
            if shape is not None and losses.shape[1:] != shape:
                raise ValueError(
                    f"loss gives shape {tuple(losses.shape)}, but another number of columns for "
                    "the batch before; it must give the same for every batch"
                )
            shape = losses.shape[1:]
            columns = losses.reshape(len(losses), -1).sum(dim=0)
            found = [_slopes(each, factors) for each in columns]
            # examples do not see each other, so that each factor's gradient is its own example's
            slopes = [[np.abs(host_array(layer)).sum(axis=0) for layer in each] for each in found]
            total = total + np.array([np.concatenate(each) for each in slopes])
            examples += len(losses)
    if not examples:
        raise ValueError("batches must hold at least one batch")
    layers = per_layer((total / examples).T, heads)
    if normalised:
        norms = [np.linalg.norm(layer, axis=0) for layer in layers]
        layers = [layer / np.where(norm > 0, norm, 1.0) for layer, norm in zip(layers, norms)]
    scores = np.concatenate(layers)
    return dict(zip(every_head(heads), scores[:, 0] if losses.ndim == 1 else scores))


def magnitude_scores(model: nn.Module) -> dict[Head, float]:
    """Frobenius norm of each head's map from a token to the output, W_O W_V.

    Raises a CaptureError if the model's attention is not known, or how it keeps its values.
    """
    scores = {}
    for layer, attention in enumerate(attention_modules(model), start=1):
        if attention.values is None:
            raise CaptureError(
                f"layer {layer} ({attention.name}) keeps the weights of its values in a form that "
                "is not known; score its heads by gradient_scores"
            )
        values = attention.values().detach().double()  # (H, G, N_0)
        outputs = attention.output.detach().double().movedim(attention.output_axis, 0)
        maps = outputs.reshape(attention.heads, values.shape[1], -1).mT @ values
        norms = torch.linalg.matrix_norm(maps).cpu().tolist()
        scores |= {(layer, head): norm for head, norm in enumerate(norms, start=1)}
    return scores


@contextmanager
def _factors(known: Iterable[AttentionModule]) -> Iterator[list[Tensor]]:
    """Factors of 1, (batch, H), in front of every head of a layer while the context lasts."""
    factors: list[Tensor] = []
    with ExitStack() as hooks:
        for attention in known:

            def scaled(joined: Tensor, attention: AttentionModule = attention) -> Tensor:
                split = joined.reshape(*joined.shape[:2], attention.heads, -1)
                batch = split.shape[1 if attention.swapped else 0]
                own = joined.new_ones(batch, attention.heads, requires_grad=True)
                factors.append(own)
                own = own[None, :, :, None] if attention.swapped else own[:, None, :, None]
                return (split * own).reshape(joined.shape)

            hooks.enter_context(attention.joined(scaled))
        yield factors


def _check_losses(losses: Any, factors: list[Tensor], known: list[AttentionModule]) -> None:
    if len(factors) != len(known):
        raise CaptureError(
            f"{len(factors)} of {len(known)} layers ran in the forward pass; each must run once"
        )
    batch = len(factors[0])
    if not isinstance(losses, Tensor) or losses.ndim not in (1, 2) or len(losses) != batch:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"loss must give the loss of each of the {batch} examples of a batch, but gives "
            f'{shape}; PyTorch\'s own losses do with reduction="none"'
        )
    if not losses.isfinite().all():
        raise ValueError(
            "loss gives values that are NaN or infinite; every example needs a finite one"
        )
    if not losses.requires_grad:
        raise ValueError("loss must keep the gradients of what the model gives; leave no_grad out")


def _slopes(column: Tensor, factors: list[Tensor]) -> list[Tensor]:
    """Gradients by the factors of every layer; 0 for layers that the loss does not see."""
    found = torch.autograd.grad(column, factors, retain_graph=True, allow_unused=True)
    if all(each is None for each in found):
        raise ValueError("loss does not depend on the heads of the model")
    return [torch.zeros_like(own) if each is None else each for each, own in zip(found, factors)]
