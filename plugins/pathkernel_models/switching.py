"""Change the outputs of heads at the input of their output projection: off, at a mean, scaled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_models.attention_module import AttentionModule, Change, standing_in
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.errors import CaptureError
from pathkernel_models.recording import Recording
from pathkernel_models.state import suspend_compilation, without_fused_layers
from pathkernel_models.watching import attends_across, replaced_forward


@contextmanager
def switch_off_heads(
    layers: Sequence[AttentionModule],
    off: dict[int, list[int]],
    compared: ComparedLayers,
    means: dict[int, Tensor] | None = None,
) -> Iterator[None]:
    """Switch heads off inside the context, as :func:`pathkernel_models.heads_off.heads_off` does.

    Parameters
    ----------
    layers : sequence of AttentionModule
        All layers of the model.
    off : dict of int to list of int
        Heads by the number of their layer, both from 1.
    compared : ComparedLayers
        Layers that have been compared, and are not compared again.
    means : dict of int to Tensor, (H, G), optional
        Outputs of all heads of a layer in place of zeros, by its number.
    """
    # At the input of the output projection, not in its weight, which adapters, parametrisations and
    # quantisation compute anew; not in the attention, where a fused kernel shows no heads
    with ExitStack() as stack:
        stack.enter_context(suspend_compilation())
        # of one function for all layers: a fused layer treats some masks and adapters otherwise
        stack.enter_context(without_fused_layers())
        for number, heads in off.items():
            attention = layers[number - 1]
            attention.check_read()
            stack.enter_context(compared.compare(attention))
            layer = _Layer(attention, heads, (means or {}).get(number))
            stack.enter_context(layer.off())
        yield


class ScaledLayer(NamedTuple):
    """A layer that ran in :func:`scale_heads`: number, gains (batch, H), precision of heads."""

    number: int
    gains: Tensor
    dtype: torch.dtype


@contextmanager
def scale_heads(
    layers: Sequence[AttentionModule],
    gains: Sequence[np.ndarray],
    compared: ComparedLayers,
    *,
    with_gradients: bool = False,
) -> Iterator[list[ScaledLayer]]:
    """Multiply the outputs of heads by gains inside the context.

    Parameters
    ----------
    layers, compared
        As for :func:`switch_off_heads`.
    gains : sequence of array, shape (H,)
        Gains of every layer.
    with_gradients : bool
        Whether gains are leaves that gradients are taken by, one for every example.

    Yields
    ------
    list of ScaledLayer
        Layers that have run so far, for :func:`factors_by_layer`.
    """
    running: list[ScaledLayer] = []
    with ExitStack() as stack:
        stack.enter_context(suspend_compilation())
        stack.enter_context(without_fused_layers())
        for attention, of_layer in zip(layers, gains):
            if not with_gradients and (of_layer == 1).all():
                continue
            attention.check_read()
            stack.enter_context(compared.compare(attention))

            def multiply(
                outputs: Tensor,
                attention: AttentionModule = attention,
                of_layer: np.ndarray = of_layer,
            ) -> Tensor:
                heads = by_head(outputs, attention)
                # products in float32, and gradients, where the model has half precision
                wide = torch.promote_types(heads.dtype, torch.float32)
                factor = torch.as_tensor(of_layer, dtype=wide, device=heads.device)
                axis = 1 if attention.swapped else 0
                factor = factor.repeat(heads.shape[axis], 1)
                # layers that run again in a backward pass compute without
                factor.requires_grad_(with_gradients and torch.is_grad_enabled())
                running.append(ScaledLayer(attention.number, factor, heads.dtype))
                shape = [1] * heads.ndim
                shape[axis], shape[-2] = factor.shape
                column = factor.reshape(shape)
                finite = heads.to(wide)
                if not of_layer.all():
                    # 0 times infinity is NaN; what is finite stays, for the derivative by its gain
                    finite = finite.masked_fill((column == 0) & ~heads.isfinite(), 0.0)
                scaled = finite * column
                return scaled.to(outputs.dtype).reshape(outputs.shape)

            stack.enter_context(_change_outputs(attention, multiply))
        yield running


class ObservedHeads(NamedTuple):
    """Outputs of the heads of a layer in a forward pass.

    ``heads`` are (batch, M, H, G). ``padding`` is where no query attends to a key, (batch, key), or
    None if the attention was not seen. ``crossed`` tells whether keys are of another sequence.
    """

    heads: Tensor
    padding: Tensor | None
    crossed: bool


@contextmanager
def observe_heads(
    attention: AttentionModule, report: Callable[[ObservedHeads], None]
) -> Iterator[None]:
    """Report the outputs of the heads of a layer in every forward pass inside the context."""
    forward, recording, crossed = attention.module.forward, Recording(rows=1), False

    @functools.wraps(forward)
    def recorded_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal recording, crossed
        recording, crossed = Recording(rows=1), attends_across(kwargs)
        with recording:
            return forward(*args, **kwargs)

    def report_outputs(outputs: Tensor) -> Tensor:
        heads = by_head(outputs, attention)
        if heads.ndim < 4:  # of a single sequence without an axis
            heads = heads[None]
        elif attention.swapped:
            heads = heads.transpose(0, 1)
        heads = heads.flatten(1, -3)  # tokens on several axes, as of an image
        padding = recording.padding(len(heads), attention.heads)
        report(ObservedHeads(heads, padding, crossed))
        return outputs

    with ExitStack() as stack:
        stack.enter_context(suspend_compilation())
        stack.enter_context(without_fused_layers())
        stack.enter_context(replaced_forward(attention.module, recorded_forward))
        stack.enter_context(attention.change_outputs(report_outputs))
        yield


def factors_by_layer(
    running: Sequence[ScaledLayer], layers: Sequence[AttentionModule]
) -> list[Tensor]:
    """Gains (batch, H) of all layers in their order, of a forward pass in :func:`scale_heads`.

    Raises a CaptureError if a layer did not run once.
    """
    numbers = [layer.number for layer in running]
    for attention in layers:
        if (times := numbers.count(attention.number)) != 1:
            remedy = "give batches on which they do, and the model that outputs runs; or that part "
            remedy += "of a larger model which runs, such as its language model"
            raise CaptureError(
                f"{attention.where} ran {times} times in the forward pass; each of the "
                f"{len(layers)} layers must run once" + f": {remedy}" * (times == 0)
            )
    # towers may run in another order than they are registered in
    gains = {layer.number: layer.gains for layer in running}
    return [gains[attention.number] for attention in layers]


def by_head(outputs: Tensor, attention: AttentionModule) -> Tensor:
    """Outputs of the heads of a layer, (…, H, G), from those side by side, (…, H·G)."""
    return outputs.unflatten(-1, (attention.heads, -1))


@contextmanager
def _change_outputs(attention: AttentionModule, change: Change) -> Iterator[None]:
    """Change the outputs of the heads of a layer inside the context.

    Raises a CaptureError at the end if attention ran without its output projection.
    """
    attention_ran = projection_ran = False

    def note_attention(*_: Any) -> None:
        nonlocal attention_ran
        attention_ran = True

    def change_noted(outputs: Tensor) -> Tensor:
        nonlocal projection_ran
        projection_ran = True
        return change(outputs)

    handle = attention.module.register_forward_hook(note_attention)
    try:
        with attention.change_outputs(change_noted):
            yield
    finally:
        handle.remove()
    if attention_ran and not projection_ran:
        raise CaptureError(
            f"{attention.where} ran, but not its {type(attention.projection).__name__}, taken for "
            "the output projection, so that its heads passed on what they do by themselves; "
            "describe the projection that runs by a method pathkernel_heads, which returns "
            "pathkernel.AttentionHeads"
        )


class _Layer:
    """A layer without some of its heads."""

    def __init__(self, attention: AttentionModule, heads: Sequence[int], mean: Tensor | None):
        self._attention, self._mean = attention, mean
        self._removed = torch.zeros(attention.heads, dtype=torch.bool)
        self._removed[[head - 1 for head in heads]] = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Pass zeros, or means, on for the heads inside the context."""
        attention = self._attention
        with ExitStack() as stack:
            if attention.runs_projection or self._mean is not None:
                stack.enter_context(_change_outputs(attention, self._mask_outputs))
            else:
                # a projection that never runs has no input to hook: PyTorch's function reads its
                # weight, so that a stand-in shows one with the heads' columns at zero
                children = attention.module.named_children()
                (name,) = (name for name, child in children if child is attention.projection)
                shown = getattr(attention.module, name)  # of a context around this one
                substitute = _Masked(shown, self._masked_weight)
                stack.enter_context(standing_in(attention.module, name, substitute))
            yield

    def _mask_outputs(self, outputs: Tensor) -> Tensor:
        """Outputs of the heads, (…, H·G), without those that are off."""
        mask = self._removed.to(outputs.device)
        if self._mean is not None:
            heads = by_head(outputs, self._attention)
            mean = self._mean.to(heads)
            return torch.where(mask[:, None], mean, heads).reshape(outputs.shape)
        # filled rather than multiplied: 0 times the infinity or NaN of a head that is off is NaN
        return outputs.masked_fill(mask.repeat_interleave(outputs.shape[-1] // len(mask)), 0.0)

    def _masked_weight(self, weight: Tensor) -> Tensor:
        """Output weight, (output, H·G), without the columns of heads that are off."""
        mask = self._removed.to(weight.device)
        return weight.masked_fill(mask.repeat_interleave(weight.shape[1] // len(mask)), 0.0)


class _Masked:
    """A projection whose weight, which others read, is masked."""

    def __init__(self, projection: Any, masked: Callable[[Tensor], Tensor]):
        self._projection, self._masked_weight = projection, masked

    def __call__(self, outputs: Tensor) -> Tensor:
        return nn.functional.linear(outputs, self.weight, self._projection.bias)

    @property
    def weight(self) -> Tensor:
        """Weight without the heads that are off, computed at every reading for its gradients."""
        return self._masked_weight(self._projection.weight)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also of a copy, which has no attributes yet
            raise AttributeError(name)
        return getattr(self._projection, name)
