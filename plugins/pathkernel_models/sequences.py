"""Tell whether layers of a model see one sequence, by what reaches them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.attention_module import AttentionModule, block_name
from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import call_model
from pathkernel_models.recording import first_argument


def check_one_sequence(model: nn.Module, inputs: Any, layers: Sequence[AttentionModule]) -> None:
    """Raise a CaptureError if layers see several sequences, such as of encoder and decoder.

    Layers of several stacks see one sequence if the inputs of each stack are those of the first, or
    change if these are changed. Only models of several stacks run, twice.

    Parameters
    ----------
    model : Module
    inputs : tensor, mapping or tuple
        Arguments of the model.
    layers : sequence of AttentionModule
        In order.
    """
    stacks: dict[str, AttentionModule] = {}
    for layer in layers:
        stacks.setdefault(re.sub("[0-9]+", "", block_name(layer)), layer)
    if len(stacks) == 1:
        return
    # An encoder and a decoder, or two towers, may have equally many tokens, so that no shape tells
    # them apart: only whether one depends on the other. Stacks in a row, such as stages, do
    entered: list[dict[str, Tensor]] = [{}, {}]
    first, *others = stacks.values()
    with suppress(CaptureError):  # raised again, with its reason, where attention is observed
        for states, changed in zip(entered, (False, True)):
            with ExitStack() as hooks:
                for layer in stacks.values():
                    hooks.callback(_hook_entry(model, layer, states, changed and layer is first))
                call_model(model, inputs)
    for layer in others:
        before, after = (states.get(layer.name) for states in entered)
        start = entered[0].get(first.name)
        if before is None or after is None or start is None:  # it did not run
            continue
        if not _same(before, start) and _same(before, after):
            raise CaptureError(
                f"{layer.where} sees another sequence than {first.where}: its tokens do not depend "
                "on those; choose the layers of one sequence with layers="
            )


def _hook_entry(
    model: nn.Module, layer: AttentionModule, states: dict[str, Tensor], changed: bool
) -> Any:
    """Note the states that first enter the block of a layer, or change them; return its undoing."""

    def enter(_: nn.Module, args: tuple, kwargs: dict) -> Any:
        entering = first_argument(args, kwargs)
        if layer.name in states or not isinstance(entering, Tensor):
            return None
        states[layer.name] = entering.clone()
        if not changed:
            return None
        entering = entering.flip(-1)  # other states of the same size, whatever their scale
        if args:
            return (entering, *args[1:]), kwargs
        return args, kwargs | {next(iter(kwargs)): entering}

    block = model.get_submodule(block_name(layer))
    return block.register_forward_pre_hook(enter, with_kwargs=True).remove


def _same(states: Tensor, others: Tensor) -> bool:
    return states.shape == others.shape and torch.equal(states, others)
