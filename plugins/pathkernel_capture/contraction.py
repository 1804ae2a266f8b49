"""Average the tokens of a batch by the attention along every path (Eq. 7)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pathkernel_core.arrays.products import matmul
from pathkernel_core.paths.contraction import Readout
from pathkernel_models.errors import CaptureError
from pathkernel_models.precision import widen


def readout_weights(readout: Readout | slice, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight of every token in the readout, (batch, M), equal for those read out.

    Parameters
    ----------
    readout : {"first", "last", "mean"}, int or slice
        Padding is not counted.
    mask : Tensor of bool, shape (batch, M)
        False at padding.
    dtype : torch.dtype

    Raises
    ------
    ValueError
        If the readout is none of these, or a sequence has no such token.
    """
    named = {"first": slice(0, 1), "last": slice(-1, None), "mean": slice(None)}
    chosen = named.get(readout, readout) if isinstance(readout, str) else readout
    if isinstance(chosen, int) and not isinstance(chosen, bool):
        chosen = slice(chosen, chosen + 1 or None)
    if (
        not isinstance(chosen, slice)
        or chosen.step not in (None, 1)
        or not all(bound is None or isinstance(bound, int) for bound in (chosen.start, chosen.stop))
    ):
        raise ValueError(
            'readout must be "first", "last", "mean", a token\'s index or a slice of tokens, not '
            f"{readout!r}"
        )
    # tokens are counted without padding, which may lie on either side: "last" is then the last
    # token of each sequence, not the last column of the batch
    position, count = mask.cumsum(dim=1) - 1, mask.sum(dim=1, keepdim=True)

    def from_front(bound: int | None, default: Tensor) -> Tensor:
        return default if bound is None else bound + (count if bound < 0 else 0 * count)

    start, stop = from_front(chosen.start, 0 * count), from_front(chosen.stop, count)
    read = mask & (position >= start) & (position < stop)
    number = read.sum(dim=1, keepdim=True)
    if not number.all():
        first = int((number == 0).nonzero()[0, 0])
        raise ValueError(
            f"readout {readout!r} names no token of sequence {first} of a batch, which has "
            f"{int(count[first])}"
        )
    return read.to(dtype) / number


def side_by_side(attention: Tensor, readout: Tensor, attended: Tensor) -> Tensor:
    """Return Σ_s w_s x_s of each head, w its attention read out; (batch, H, N_0)."""
    # averaged over queries first: (batch, H, M) weights, where attention times tokens would be
    # M vectors of N_0 numbers for each head
    weights = matmul(readout[:, None, None, :], attention)[:, :, 0, :]
    return matmul(weights, attended)


def along_product(
    attention: list[Tensor], readout: Tensor, attended: Tensor, skips: bool
) -> Tensor:
    """Return attentioned inputs along every path through all layers, (batch, n, N_0).

    Contracted from the last layer, so that no product of two attention matrices is formed. With
    ``skips`` head 0 of every layer is the identity.
    """
    weights = readout[:, None, :]
    for omega in reversed(attention):
        passed = matmul(weights[:, None, :, :], omega)  # (batch, H, paths, key)
        if skips:
            passed = torch.cat([weights[:, None, :, :], passed], dim=1)
        weights = passed.flatten(1, 2)
    return matmul(weights, attended)


class Moments:
    """Mean of tokens, and standard deviation of all their entries, summed batch by batch."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, np.zeros(()), 0.0

    def add(self, tokens: Tensor, mask: Tensor) -> None:
        """Add tokens (batch, M, N_0) but for padding."""
        rows = tokens[mask].double()  # its squares may be much larger than their spread
        self._count += rows.shape[0]
        self._sum = self._sum + rows.sum(dim=0).cpu().numpy().astype(float)
        self._squares += float((rows**2).sum())

    @property
    def mean(self) -> np.ndarray:
        """Mean token, (N_0,)."""
        return self._sum / self._count

    @property
    def deviation(self) -> float:
        """Standard deviation of all entries of all tokens."""
        variance = self._squares / (self._count * self._sum.size) - self.mean.mean() ** 2
        return float(np.sqrt(max(variance, 0.0)))


def with_gate(where: str, attention: Tensor, gate: Tensor | None) -> Tensor:
    """Return attention times the factor by which a gate multiplies the outputs of every head.

    Parameters
    ----------
    where : str
        The layer, for messages.
    attention : Tensor, shape (batch, H, M, M)
    gate : Tensor, shape (batch, M, H, 1) or (batch, M, H, G), or None

    Raises
    ------
    CaptureError
        If the gate has a factor for every number that a head passes on.
    """
    if gate is None:
        return attention
    if gate.shape[-1] > 1:
        raise CaptureError(
            f"{where} multiplies each of the {gate.shape[-1]} numbers that a head passes on by a "
            "gate of its own, which is no attention between tokens and has no picture. Its heads "
            "can be switched off, scored and removed; or choose other layers with layers="
        )
    return attention * gate[..., 0].transpose(1, 2)[..., None].to(attention)


def check_attention(
    where: str, attention: Tensor | None, states: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return attention and states, in float32 at least, if they are of self-attention.

    Raises
    ------
    CaptureError
        If attention was not observed, or is of other tokens.
    """
    if attention is None:
        raise CaptureError(
            f"{where} gives no attention weights that can be seen: it computes them by no softmax "
            "or scaled_dot_product_attention of PyTorch, or by several. Choose other layers with "
            "layers="
        )
    if states is None or attention.shape[-1] != attention.shape[-2]:
        keys, queries = attention.shape[-1], attention.shape[-2]
        beside = (
            f": {keys} keys for {queries} tokens. Past keys come from past_key_values or prefix "
            "tuning, which prompt tuning does without"
            if states is not None and keys > queries + 1
            else ""
        )
        raise CaptureError(
            f"{where} attends to another sequence than its own, or to keys beside it (bias_k, "
            f"add_zero_attn, an attention sink){beside}; choose the layers of one sequence with "
            "layers="
        )
    if attention.ndim != 4 or states.ndim != 3 or attention.shape[0] != states.shape[0]:
        raise CaptureError(
            f"{where} gives attention of shape {tuple(attention.shape)} for states of shape "
            f"{tuple(states.shape)}, not (batch, H, M, M) for (batch, M, N_0), as within windows "
            "of an image; choose other layers with layers=, if the model has any"
        )
    return attention, widen(states)
