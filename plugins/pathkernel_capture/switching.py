"""Switch heads of a layer off at the input of its output projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError
from pathkernel_capture.families import AttentionModule, standing_in
from pathkernel_capture.state import uncompiled


@contextmanager
def switched_off(
    layers: Sequence[AttentionModule], off: dict[int, list[int]], agreed: set[int]
) -> Iterator[None]:
    """Switch heads off inside the context, as :func:`pathkernel_capture.heads_off` does.

    Parameters
    ----------
    layers : sequence of AttentionModule
        All layers of the model.
    off : dict of int to list of int
        Heads by the number of their layer, both from 1.
    agreed : set of int
        Layers that have been compared, which are not compared again; those that are now are added.
    """
    # At the input of the output projection, not in its weight, which adapters, parametrisations and
    # quantisation compute anew; not in the attention, where a fused kernel shows no heads
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        off_layers = []
        for number, heads in off.items():
            attention = layers[number - 1]
            attention.check_read()
            if number not in agreed:
                stack.enter_context(attention.compare(partial(agreed.add, number)))
            off_layers.append(_Layer(attention, heads))
            stack.enter_context(off_layers[-1].off())
        yield
        for layer in off_layers:
            layer.check()


class _Layer:
    """A layer without some of its heads, and whether its attention and its projection ran."""

    def __init__(self, attention: AttentionModule, heads: Sequence[int]):
        self._attention = attention
        self._removed = torch.zeros(attention.heads, dtype=torch.bool)
        self._removed[[head - 1 for head in heads]] = True
        self._attention_ran = self._projection_ran = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Pass zeros on for the heads inside the context."""
        attention = self._attention

        def ran(*_: Any) -> None:
            self._attention_ran = True

        with ExitStack() as stack:
            if attention.runs_projection:
                stack.callback(attention.module.register_forward_hook(ran).remove)
                stack.enter_context(attention.joined(self._masked))
            else:
                # a projection that never runs has no input to hook: PyTorch's function reads its
                # weight, so that a stand-in shows one with the heads' columns at zero
                children = attention.module.named_children()
                (name,) = (name for name, child in children if child is attention.projection)
                shown = getattr(attention.module, name)  # of a context around this one
                substitute = _Masked(shown, self._masked_weight)
                stack.enter_context(standing_in(attention.module, name, substitute))
            yield

    def check(self) -> None:
        """Raise a CaptureError if attention ran without its output projection."""
        if self._attention_ran and not self._projection_ran:
            name = type(self._attention.projection).__name__
            raise CaptureError(
                f"{self._attention.where} ran, but not its {name}, taken for the output "
                "projection, so that its heads were not off; describe the projection that runs by "
                "a method pathkernel_heads, which returns pathkernel.AttentionHeads"
            )

    def _masked(self, joined: Tensor) -> Tensor:
        """Outputs of the heads, (…, H·G) or (…, H, G), without those that are off."""
        self._projection_ran = True
        mask = self._removed.to(joined.device)
        # filled rather than multiplied: 0 times the infinity or NaN of a head that is off is NaN
        if self._attention.output.ndim == 3:  # (…, H, G), of TransformerLens
            return joined.masked_fill(mask[:, None], 0.0)
        return joined.masked_fill(mask.repeat_interleave(joined.shape[-1] // len(mask)), 0.0)

    def _masked_weight(self, weight: Tensor) -> Tensor:
        """Output weight, (output, H·G), without the columns of heads that are off."""
        mask = self._removed.to(weight.device)
        return weight.masked_fill(mask.repeat_interleave(weight.shape[1] // len(mask)), 0.0)


class _Masked:
    """A projection whose weight, which others read, is masked."""

    def __init__(self, projection: Any, masked: Callable[[Tensor], Tensor]):
        self._projection, self._masked_weight = projection, masked

    def __call__(self, joined: Tensor) -> Tensor:
        return nn.functional.linear(joined, self.weight, self._projection.bias)

    @property
    def weight(self) -> Tensor:
        """Weight without the heads that are off, computed at every reading for its gradients."""
        return self._masked_weight(self._projection.weight)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also of a copy, which has no attributes yet
            raise AttributeError(name)
        return getattr(self._projection, name)
