"""Ask a projection of a model which matrix it multiplies by.

The weight of a module need not be it: adapters add to it, parametrisations and pruning masks
compute it, quantised and offloaded weights are stored in another form.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError
from pathkernel_models.state import set_evaluation

_TOLERANCE = 1e-4  # of the largest output
_HALF = 0.03  # the same in half precision


def projection_matrix(projection: nn.Module, weight: Tensor, where: str) -> Tensor:
    """Return the matrix (outputs, inputs) that a projection multiplies its input by.

    Parameters
    ----------
    projection : Module
        A linear map, with a bias or without.
    weight : Tensor
        Its stored weight (outputs, inputs), returned if the projection multiplies by it.
    where : str
        The layer, for messages.

    Raises
    ------
    CaptureError
        If the projection does not run on a vector, or is not linear.
    """
    if _multiplies(projection, weight):
        return weight.detach()
    # all unit vectors, then a random one as a check: a map that is linear on the units alone, as
    # one that quantises its input, would pass for its matrix
    inputs = _inputs(projection, weight)
    try:
        probe = _vectors(projection, inputs, 1)
        matrix = _increments(projection, torch.eye(inputs).to(probe)).mT
        expected, given = probe @ matrix.mT, _increments(projection, probe)
    except Exception as error:  # whatever a module raises
        raise CaptureError(
            f"{where} has a {type(projection).__name__} whose matrix cannot be read "
            f"({type(error).__name__}: {error}); load the model whole and unquantised"
        ) from error
    if not _close(expected, given):
        raise CaptureError(
            f"{where} has a {type(projection).__name__} that is no linear map, so that it has no "
            "weights by head; score its heads by gradient_scores"
        )
    return matrix


def check_stored(projection: nn.Module, weight: Tensor, where: str) -> None:
    """Raise a CaptureError unless a projection is its stored weight and a bias, and no more.

    Only then does a change of the weight last: adapters and parametrisations compute another.
    """
    others = sorted({name for name, _ in projection.named_parameters()} - {"weight", "bias"})
    name = type(projection).__name__
    if others or not isinstance(projection._parameters.get("weight"), nn.Parameter):
        computed = f" from {', '.join(others)}" if others else ""
        raise CaptureError(
            f"{where} has a {name} that computes its weights{computed}; merge the adapter "
            "(merge_and_unload) or remove the parametrisation or pruning mask first"
        )
    if weight.is_meta:
        raise CaptureError(
            f"{where} has offloaded weights (device meta), which cannot be changed; load the model "
            "whole, without offloading"
        )
    quantised = None if weight.is_floating_point() else weight.dtype
    if type(weight) not in (Tensor, nn.Parameter):
        quantised = type(weight).__name__  # torchao's
    if quantised is not None:
        raise CaptureError(
            f"{where} has quantised weights ({quantised}), which cannot be changed by head; "
            "load the model unquantised"
        )
    if not _multiplies(projection, weight):
        raise CaptureError(
            f"{where} has a {name} that multiplies by other numbers than its weight; replace it by "
            "an nn.Linear of the numbers that it multiplies by"
        )


def _multiplies(projection: nn.Module, weight: Tensor) -> bool:
    """Whether a projection multiplies by its weight, tried on two random vectors."""
    if weight.is_meta or not weight.is_floating_point():
        return False
    try:
        probe = _vectors(projection, weight.shape[1], 2).to(weight)
        return _close(probe @ weight.detach().mT, _increments(projection, probe))
    except Exception:  # whatever a module raises, or returns
        return False


def _increments(projection: nn.Module, vectors: Tensor) -> Tensor:
    """Return the outputs for vectors (k, inputs) less those for 0, (k, outputs)."""
    # less the bias, whatever adds it; as tokens of one sequence, for modules that want three axes
    with set_evaluation(projection):
        outputs = projection(torch.cat([torch.zeros_like(vectors[:1]), vectors])[None])
    return outputs[0, 1:] - outputs[0, :1]


def _vectors(projection: nn.Module, inputs: int, count: int) -> Tensor:
    """Return random vectors (count, inputs) of the device and precision of a projection."""
    parameters = [weight for weight in projection.parameters() if weight.is_floating_point()]
    vectors = torch.randn(count, inputs, generator=torch.Generator().manual_seed(0))
    if not parameters:
        return vectors
    device = parameters[0].device
    return vectors.to("cpu" if device.type == "meta" else device, parameters[0].dtype)


def _inputs(projection: nn.Module, weight: Tensor) -> int:
    """Return the number of inputs of a projection, whose stored weight may be packed."""
    inputs = getattr(projection, "in_features", None)
    return inputs if isinstance(inputs, int) else weight.shape[1]


def _close(values: Tensor, others: Tensor) -> bool:
    if values.shape != others.shape:
        return False
    half = values.dtype in (torch.float16, torch.bfloat16)
    largest = float(values.abs().max())
    return float((values - others).abs().max()) <= (_HALF if half else _TOLERANCE) * largest
