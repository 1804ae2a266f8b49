"""Tell which tokens of a sequence are padding, by the keys that its attention hides.

Models convert masks of padding by themselves, to frames of a signal, to tokens behind a prompt, and
for each of two sequences. So padding is what no query of a sequence may attend to; masks among the
arguments of a batch serve as a check.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import named_arguments

SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)

LOW = -900.0
"""Masks add −1,000 or less to scores; a weight of exp(−900) is 0."""

_PAID = 1e-6  # weights at hidden keys are 0
_TARGETS = ("decoder_attention_mask", "tgt_key_padding_mask")
_MASKS = ("attention_mask", "src_key_padding_mask", "key_padding_mask", *_TARGETS)
_PADDING = re.compile(r"mask|(?<!wave)length")  # names of arguments
_REPLACED = re.compile(r"masked|mask_(time|feature|patch|pos|token|ind|label)|(^|_)head_mask")
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
_FUSED = ("query", "key", "value", "attn_mask")


@torch.no_grad()
def hidden_keys(function: Any, args: tuple, kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return which keys a function of PyTorch hides from every query, (…, key).

    Parameters
    ----------
    function : callable
        A softmax, ``scaled_dot_product_attention`` or ``multi_head_attention_forward``.
    args, kwargs : tuple and mapping
        Its arguments.

    Returns
    -------
    Tensor of bool or None
        None if it takes no mask, or is another function.
    """
    if function in SOFTMAX:
        scores = args[0] if args else kwargs["input"]
        if scores.ndim < 3:
            return None
        # relative to the largest score of the query: that is what decides on a weight of zero,
        # whatever constant a model adds
        largest = scores.amax(dim=-1, keepdim=True)
        idle = largest <= LOW  # queries that are padding themselves; NaN is none
        return ((scores - largest <= LOW) | idle).all(dim=-2)
    if function is F.scaled_dot_product_attention:
        mask = (dict(zip(_FUSED, args)) | dict(kwargs)).get("attn_mask")
        return None if mask is None else _low(mask, hidden=False).expand(*_square(mask)).all(-2)
    if function is not F.multi_head_attention_forward:
        return None
    arguments = _MULTI_HEAD.bind(*args, **kwargs).arguments
    padding, mask = arguments.get("key_padding_mask"), arguments.get("attn_mask")
    hidden = None if padding is None else _low(padding, hidden=True)
    if mask is None:
        return hidden
    masked = _low(mask, hidden=True).all(dim=-2)
    if hidden is None:
        return masked
    if masked.ndim == 2:  # of every sequence and head
        masked = masked.unflatten(0, (len(hidden), -1)).all(dim=1)
    return hidden | masked


def _low(mask: Tensor, *, hidden: bool) -> Tensor:
    """Return where a mask hides a key: a boolean one where it equals ``hidden``."""
    return mask == hidden if mask.dtype == torch.bool else mask <= LOW


def _square(mask: Tensor) -> tuple[int, ...]:
    return (1, *mask.shape) if mask.ndim == 1 else tuple(mask.shape)


def by_sequence(hidden: Tensor | None, batch: int) -> Tensor | None:
    """Return keys that all heads hide, (batch, key), or None if the batch is another."""
    if hidden is None:
        return None
    # one mask for all sequences, one for each, or one for each sequence and head, sequence by
    # sequence: what any head sees is no padding
    if hidden.ndim == 1 or len(hidden) == 1:
        hidden = hidden.expand(batch, *hidden.shape[hidden.ndim > 1 :])
    if not batch or len(hidden) % batch:
        return None
    return hidden.reshape(batch, -1, hidden.shape[-1]).all(dim=1)


class HiddenKeys(TorchFunctionMode):
    """Keys that attention of any kind hides while a model runs inside the context.

    Attributes
    ----------
    hidden : list of Tensor
        As :func:`hidden_keys` returns them, of every attention that hides some.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hidden: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        hidden = hidden_keys(function, args, kwargs)
        if hidden is not None and hidden.any():
            self.hidden.append(hidden)
        return function(*args, **kwargs)


def masks_of(inputs: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield names of a batch's masks of tokens and where they mark padding, (batch, M)."""
    for name in _MASKS if isinstance(inputs, Mapping) else ():
        mask = inputs.get(name)
        if not isinstance(mask, Tensor) or mask.ndim != 2:  # others are the model's own affair
            continue
        added = mask.is_floating_point() and bool((mask < 0).any())
        if mask.is_floating_point() and not mask.any():  # added to the scores, without padding
            continue
        ones = name.endswith("attention_mask")
        yield name, mask <= LOW if added else (mask == 0) if ones else (mask != 0)


def check_masks(
    inputs: Any, observed: list[Tensor], tokens: Tensor, where: str, *, crossed: bool
) -> None:
    """Raise a CaptureError if attention takes no notice of a mask of the batch, or another one.

    Parameters
    ----------
    inputs : tensor, mapping or tuple
        Arguments of the model.
    observed : list of Tensor
        Keys that attention of the model hides, of any layer.
    tokens : Tensor of bool, shape (batch, M)
        Tokens that the captured layers show.
    where : str
        The first of these layers, for messages.
    crossed : bool
        Whether they attend to another sequence, too, so that some masks may be of it.
    """
    for name, padding in masks_of(inputs):
        if not padding.any() or (crossed and name not in _TARGETS):
            continue
        same = (~tokens, *(by_sequence(hidden, len(padding)) for hidden in observed))
        if _hides_padding(~tokens, padding) or any(
            hidden is not None and torch.equal(hidden, padding) for hidden in same
        ):
            continue
        if tokens.all() or tokens.shape != padding.shape:
            raise CaptureError(
                f"{name} of the batch marks padding, but {where} attends to it: the model takes no "
                f"mask there. Leave {name} out, and all its tokens count; or give masks=, a mask "
                "of its tokens for each batch"
            )
        raise CaptureError(
            f"{name} of the batch and the attention of {where} disagree about padding: an "
            "attention_mask is 0 there, a key padding mask True. Give the model its arguments as a "
            "tuple, and its attention counts"
        )


def boolean_masks(model: nn.Module, inputs: Any, *, crossed: bool) -> dict[str, Tensor]:
    """Return boolean masks of pairs among a batch for transformers, (batch, 1 or H, query, key).

    They are True where a query may attend to a key. ``crossed`` as for :func:`check_masks`.
    """
    if not isinstance(inputs, Mapping) or not any(
        hasattr(module, "set_attn_implementation") for module in model.modules()
    ):
        return {}
    names = (name for name in _MASKS if crossed == (name in _TARGETS))
    masks = {name: inputs.get(name) for name in names}
    return {
        name: mask
        for name, mask in masks.items()
        if isinstance(mask, Tensor) and mask.ndim == 4 and mask.dtype == torch.bool
    }


def check_boolean_masks(masks: Mapping[str, Tensor], attention: Tensor, where: str) -> None:
    """Raise a CaptureError if attention (batch, H, query, key) is paid to keys that a mask hides.

    Eager attention of transformers adds a boolean mask to the scores, as 0 and 1.
    """
    for name, mask in masks.items():
        if mask.shape[2:] != attention.shape[2:]:
            continue
        hidden = ~mask & mask.any(dim=-1, keepdim=True)  # a query without a key attends anyhow
        if (paid := float((attention * hidden).amax())) > _PAID:
            raise CaptureError(
                f"{name} of the batch is boolean and False at keys to which {where} pays attention "
                f"of up to {paid:.2g}: eager attention adds it as 0 and 1. Give it as numbers, 0 "
                "and -inf, or take another attention, "
                'model.set_attn_implementation("sdpa")'
            )


def _hides_padding(hidden: Tensor, padding: Tensor) -> bool:
    """Whether attention hides some of the padding of a mask of other tokens, (batch, M')."""
    if hidden.shape == padding.shape or len(hidden) != len(padding):
        return False
    # one token may be of several entries of a mask, so that less padding need not hide any
    expected = padding.double().mean(dim=1) * hidden.shape[1] >= 2
    return bool((hidden.any(dim=1) | ~expected).all())


def aligned_padding(hidden: Tensor, inputs: Any, count: int) -> Tensor | None:
    """Return the padding of tokens, (batch, M), from keys that are more than they.

    Keys of a prefix or a cache come before those of the tokens, a sink after them; a mask of the
    batch tells which.

    Parameters
    ----------
    hidden : Tensor of bool, shape (batch, key)
        Keys that attention hides from every query.
    inputs : tensor, mapping or tuple
        Arguments of the model.
    count : int
        Number of tokens M.

    Returns
    -------
    Tensor of bool or None
        None if it cannot be told.
    """
    if hidden.shape[1] < count:
        return None
    first, last = hidden[:, :count], hidden[:, -count:]
    told = [padding for _, padding in masks_of(inputs)]
    if torch.equal(first, last) or any(torch.equal(hidden, padding) for padding in told):
        return last
    fitting = [keys for keys in (first, last) if any(torch.equal(keys, mask) for mask in told)]
    return fitting[0] if fitting else None


def tells_mask(model: nn.Module, inputs: Any) -> bool:
    """Whether an argument of a model may tell padding: a mask, lengths, or one without a name.

    What a model calls its first argument without a name is no mask; masks that say which tokens are
    replaced or predicted tell no padding.
    """
    arguments = enumerate(named_arguments(model, inputs))
    return any(
        isinstance(value, Tensor)
        and (_PADDING.search(name) if name else position > 0)
        and not _REPLACED.search(name)
        and bool(value.numel())
        # a mask that is the same everywhere hides nothing
        and bool((value != value.flatten()[0]).any())
        for position, (name, value) in arguments
    )


def given_mask(mask: Any, shown: Tensor, where: str) -> Tensor:
    """Return a mask that the user gives, (batch, M), False at padding.

    Raises
    ------
    CaptureError
        If it holds other than numbers, is of another shape than the tokens, ``shown``, or counts
        tokens that attention hides.
    """
    try:
        mask = torch.as_tensor(mask, device=shown.device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise CaptureError(
            f"masks gives a {type(mask).__name__} that is no array of numbers ({error}); give one "
            "with 1 for tokens and 0 for padding, (batch, M), for each batch"
        ) from error
    if mask.shape != shown.shape or not ((mask == 0) | (mask == 1)).all():
        raise CaptureError(
            f"masks gives one of shape {tuple(mask.shape)} and type {mask.dtype} for a batch whose "
            f"tokens are {tuple(shown.shape)}; give one with 1 for tokens and 0 for padding"
        )
    mask = mask.bool()
    if (mask & ~shown).any():
        raise CaptureError(
            f"masks counts {int((mask & ~shown).sum())} tokens of a batch that the attention of "
            f"{where} hides as padding; give 0 there, or leave masks out"
        )
    return mask
