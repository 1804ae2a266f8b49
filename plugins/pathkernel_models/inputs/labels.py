"""Labels of sequences, told from labels of tokens and from masks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import tensors_of

_LABELS = re.compile("(labels?|label_ids|targets?|y)", re.IGNORECASE)
_MASKS = re.compile("((attention|attn|(key_)?padding)_?)?masks?", re.IGNORECASE)
_IGNORED = -100  # of PyTorch's cross-entropy, in labels of tokens


def check_argument_names(model: nn.Module, inputs: Any) -> None:
    """Raise a CaptureError if a model would swallow labels or a mask under a name it lacks."""
    if not isinstance(inputs, Mapping):
        return
    parameters = inspect.signature(model.forward).parameters
    if all(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # a wrapper, which may take any
    masks = [name for name in parameters if name.endswith("mask")]
    for name in inputs:
        if name in parameters:
            continue
        if _LABELS.fullmatch(name):
            raise CaptureError(
                f"a batch has {name}, which is no argument of {type(model).__name__}; rename it "
                "labels, if it holds a label for each sequence, or leave it out"
            )
        if masks and _MASKS.fullmatch(name):
            raise CaptureError(
                f"a batch has {name}, which is no argument of {type(model).__name__}; its masks "
                f"are {', '.join(masks)}"
            )


def label_array(labels: Any, inputs: Any) -> np.ndarray | None:
    """Return the labels of a batch, (batch,) or (batch, C), or None if there are none.

    Raises a ValueError if they are of another shape, of tokens, a mask, or not finite.
    """
    if labels is None:
        return None
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu()
        labels = labels.numpy() if labels.dtype.itemsize > 2 else labels.tolist()
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise ValueError(
            f"labels of a batch are a {type(labels).__name__} of unequal rows; give numbers or "
            "names of classes, (batch,), or targets, (batch, C)"
        ) from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "biufUS":
        raise ValueError(
            f"labels of a batch have shape {array.shape} and type {array.dtype}; give numbers or "
            "names of classes, (batch,), or targets, (batch, C)"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(
            f"labels of a batch hold {np.count_nonzero(~np.isfinite(array))} of {array.size} "
            "values that are NaN or infinite; leave these examples out"
        )
    ignored = array.dtype.kind in "iu" and bool((array == _IGNORED).any())
    if ignored or (array.ndim == 2 and _of_tokens(array, inputs)):
        marks = f", {_IGNORED} at tokens without one" if ignored else ""
        raise ValueError(
            f"labels of a batch have shape {array.shape}: labels of tokens{marks}, or a mask. Give "
            "a label for each sequence, (batch,), or targets of type float, (batch, C); and a mask "
            "by its name among the arguments of the model, a mapping"
        )
    return array


def check_no_mask(labels: Any, inputs: Any) -> None:
    """Raise a ValueError if labels that are not used are a mask of tokens."""
    if isinstance(labels, Tensor | np.ndarray) and labels.ndim == 2:
        array = labels.detach().cpu().double().numpy() if isinstance(labels, Tensor) else labels
        if _as_tokens(array, inputs) and _is_mask(array):
            raise ValueError(
                f"labels of a batch, of shape {array.shape}, are a mask of its tokens, since a "
                "tuple is a pair of inputs and labels. Give a mask by its name among the arguments "
                "of the model, a mapping, or ((inputs, mask), labels)"
            )


def _of_tokens(labels: np.ndarray, inputs: Any) -> bool:
    """Whether labels (batch, C) are likely to be of C tokens."""
    if not _as_tokens(labels, inputs) or _are_classes(labels):
        return False
    return labels.dtype.kind in "biu" or _is_mask(labels)


def _as_tokens(labels: np.ndarray, inputs: Any) -> bool:
    """Whether inputs have the shape of labels (batch, C), tokens on either axis."""
    shapes = [tuple(tensor.shape[:2]) for tensor in tensors_of(inputs) if tensor.ndim > 1]
    return labels.shape in shapes or labels.shape[::-1] in shapes


def _are_classes(labels: np.ndarray) -> bool:
    """Whether one column of every row is marked."""
    return bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def _is_mask(labels: np.ndarray) -> bool:
    """Whether labels mark one end of every row."""
    if not np.isin(labels, (0, 1)).all() or _are_classes(labels):
        return False
    steps = np.diff(labels.astype(float), axis=1)
    return bool(((steps <= 0).all(axis=1) | (steps >= 0).all(axis=1)).all())


def joined_labels(labels: list[np.ndarray | None], examples: int) -> np.ndarray | None:
    """Concatenate the labels of all batches, if any; raise a ValueError if they do not fit."""
    arrays = [of_batch for of_batch in labels if of_batch is not None]
    if not arrays:
        return None
    columns = sorted({array.shape[1:] for array in arrays})
    if len(columns) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays[:4])
        raise ValueError(f"labels of batches have shapes {shapes}; give all as many columns")
    if len({array.dtype.kind in "US" for array in arrays}) > 1:
        raise ValueError("labels of some batches are names, and of others numbers; give one kind")
    all_labels = np.concatenate(arrays)
    if len(all_labels) != examples:
        raise ValueError(f"batches have {len(all_labels)} labels for {examples} examples")
    return all_labels
