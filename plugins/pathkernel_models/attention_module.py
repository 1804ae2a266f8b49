"""Describe attention in one layer of a model, and change the outputs of its heads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.agreement import compare_attention
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.linear_maps import projection_matrix
from pathkernel_models.recording import Points
from pathkernel_models.watching import Report, watch_attention

Change = Callable[[Tensor], Tensor]
"""Takes the outputs of the heads of a layer, side by side, and returns their replacement."""


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """Attention in one layer of a model.

    Attributes
    ----------
    number : int
        Number of the layer, from 1.
    name : str
        In the model.
    module : Module
    heads : int
    groups : int
        Number of heads of keys and values.
    projection : Module
        Output projection.
    output_axis : int
        Axis of the weight of ``projection`` on which heads lie one after the other.
    change_outputs : callable
        Takes a :data:`Change`, applied in every forward pass inside the context.
    values : callable, optional
        Returns the weights of the heads' values, (H, G, N_0).
    points : Points, optional
        Where values and outputs of the heads can be observed.
    swapped : bool
        Whether the module takes (token, batch, N_0).
    description : AttentionHeads, optional
        Position of the heads in the weights.
    runs_projection : bool
        Whether the output projection runs, and is not read for its weight.
    crossed : bool
        Whether keys are of another sequence than queries, by the names of the module.
    """

    number: int
    name: str
    module: nn.Module
    heads: int
    groups: int
    projection: nn.Module
    output_axis: int
    change_outputs: Callable[[Change], AbstractContextManager[None]]
    values: Callable[[], Tensor] | None = None
    points: Points | None = None
    swapped: bool = False
    description: AttentionHeads | None = None
    runs_projection: bool = True
    crossed: bool = False

    def check_read(self) -> None:
        """Raise a CaptureError if an adapter stands where the projection's weight is read.

        It would write back the weight that it reads, without the heads that are off.
        """
        if not (self.runs_projection or isinstance(self.projection, nn.Linear)):
            raise CaptureError(
                f"{self.where} has an adapter ({type(self.projection).__name__}) in place of its "
                "output projection, whose weight is read; merge the adapter (merge_and_unload) "
                "first"
            )

    @property
    def where(self) -> str:
        """Number and name of the layer, for messages."""
        return where_is(self.number, self.name)

    @property
    def output(self) -> Tensor:
        """Weight of the output projection."""
        weight: Tensor = self.projection.weight
        return weight

    @property
    def output_inputs_last(self) -> Tensor:
        """Weight of the output projection, the axis of the heads last."""
        weight, axis = self.output, self.output_axis
        # quantised weights have few operations
        return weight if axis == weight.ndim - 1 else weight.movedim(axis, -1)

    @property
    def pattern(self) -> str:
        """Name without numbers, shared by the layers of an encoder, decoder or tower."""
        return re.sub("[0-9]+", "", self.name)

    def output_map(self) -> Tensor:
        """Return the matrix (output, H·G) that the output projection multiplies by.

        Raises a CaptureError if it is no linear map.
        """
        weight = self.output_inputs_last
        if not self.runs_projection:  # its weight is read
            return weight.detach()
        return projection_matrix(self.projection, weight, self.where)

    def watch(self, report: Report) -> AbstractContextManager[None]:
        """Report every forward pass inside the context."""
        return watch_attention(self.module, self.heads, self.points, self.swapped, report)

    def compare(self, agreed: Callable[[], None]) -> AbstractContextManager[None]:
        """Compare attention times values with the heads' output, see :func:`compare_attention`."""
        return compare_attention(
            *(self.module, self.where, self.heads, self.points, self.swapped, agreed),
            crossed=self.crossed,
        )


def where_is(number: int, name: str) -> str:
    """Return number and name of a layer, for messages."""
    return f"layer {number}" + (f" ({name})" if name else "")


def outermost_block(name: str) -> str:
    """Return the name of the outermost numbered block around a layer, or nothing."""
    names = name.split(".")
    depth = next((index for index, part in enumerate(names, start=1) if part.isdigit()), 0)
    return ".".join(names[:depth])


def block_name(attention: AttentionModule) -> str:
    """Return the name of the numbered block around attention, or else of the attention itself."""
    names = attention.name.split(".")
    while names and not names[-1].isdigit():
        names.pop()
    return ".".join(names) or attention.name


class _Identity:
    """Projection that passes its input on, whether its weight is read or it is called."""

    bias = None

    def __init__(self, like: Tensor):
        self.weight = torch.eye(like.shape[1]).to(like)

    def __call__(self, outputs: Tensor) -> Tensor:
        return outputs


@contextmanager
def standing_in(module: nn.Module, name: str, substitute: Any) -> Iterator[None]:
    """Let a submodule be read as its substitute inside the context.

    An attribute of the instance hides the submodule without unregistering it: parameters, state
    dict and hooks of the model stay as they are, and nothing is assigned that must be put back.
    """
    attributes = vars(module)
    hidden = {name: attributes[name]} if name in attributes else {}
    attributes[name] = substitute
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(hidden)


def change_before(module: nn.Module) -> Callable[[Change], AbstractContextManager[None]]:
    """Return a context that changes the input of a module."""

    @contextmanager
    def change_outputs(change: Change) -> Iterator[None]:
        def change_input(_: nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
            if inputs:
                return (change(inputs[0]), *inputs[1:]), named
            first, value = next(iter(named.items()))
            return inputs, named | {first: change(value)}

        handle = module.register_forward_pre_hook(change_input, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    return change_outputs


def change_after(
    module: nn.Module, projection: nn.Module
) -> Callable[[Change], AbstractContextManager[None]]:
    """Return a context that changes the heads of a module that reads its projection's weight."""

    @contextmanager
    def change_outputs(change: Change) -> Iterator[None]:
        (name,) = (name for name, child in module.named_children() if child is projection)
        shown = getattr(module, name)  # of a context around this one, such as heads off

        # attention passes the heads on unchanged, and the projection is applied afterwards
        def project(_: nn.Module, inputs: tuple, output: tuple) -> tuple:
            return nn.functional.linear(change(output[0]), shown.weight, shown.bias), *output[1:]

        handle = module.register_forward_hook(project)
        try:
            with standing_in(module, name, _Identity(projection.weight)):
                yield
        finally:
            handle.remove()

    return change_outputs
