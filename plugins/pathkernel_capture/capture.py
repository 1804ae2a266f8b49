"""Attentioned inputs of a live model, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_capture.batches import (
    called,
    check_device,
    joined,
    joined_labels,
    split,
    unpadded,
)
from pathkernel_capture.captured import Captured
from pathkernel_capture.contraction import (
    Moments,
    along_product,
    check_precision,
    checked,
    readout_weights,
    side_by_side,
)
from pathkernel_capture.errors import CaptureError
from pathkernel_capture.families import AttentionModule, attention_modules, block_name
from pathkernel_capture.state import open_to_capture
from pathkernel_capture.watching import first_argument
from pathkernel_core.attention import Readout

Picture = Literal["heads", "product"]
Attended = Literal["tokens", "states"]

_MOST_PATHS = 10_000


def capture(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    readout: Readout | slice = "last",
    picture: Picture = "heads",
    attend: Attended = "tokens",
    layers: Sequence[int] | None = None,
    skips: bool = False,
) -> Captured:
    """Attentioned inputs of a model along paths of its attention, for the theory.

    Every batch goes through the model once, in evaluation mode and without gradients; of its
    attention no more is held than a batch has. Afterwards the model is as it was.

    Parameters
    ----------
    model : torch.nn.Module
        With attention of torch.nn, transformers, timm or TransformerLens, or of your own described
        by :class:`pathkernel_capture.AttentionHeads`, in single or double precision.
    batches : iterable
        On the model's device. A batch is a tensor; a mapping of the model's arguments, of which
        ``labels`` are set apart; or a pair of either, or of a tuple of arguments, and labels.
    readout : {"first", "last", "mean"}, int or slice
        Tokens at which the network is read out: one, or the mean over several. Padding, of which
        ``attention_mask`` or a key padding mask tells, is not counted.
    picture : {"heads", "product"}
        ``"heads"``: all heads of all layers side by side, and the path through none, as one layer.
        ``"product"``: every path through one head of each layer.
    attend : {"tokens", "states"}
        What is averaged: the embedded tokens, as they enter the first block; or the hidden states
        that the heads see, in a product those of its first layer.
    layers : sequence of int, optional
        Of the model, numbered from 1; all by default. Of an encoder and a decoder, or of two
        towers, take the layers of one.
    skips : bool
        Of a product: also the paths past the heads of its layers, for a network with skip
        connections, ``Network(captured.heads, widths, skips=s)``.

    Raises
    ------
    CaptureError
        If the model's attention is of no known form, computes its weights by other functions than
        PyTorch's, is of half precision or of several sequences; or a batch lies on another device.
    ValueError
        If an option does not fit, or there are too many paths.
    """
    if picture not in get_args(Picture):
        raise ValueError(f'picture must be "heads" or "product", not {picture!r}')
    if attend not in get_args(Attended):
        raise ValueError(f'attend must be "tokens" or "states", not {attend!r}')
    if skips and picture != "product":
        raise ValueError('skips are of picture="product"; "heads" has its identity path anyhow')
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(batches, Tensor | Mapping | tuple | np.ndarray):
        raise TypeError(
            "batches must be several; put a single one into a list, [batch], and make one of a "
            "tuple of batches, list(inputs.split(50))"
        )
    model = getattr(model, "_orig_mod", model)  # a compiled model runs without hooks
    known = attention_modules(model)
    numbers = _chosen(layers, len(known))
    found = _Contraction(model, known, numbers, readout, picture, attend, skips)
    parts, labels = [], []
    for number, layer in found.layers.items():
        check_precision(found.where(number), layer.output.dtype)
    with open_to_capture(model), found.hooks():
        for batch in batches:
            inputs, own = split(batch)
            if isinstance(inputs, np.ndarray):
                raise TypeError("batches must hold tensors of PyTorch; take torch.as_tensor(batch)")
            check_device(model, inputs)
            parts.append(found.of_batch(inputs))
            labels.append(own)
    if not parts:
        raise ValueError("batches must hold at least one batch")
    means, deviations = found.moments()
    xi = joined(parts)
    labels = joined_labels(labels, xi)
    return Captured(xi, labels, found.members, means, deviations, found.notes(), skips)


class _Read(NamedTuple):
    """Readout of a batch."""

    tokens: Tensor  # (batch, M, N_0)
    own: Tensor  # which are no padding, (batch, M)
    weights: Tensor  # (batch, M), each row sums to 1


class _Contraction:
    """What capture makes of a batch while the model runs."""

    def __init__(
        self,
        model: nn.Module,
        known: Sequence[AttentionModule],
        numbers: Sequence[int],
        readout: Readout | slice,
        picture: Picture,
        attend: Attended,
        skips: bool,
    ):
        self.model, self.numbers, self.readout = model, numbers, readout
        self.picture, self.attend, self.skips = picture, attend, skips
        self.layers = {number: known[number - 1] for number in numbers}
        chosen = self.layers[
            numbers[0]
        ]  # of whose encoder, decoder or tower the first block is taken
        self.first = next(layer for layer in known if layer.pattern == chosen.pattern)
        self.members = self._members()
        averaged = self.numbers if (picture, attend) == ("heads", "states") else ()
        self._moments = {number: Moments() for number in (0, *averaged)}
        self._begin(None)

    def _members(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        heads = [
            tuple((number, head) for head in range(1, layer.heads + 1))
            for number, layer in self.layers.items()
        ]
        if self.picture == "heads":
            return (((0, 0), *(head for layer in heads for head in layer)),)
        paths = math.prod(len(layer) + self.skips for layer in heads)
        if paths > _MOST_PATHS:
            raise ValueError(
                f"{len(heads)} layers of {len(heads[0])} heads have {paths:.2g} paths, more than "
                f'{_MOST_PATHS}; choose some with layers=, or take picture="heads"'
            )
        return tuple(heads)

    def _begin(self, own: Tensor | None) -> None:
        self._masked, self._entered = own, None
        self._read: _Read | None = None
        self._found: dict[int, Tensor] = {}

    def hooks(self) -> ExitStack:
        """Hooks on the model, while the context lasts."""
        watched = ExitStack()
        block = self.model.get_submodule(block_name(self.first))
        entering = block.register_forward_pre_hook(self._enter, with_kwargs=True)
        watched.callback(entering.remove)
        for number, layer in self.layers.items():
            watched.enter_context(layer.watch(partial(self._report, number)))
        return watched

    def of_batch(self, inputs: Any) -> np.ndarray:
        """Attentioned inputs of a batch, (batch, n, N_0)."""
        self._begin(unpadded(inputs))
        called(self.model, inputs)
        missing = [number for number in self.numbers if number not in self._found]
        if missing or self._read is None:
            raise CaptureError(
                f"{self.where(missing[0])} did not run in the forward pass; choose the layers "
                "that do with layers="
            )
        found = [self._found[number] for number in self.numbers]
        tokens, _, weights = self._read
        if self.picture == "product":
            xi = along_product(found, weights, tokens, self.skips)
        else:
            xi = torch.cat([torch.matmul(weights[:, None, :], tokens), *found], dim=1)
        self._begin(None)
        return xi.cpu().numpy().astype(float)  # single precision would stop the minimisation early

    def _enter(self, block: nn.Module, given: tuple, named: dict) -> None:
        """Take the embedded tokens as they enter the first block."""
        if not (self.picture == "product" and self.attend == "states"):
            tokens = first_argument(given, named)
            self._entered = tokens.transpose(0, 1) if self.first.swapped else tokens

    def _report(
        self,
        number: int,
        attention: Tensor | None,
        states: Tensor | None,
        own: Tensor | None,
        mismatch: float,
    ) -> None:
        where = self.where(number)
        attention, states = checked(where, attention, states)
        if number in self._found:
            raise CaptureError(
                f"{where} runs more than once in a forward pass; layers that share their weights "
                "cannot be told apart"
            )
        if self._read is None:
            self._read = self._read_out(states, own, attention.dtype)
        tokens, own, weights = self._read
        if attention.shape[0] != own.shape[0] or attention.shape[-1] != own.shape[1]:
            raise CaptureError(
                f"{where} attends to {attention.shape[-1]} tokens, but the first block has "
                f"{own.shape[1]}; choose the layers of one sequence with layers="
            )
        if not own.all():  # softmax over nothing but padding gives NaN
            attention = attention.masked_fill(~own[:, None, :, None], 0.0)
        excess = float((attention.sum(dim=-1) - own[:, None, :].to(attention)).abs().max())
        if excess > 1e-3:
            raise CaptureError(
                f"{where} pays attention whose sum over tokens is off 1 by {excess:.2g}, as with "
                "an attention sink, which the theory lacks; choose other layers with layers="
            )
        if mismatch > 1e-3:
            raise CaptureError(
                f"{where} passes on other than its attention times its values, by {mismatch:.2g} "
                "of the largest: it changes the weights behind their softmax, or its heads lie "
                "otherwise than its AttentionHeads say"
            )
        if self.picture == "product":
            self._found[number] = attention
            return
        attended = tokens if self.attend == "tokens" else states
        if number in self._moments:
            self._moments[number].add(attended, own)
        self._found[number] = side_by_side(attention, weights, attended)

    def _read_out(self, states: Tensor, own: Tensor | None, dtype: torch.dtype) -> _Read:
        """The readout, once it is known which tokens are padding."""
        tokens = states if self._entered is None else self._entered
        if self._masked is not None:
            if own is not None and own.shape == self._masked.shape and (own != self._masked).any():
                raise CaptureError(
                    "the batch's mask and the one that its attention is given disagree about "
                    "padding: an attention_mask is 0 there, a key padding mask True. Give the "
                    "model its arguments as a tuple, and its own mask counts"
                )
            own = self._masked
        if own is None:
            own = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        if own.shape != tokens.shape[:2]:
            raise CaptureError(
                f"the mask of padding has shape {tuple(own.shape)}, but the tokens "
                f"{tuple(tokens.shape)}; give a mask of the tokens that the model sees"
            )
        self._moments[0].add(tokens, own)
        return _Read(tokens, own, readout_weights(self.readout, own, dtype))

    def where(self, number: int) -> str:
        """A layer of the model in words."""
        name = self.layers[number].name
        return f"layer {number}" + (f" ({name})" if name else "")

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the tokens that every path attends to."""
        if self.picture == "product" or self.attend == "tokens":
            own = [self._moments[0]]
        else:
            own = [self._moments[number] for number, _ in self.members[0]]
        return np.array([one.mean for one in own]), np.array([one.deviation for one in own])

    def notes(self) -> dict[str, str]:
        """What the theory does not see of the model."""
        on = "embedded tokens" if self.attend == "tokens" else "hidden states"
        seen = f"attention of {type(self.model).__name__} to its {on}"
        left_out = "trained values, nonlinear blocks and normalisation"
        if self.picture == "heads":
            left_out = f"paths through several heads, {left_out}"
        else:
            seen += f", in layers {', '.join(map(str, self.numbers))}"
            left_out += "" if self.skips else ", and skip connections,"
        return {"approximation": f"{seen}; {left_out} are left out"}


def _chosen(layers: Sequence[int] | None, count: int) -> list[int]:
    """Numbers of the layers that are asked for, in order."""
    if layers is None:
        return list(range(1, count + 1))
    if isinstance(layers, int):
        raise TypeError(f"layers must be a list of numbers, such as [{layers}], not {layers}")
    numbers = sorted(set(layers))
    if not numbers or len(numbers) < len(layers) or not 1 <= numbers[0] <= numbers[-1] <= count:
        raise ValueError(
            f"layers must name some of the model's layers 1 to {count}, each once, not {layers!r}"
        )
    return numbers
