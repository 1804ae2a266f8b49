"""Average outputs of heads over the tokens of their own sequence, without padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import (
    attention_modules,
    beside_cross_attention,
    self_attention_beside,
)
from pathkernel_models.inputs.batches import call_model, check_device, split_batch, with_masks
from pathkernel_models.inputs.labels import check_no_mask
from pathkernel_models.inputs.masks import (
    HiddenKeys,
    aligned_padding,
    check_masks,
    given_mask,
    tells_mask,
)
from pathkernel_models.state import open_to_observation
from pathkernel_models.switching import ObservedHeads, observe_heads


def mean_outputs(
    model: nn.Module,
    layers: Sequence[AttentionModule],
    batches: Iterable[Any],
    masks: Iterable[Any] | None = None,
) -> dict[int, Tensor]:
    """Return the mean outputs (H, G) of the heads of some layers over tokens, by layer.

    A layer's tokens are those of its own sequence, without keys that its attention hides from
    every query; those of cross-attention, its queries, have the padding of the self-attention
    before it.

    Parameters
    ----------
    model : Module
    layers : sequence of AttentionModule
    batches : iterable
        As for :func:`pathkernel.capture`.
    masks : iterable of tensor, shape (batch, M), optional
        One for each batch, 1 for tokens and 0 for padding.

    Raises
    ------
    CaptureError
        If attention does not tell which tokens are padding, and no masks are given; it attends to
        tokens that a mask of the batch marks as padding; or there is nothing but padding.
    ValueError
        If a layer runs on no batch, or labels are a mask of tokens.
    """
    sums = _Sums(model, layers)
    # scaled_dot_product_attention stays, since eager attention may read a mask in another way
    with open_to_observation(model):
        for batch, mask in with_masks(batches, masks):
            inputs, labels = split_batch(batch)
            check_no_mask(labels, inputs)
            check_device(model, inputs)
            sums.add_batch(inputs, mask)
    return sums.means()


def _note_tokens(number: int, tokens: dict[int, Tensor], seen: ObservedHeads) -> None:
    """Note which tokens self-attention shows, (batch, M), if it tells."""
    padding = None if seen.crossed else seen.padding
    if padding is not None and padding.shape == seen.heads.shape[:2]:
        tokens[number] = ~padding


class _Sums:
    """Sums of the outputs of heads over tokens, and numbers of tokens, by layer."""

    def __init__(self, model: nn.Module, layers: Sequence[AttentionModule]):
        self._model, self._layers = model, {layer.number: layer for layer in layers}
        all_layers = attention_modules(model)
        # self-attention of the queries of cross-attention, by the number of the latter
        self._query_layers = {
            layer.number: beside
            for layer in layers
            if layer.crossed and (beside := self_attention_beside(all_layers, layer)) is not None
        }
        self._beside = {layer.number for layer in layers if beside_cross_attention(model, layer)}
        self._sums: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}

    def add_batch(self, inputs: Any, mask: Any) -> None:
        """Run the model on a batch, and add the outputs of its heads."""
        shown: dict[int, Tensor] = {}  # (batch, M), False at padding
        unclear: dict[int, ObservedHeads] = {}
        query_tokens: dict[int, Tensor] = {}  # as shown, of cross-attention
        with ExitStack() as stack:
            keys = stack.enter_context(HiddenKeys())
            for number, layer in self._layers.items():
                report = partial(self._report, number, mask, shown, unclear)
                stack.enter_context(observe_heads(layer, report))
            for number, layer in self._query_layers.items():
                stack.enter_context(
                    observe_heads(layer, partial(_note_tokens, number, query_tokens))
                )
            call_model(self._model, inputs)
        # only after the pass is it known that no attention of the model hides anything
        is_plain = not keys.hidden and not tells_mask(self._model, inputs)
        for number, seen in unclear.items():
            shown[number] = self._tokens(number, seen, query_tokens, inputs, is_plain=is_plain)
            self._add(number, seen.heads, shown[number])
        for number, tokens in shown.items():
            where, crossed = self._layers[number].where, number in self._beside
            check_masks(inputs, keys.hidden, tokens, where, crossed=crossed)

    def _report(
        self,
        number: int,
        mask: Any,
        shown: dict[int, Tensor],
        unclear: dict[int, ObservedHeads],
        seen: ObservedHeads,
    ) -> None:
        if self._layers[number].crossed:
            seen = seen._replace(crossed=True)
        shape = seen.heads.shape[:2]
        tokens = seen.heads.new_ones(shape, dtype=torch.bool)
        padding = None if seen.crossed else seen.padding
        is_own = padding is not None and padding.shape == shape
        if padding is not None and is_own:
            tokens = ~padding
        if mask is not None:
            self._add(number, seen.heads, given_mask(mask, tokens, self._layers[number].where))
        elif is_own:
            shown[number] = tokens
            self._add(number, seen.heads, tokens)
        else:
            unclear[number] = seen

    def _tokens(
        self,
        number: int,
        seen: ObservedHeads,
        query_tokens: dict[int, Tensor],
        inputs: Any,
        *,
        is_plain: bool,
    ) -> Tensor:
        """Return the tokens, (batch, M), of a layer whose keys are not those of its tokens."""
        batch, count = seen.heads.shape[:2]
        if number in query_tokens and query_tokens[number].shape == (batch, count):
            return query_tokens[number]
        reason = "its weights are not seen by head"
        if seen.padding is not None:
            if is_plain:
                return seen.heads.new_ones((batch, count), dtype=torch.bool)
            padding = None if seen.crossed else aligned_padding(seen.padding, inputs, count)
            if padding is not None:
                return ~padding
            reason = f"it attends to {seen.padding.shape[1]} keys"
        if seen.crossed:
            reason = "it attends to another sequence, and no self-attention of its block tells"
        raise CaptureError(
            f"{self._layers[number].where} does not tell which of its {count} tokens are padding: "
            f"{reason}. Give masks=, one for each batch, (batch, M), 1 for tokens and 0 for padding"
        )

    def _add(self, number: int, heads: Tensor, tokens: Tensor) -> None:
        # selected, since 0 times what padding may hold, such as NaN, is no zero
        total = heads[tokens].sum(dim=0, dtype=torch.float64)
        self._sums[number] = self._sums.get(number, 0) + total
        self._counts[number] = self._counts.get(number, 0) + int(tokens.sum())

    def means(self) -> dict[int, Tensor]:
        """Return means (H, G) by layer."""
        for number, layer in self._layers.items():
            if number not in self._sums:
                raise ValueError(
                    f"batches must hold at least one batch on which {layer.where} runs, for the "
                    "means of its heads"
                )
            if not self._counts[number]:
                raise CaptureError(
                    f"{layer.where} sees nothing but padding, so that its heads have no mean; give "
                    "batches with tokens"
                )
        return {number: total / self._counts[number] for number, total in self._sums.items()}
