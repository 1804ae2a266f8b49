"""Require that attention times values equals the output of the heads of a module.

Modules are recognised by the names of their parts, which may mislead: values in another order,
weights that change after their softmax, heads that are counted twice. So every function that
touches heads compares them once, in a forward pass of the model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import tensors_of
from pathkernel_models.precision import lowest_precision, tolerance
from pathkernel_models.recording import Points, Recording, first_argument
from pathkernel_models.state import (
    hides_attention,
    open_to_observation,
    set_evaluation,
    without_parameter_gradients,
)
from pathkernel_models.watching import gate_of, idle_projection, mismatch, replaced_forward

_LIBRARIES = ("transformers", "timm")
_QUERIES = 16  # compared, of every sequence

# Exceptions, whose code has been read. Attention averages the values, and a step follows that
# leaves the heads in their places; or only the values lie elsewhere.
_FURTHER_STEP = frozenset(
    (
        "modeling_codegen.CodeGenAttention",  # values in blocks of heads
        "modeling_vits.VitsAttention",  # values of relative positions
    )
)
# The outputs of the heads lie one after the other, but are not a softmax times the values, or the
# values lie elsewhere in their weights: windows, mixed heads, convolutions, wider values.
_OTHER_ATTENTION = frozenset(
    (
        "modeling_dory.DoryAttention",
        "modeling_fsmt.Attention",
        "modeling_hiera.HieraMaskUnitAttention",
        "modeling_inkling.InklingAttention",
        "modeling_longformer.LongformerSelfAttention",
        "modeling_longt5.LongT5LocalAttention",
        "modeling_longt5.LongT5TransientGlobalAttention",
        "modeling_nystromformer.NystromformerSelfAttention",
        "modeling_pegasus_x.PegasusXGlobalLocalAttention",
        "cait.TalkingHeadAttn",
        "efficientformer.Attention",
        "maxxvit.AttentionCl",
        "tiny_vit.Attention",
    )
)


def with_own_function(
    model: nn.Module, run: Callable[[Any], Any], batches: Iterable[Any]
) -> Iterator[Any]:
    """Return all batches, if observed attention gives the tensors of the model's own on the first.

    A model whose attention can be observed as it is does not run. Raises a CaptureError if they
    differ. No activations are stored but those that ``run`` differentiates by itself, such as an
    energy by positions, so that gradients are not switched off altogether.
    """
    remaining = iter(batches)
    first = list(islice(remaining, 1))
    for batch in first if hides_attention(model) else ():
        with without_parameter_gradients(model):
            with set_evaluation(model), torch.enable_grad():
                own = [tensor.detach() for tensor in tensors_of(run(batch))]
            with open_to_observation(model), torch.enable_grad():
                observed = [tensor.detach() for tensor in tensors_of(run(batch))]
        for before, after in zip(own, observed):
            if before.is_floating_point():
                _check_same(type(model).__name__, before, after)
    return chain(first, remaining)


def check_same_heads(where: str, own: Tensor, observed: Tensor, shown: Tensor) -> None:
    """Raise a CaptureError if heads of a layer differ by its own kernel and by eager attention.

    Outputs of the heads are (batch, M, H, G), and ``shown`` is (batch, M), False at padding.
    """
    for before, after in zip(own[shown].unbind(1), observed[shown].unbind(1)):
        _check_same(where, before, after)


def _check_same(where: str, own: Tensor, observed: Tensor) -> None:
    difference = float((own - observed).abs().max() / own.abs().max().clamp_min(1e-30))
    if not difference <= tolerance(lowest_precision(own, observed)):
        raise CaptureError(
            f"{where} computes another function by its own attention kernel than by eager "
            f"attention, in which heads are observed: they differ by {difference:.2g} of the "
            "largest output. Choose a kernel that can be observed, such as "
            'model.set_attn_implementation("sdpa"), if it gives what you want'
        )


def is_exempt(module: nn.Module, points: Points | None, *, switched: bool) -> bool:
    """Whether heads of a module are not compared.

    Parameters
    ----------
    module : Module
    points : Points, optional
    switched : bool
        Whether heads are only switched off, for which they need no attention of a known form.
    """
    described = points is None and hasattr(module, "pathkernel_heads")
    defined = type(module).forward is nn.MultiheadAttention.forward
    known = _FURTHER_STEP | _OTHER_ATTENTION if switched else _FURTHER_STEP
    return described or defined or _key(module) in known


def shows_values(module: nn.Module) -> bool:
    """Whether values by head are at their position in the weights."""
    return _key(module) not in _OTHER_ATTENTION


def _key(module: nn.Module) -> str:
    library, _, _ = type(module).__module__.partition(".")
    last = type(module).__module__.rpartition(".")[2]
    return f"{last}.{type(module).__name__}" if library in _LIBRARIES else ""


def mismatch_message(
    module: nn.Module,
    where: str,
    difference: float,
    *,
    several: int = 0,
    takes_layers: bool = False,
) -> str:
    """Return the message for heads of a module that do not agree; layers may be an option.

    ``several`` is the number of softmaxes, if it is not known which are those of the heads.
    """
    fault = (
        f"does not show which of {several} softmaxes are the attention of its heads"
        if several
        else "does not show the values that its attention averages, or does not run its projections"
        if math.isnan(difference)
        else f"passes on other than its attention times its values, by {difference:.2g} of a "
        "head's largest: it changes the weights after their softmax, or its heads lie elsewhere in "
        "its weights"
    )
    remedy = (
        "describe its heads by a method pathkernel_heads, which returns "
        "pathkernel.AttentionHeads, without projections if none of its own fit"
    )
    if hasattr(module, "pathkernel_heads"):
        remedy = (
            "correct what its method pathkernel_heads returns: count, the order of projections, "
            "by_head, or steps such as gate; without projections nothing is compared"
        )
    return f"{where} {fault}; {remedy}" + ", or choose other layers with layers=" * takes_layers


@contextmanager
def compare_attention(
    module: nn.Module,
    where: str,
    heads: int,
    points: Points | None,
    swapped: bool,
    agreed: Callable[[], None],
    *,
    crossed: bool = False,
) -> Iterator[None]:
    """Compare attention times values with the heads' output in the first pass that allows it.

    Parameters
    ----------
    module : Module
        Attention.
    where : str
        Its layer, for messages.
    heads : int
    points : Points, optional
        Where values and outputs are observed. Without them a class needs ``pathkernel_heads``, or
        to compute by ``multi_head_attention_forward``.
    swapped : bool
        Whether the module takes (token, batch, N_0).
    agreed : callable
        Called when they agree, or the class is a known exception.
    crossed : bool
        Whether the module attends to another sequence, whose states are not its first argument.

    Raises
    ------
    CaptureError
        In the forward pass, if they do not; at the end, if it ran and no pass could tell.
    """
    if is_exempt(module, points, switched=True):
        agreed()
        yield
        return
    forward, pending, passes = module.forward, True, 0

    @functools.wraps(forward)
    def compared_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal pending, passes
        passes += 1
        if not pending:
            return forward(*args, **kwargs)
        recording = Recording(rows=_QUERIES)
        with recording.observe(points):
            output = forward(*args, **kwargs)
        states = first_argument(args, kwargs)
        batch = len(states.transpose(0, 1) if swapped else states)
        attention = recording.attention(batch, heads)
        if attention is None and not recording.weights and _key(module):
            pending = False  # a kernel that hides its weights, of a class whose parts are known
            return output
        difference = math.nan
        if attention is not None and crossed and not recording.values:
            difference = math.inf  # values of a cache, made in a pass before
        elif attention is not None:
            gate = gate_of(points, recording)
            difference = mismatch(recording, points, swapped, attention, states, output, gate)
        if not difference <= tolerance(recording.precision(states)):
            if math.isinf(difference):  # this pass does not tell
                return output
            if name := idle_projection(module, points, recording):
                raise CaptureError(
                    f"{where} does not run its output projection {name}, whose weight it may read "
                    "by itself: heads are changed at the input of the module. Let its forward pass "
                    f"call {name}, or take another implementation of the model"
                )
            several = len(recording.weights) if attention is None else 0
            raise CaptureError(mismatch_message(module, where, difference, several=several))
        pending = False
        agreed()
        return output

    with replaced_forward(module, compared_forward):
        yield
    if pending and passes and not _key(module):
        raise CaptureError(
            f"{where} was not compared: its keys are not those of its own tokens, its outputs are "
            "NaN, or a fused kernel drops weights; evaluate it with model.eval() on finite inputs, "
            "or describe its heads by a method pathkernel_heads without projections"
        )
