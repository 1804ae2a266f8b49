"""Score the heads of a live model by its gradients or its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from pathkernel_core.paths.heads import every_head
from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_models.agreement import shows_values, with_own_function
from pathkernel_models.arguments import check_batches, check_function, check_model
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.derivatives import check_kept, check_leaves, derivatives
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.heads_off import refuse_shared_weights
from pathkernel_models.inputs.batches import call_model, split_batch
from pathkernel_models.relations import examples_interact
from pathkernel_models.state import open_to_observation, set_evaluation, without_parameter_gradients
from pathkernel_models.switching import factors_by_layer, scale_heads
from pathkernel_pruning.heads.heads import normalised_in_layers
from pathkernel_pruning.live.evaluations import host_array


def gradient_scores(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any], Tensor],
    *,
    normalised: bool = True,
) -> xr.DataArray:
    """Score heads by the mean of |∂L/∂m_h|, m_h = 1 a factor of the output of head h.

    This is the importance of Michel, Levy and Neubig (NeurIPS 2019), who divide it by its ℓ2 norm
    over the heads of a layer. It takes one forward and one backward pass, and another backward pass
    of the first batch, to check that losses do not depend on other examples.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel.capture`.
    batches : iterable
        Arguments of ``loss``, of validation or training examples.
    loss : callable
        Runs the model on a batch and gives the loss of every example, shape (P,); or (P, C), and
        every head has C scores.
    normalised : bool
        Whether to divide by the norm of each layer, as the authors do.

    Returns
    -------
    xarray.DataArray, dims (head,) or (head, draw)
        With labels such as ``2-1``, and the coordinates ``layer`` and ``number``.

    Raises
    ------
    CaptureError
        If the model's attention is not known, layers share their weights, or the loss of an example
        depends on other examples of its batch, as a contrastive one does.
    ValueError
        If there is no batch, or a loss is not a finite one of every example that depends on the
        heads.
    """
    check_model(model)
    check_batches(batches)
    check_function("loss", loss, "which gives the loss of every example of a batch")
    layers = attention_modules(model)
    refuse_shared_weights(model, layers)
    heads = [attention.heads for attention in layers]
    whole = [np.ones(count) for count in heads]
    total, examples, shape, compared = np.zeros(()), 0, None, ComparedLayers()
    are_apart = False
    batches = with_own_function(model, loss, batches)
    with open_to_observation(model), torch.enable_grad(), without_parameter_gradients(model):
        for batch in batches:
            with scale_heads(layers, whole, compared, with_gradients=True) as running:
                losses = loss(batch)
                factors = factors_by_layer(running, layers)
                _check_losses(losses, layers[0].where, len(factors[0]))
                check_leaves(factors, layers)
                if shape is not None and losses.shape[1:] != shape:
                    raise ValueError(
                        f"loss gives shape {tuple(losses.shape)}, but another number of columns "
                        "for the batch before; it must give the same for every batch"
                    )
                shape = losses.shape[1:]
                slopes = _slopes(losses, factors, is_tested=not are_apart and len(losses) > 1)
                are_apart = are_apart or len(losses) > 1
            total = total + abs(slopes).sum(axis=1)
            examples += len(losses)
    if not examples:
        raise ValueError("batches must hold at least one batch")
    scores = (total / examples).T
    scores = normalised_in_layers(scores, heads) if normalised else scores
    scores = scores[:, 0] if losses.ndim == 1 else scores
    return scores_by_head(every_head(heads), scores, needs="examples")


def magnitude_scores(model: nn.Module, batch: Any = None) -> xr.DataArray:
    """Score heads by the Frobenius norm of their map W_O W_V from a token to the output.

    W_O and W_V are the matrices that the projections multiply by, with adapters and
    parametrisations; gates and norms between are left out.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel.capture`, of any precision.
    batch : tensor, mapping or tuple
        As for :func:`pathkernel.capture`. The model runs on it once, and attention times
        values is compared with the outputs of the heads.

    Returns
    -------
    xarray.DataArray, dims (head,)
        With labels such as ``2-1``, and the coordinates ``layer`` and ``number``.

    Raises
    ------
    CaptureError
        If the model's attention or the position of its values is not known, or heads lie elsewhere
        in the weights; or a projection is no linear map.
    ValueError
        If there is no batch.
    """
    layers, scores = attention_modules(model), list[float]()
    if batch is None:
        raise ValueError(
            "magnitude_scores needs a batch of the model, batch=, on which its heads are compared"
        )
    with set_evaluation(model), ComparedLayers().compare_all(layers):
        call_model(model, split_batch(batch)[0])
    for attention in layers:
        if attention.values is None or not shows_values(attention.module):
            raise CaptureError(
                f"{attention.where} keeps the weights of its values in a form that is not known; "
                "score its heads by gradient_scores"
            )
        values = attention.values().double()  # (H, G, N_0)
        outputs = attention.output_map().double()  # (output, H·G)
        maps = outputs.mT.reshape(attention.heads, values.shape[1], -1).mT @ values
        scores += torch.linalg.matrix_norm(maps).cpu().tolist()
    heads = every_head([attention.heads for attention in layers])
    return scores_by_head(heads, scores, needs="weights")


def _slopes(losses: Tensor, factors: list[Tensor], *, is_tested: bool) -> np.ndarray:
    """Derivatives (C, P, H) of losses (P,) or (P, C) by the factors of their examples.

    Raises a CaptureError if it is tested whether examples interact, and they do.
    """
    values, slopes = losses.reshape(len(losses), -1), []
    columns = values.unbind(dim=1)
    for number, column in enumerate(columns, start=1):
        # examples do not interact, so that a factor's gradient is that of its example
        keeps = is_tested or number < len(columns)
        by_layer = derivatives(column.sum(), factors, name="loss", keeps_graph=keeps)
        slopes.append(np.concatenate(list(map(host_array, by_layer)), axis=1))
    # of a single column the derivatives are known; of several a random sum tells
    known = by_layer if len(columns) == 1 else None
    if is_tested and examples_interact(values, factors, name="loss", slopes=known):
        raise CaptureError(
            "loss gives losses that depend on other examples of their batch, as a contrastive loss "
            "does, or in another order, so that gradients by example are not defined; take "
            "curvature_scores, whose gains are those of a whole batch"
        )
    return np.array(slopes)


def _check_losses(losses: Any, where: str, batch: int) -> None:
    if isinstance(losses, Tensor) and losses.ndim and 0 < len(losses) < batch:
        raise CaptureError(
            f"{where} runs on {batch} sequences for {len(losses)} examples, as windows "
            "of an image; gradient_scores needs attention whose batch is that of the examples"
        )
    if not isinstance(losses, Tensor) or losses.ndim not in (1, 2) or len(losses) != batch:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"loss must give the loss of each of the {batch} examples of a batch, but gives "
            f'{shape}; PyTorch\'s own losses do with reduction="none"'
        )
    if losses.is_complex():
        raise ValueError(f"loss gives values of {losses.dtype}; give real ones")
    if not losses.isfinite().all():
        raise ValueError(
            "loss gives values that are NaN or infinite; every example needs a finite one"
        )
    check_kept(losses, "loss")
