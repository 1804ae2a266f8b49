"""Capture the attentioned inputs of a live model, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_capture.captured import Captured
from pathkernel_capture.contraction import (
    Moments,
    along_product,
    check_attention,
    readout_weights,
    side_by_side,
    with_gate,
)
from pathkernel_capture.tangent import PROJECTION, capture_tangent, check_options
from pathkernel_core.arrays.products import matmul
from pathkernel_core.arrays.scalars import whole_number
from pathkernel_core.paths.contraction import Readout
from pathkernel_models.agreement import check_same_heads, is_exempt, mismatch_message
from pathkernel_models.arguments import check_batches, check_flag, check_model, check_seed
from pathkernel_models.attention_module import AttentionModule, block_name
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import is_included
from pathkernel_models.families.recognition import attention_modules, beside_cross_attention
from pathkernel_models.inputs.batches import (
    call_model,
    check_device,
    join_batches,
    split_batch,
    with_masks,
)
from pathkernel_models.inputs.labels import check_argument_names, joined_labels, label_array
from pathkernel_models.inputs.masks import (
    HiddenKeys,
    boolean_masks,
    check_boolean_masks,
    check_masks,
    given_mask,
)
from pathkernel_models.inputs.outputs import Outputs
from pathkernel_models.precision import is_half, tolerance, widen
from pathkernel_models.recording import first_argument
from pathkernel_models.sequences import check_one_sequence
from pathkernel_models.state import hides_attention, open_to_observation, set_evaluation
from pathkernel_models.switching import ObservedHeads, observe_heads
from pathkernel_models.watching import Observation

Picture = Literal["heads", "product", "tangent"]
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
    masks: Iterable[Tensor] | None = None,
    outputs: Outputs | None = None,
    projection: int = PROJECTION,
    seed: int = 0,
) -> Captured:
    """Capture the attentioned inputs of a model along paths of its attention.

    Every batch runs through the model once, in evaluation mode and without gradients; the tangent
    picture takes a backward pass for each output, too. Memory holds the attention of one batch at
    most. The model is left unchanged.

    Parameters
    ----------
    model : torch.nn.Module
        With attention of torch.nn, transformers, timm or TransformerLens, or your own, described by
        :class:`pathkernel.AttentionHeads`; of any precision, see the notes.
    batches : iterable
        On the model's device. A batch is a tensor, a mapping of the model's arguments and
        ``labels``, or a pair of labels and one of these or a tuple of arguments:
        ``(inputs, labels)``.
    readout : {"first", "last", "mean"}, int or slice
        Tokens to read out: one, or the mean over several. Padding, which the model's attention to
        these tokens hides, is not counted.
    picture : {"heads", "product", "tangent"}
        ``"heads"``: all heads of all layers, and the path through none, side by side as one layer.
        ``"product"``: every path through one head of each layer.
        ``"tangent"``: all heads side by side, whose vectors are the derivatives of the model's
        outputs by their maps from the states they attend to, so that kernels of pairs of heads are
        the empirical tangent kernel. It takes ``outputs``, which also says what is read out:
        ``readout``, ``attend`` and ``masks`` are of the others.
    attend : {"tokens", "states"}
        Vectors to average: the embedded tokens, as they enter the first block, or the hidden states
        that the heads see; in a product those of its first layer.
    layers : sequence of int, optional
        Layers of the model, numbered from 1; all by default. Choose those of one encoder, decoder
        or tower.
    skips : bool
        Whether a product has paths past the heads of its layers too, for
        ``Network(captured.heads, widths, skips=s)``.
    masks : iterable of tensor, shape (batch, M), optional
        One for each batch, 1 for tokens and 0 for padding, of the tokens as they enter the first
        block. For models that attend to padding; others hide it by themselves.
    outputs : callable, optional
        For the tangent picture, as for :func:`pathkernel.choose_heads`: runs the model on a batch,
        of any kind, and gives its outputs, (B,) or (B, C), and targets, which become the labels.
        Classes become C columns, 1 − 1/C for the own class and −1/C for others. Kernels are sums
        over outputs.
    projection : int
        For the tangent picture: dimensions k to which derivatives and states are each projected at
        random, where they have more; a vector has k² entries at most. The mean of a kernel over
        seeds is the kernel.
    seed : int
        Seed of the projections; a test set takes that of the training set.

    Raises
    ------
    CaptureError
        If the model's attention is of no known form, is not computed by functions of PyTorch, or is
        of several sequences; it attends to tokens that a mask of the batch marks as padding, or
        hides tokens that ``masks`` counts; attention that can be observed gives other outputs than
        the model's own kernel; a batch lies on another device; or in the tangent picture a row of
        ``outputs`` depends on several examples.
    ValueError
        If an option does not fit, or there are too many paths.

    Notes
    -----
    The prior's variance is fixed, but models differ in the size of their tokens: pass the result of
    ``captured.scale_tokens(30)``, or of :func:`choose_network`, to Problem, and scale test sets by
    ``test.scale_tokens(30, like=train)``. If a layer is refused that other sequences use, such as a
    decoder's, choose the layers of one sequence with ``layers=``. If padding counts although the
    batch has a mask, the model takes no mask there: give ``masks=``. If attention is NaN, take
    ``model.float()``.

    In half precision, by weights or by autocast, attention carries three digits. Its products with
    states are in float32, so that ``xi`` differs from that of ``model.float()`` by the rounding of
    the model itself, up to 1 % in small models of bfloat16.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> captured = pk.capture(model, [torch.randn(5, 6, 8)], readout="mean")
    >>> captured.xi.shape, captured.members[0]  # layer and head of every path; (0, 0) is no head
    ((5, 5, 8), ((0, 0), (1, 1), (1, 2), (2, 1), (2, 2)))
    """
    if picture not in get_args(Picture):
        raise ValueError(f'picture must be "heads", "product" or "tangent", not {picture!r}')
    if attend not in get_args(Attended):
        raise ValueError(f'attend must be "tokens" or "states", not {attend!r}')
    check_flag("skips", skips)
    seed = check_seed(seed)
    if skips and picture != "product":
        raise ValueError('skips are of picture="product"; "heads" has its identity path anyhow')
    if picture == "tangent":
        check_options(outputs, projection, (readout, attend, masks) == ("last", "tokens", None))
    elif outputs is not None:
        raise ValueError(f'outputs is of picture="tangent"; with {picture!r} leave it out')
    check_model(model)
    check_batches(batches)
    if isinstance(batches, tuple):
        raise TypeError(
            "batches is a tuple, which may be a single batch; put a single one into a list, "
            "[batch], and make one of a tuple of batches, list(inputs.split(50))"
        )
    model = getattr(model, "_orig_mod", model)  # a compiled model runs without hooks
    modules = attention_modules(model)
    numbers = _choose_layers(layers, len(modules))
    for number in numbers:
        if is_included(modules[number - 1].module):
            raise CaptureError(
                f"{modules[number - 1].where} attends to another sequence, which no picture shows; "
                "choose layers of self-attention, of one sequence, with layers="
            )
    if outputs is not None:
        chosen = {number: modules[number - 1] for number in numbers}
        return capture_tangent(model, batches, chosen, outputs, projection, seed)
    contraction = _Contraction(model, modules, numbers, readout, picture, attend, skips)
    xi_of_batches, labels = [], []
    with set_evaluation(model):
        for batch, mask in with_masks(batches, masks):
            inputs, batch_labels = split_batch(batch)
            check_device(model, inputs)
            check_argument_names(model, inputs)
            labels.append(label_array(batch_labels, inputs))
            own = contraction.run_alone(inputs) if hides_attention(model) else {}
            with open_to_observation(model):
                if not xi_of_batches:
                    check_one_sequence(model, inputs, list(contraction.layers.values()))
                xi_of_batches.append(contraction.of_batch(inputs, mask, own))
    if not xi_of_batches:
        raise ValueError("batches must hold at least one batch")
    means, deviations = contraction.moments()
    xi = join_batches(xi_of_batches)
    return Captured(
        xi=xi,
        labels=joined_labels(labels, len(xi)),
        members=contraction.members,
        means=means,
        deviations=deviations,
        notes=contraction.notes(),
        skips=skips,
    )


class _Read(NamedTuple):
    """Readout of a batch."""

    tokens: Tensor  # (batch, M, N_0)
    mask: Tensor  # (batch, M), False at padding
    shown: Tensor  # (batch, M), False at tokens that attention hides
    weights: Tensor  # (batch, M), each row sums to 1


class _Contraction:
    """Attentioned inputs of a batch, accumulated while the model runs."""

    # Side by side, a layer's attention is averaged over the readout as soon as it is seen: the
    # attention of all layers, (L, batch, H, M, M), would be the largest array by far. A product
    # needs it, since it is contracted from the last layer, which runs last.

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[AttentionModule],
        numbers: Sequence[int],
        readout: Readout | slice,
        picture: Picture,
        attend: Attended,
        skips: bool,
    ):
        self.model, self.numbers, self.readout = model, numbers, readout
        self.picture, self.attend, self.skips = picture, attend, skips
        self.layers = {number: modules[number - 1] for number in numbers}
        pattern = self.layers[numbers[0]].pattern  # of one encoder, decoder or tower
        self.first = next(layer for layer in modules if layer.pattern == pattern)
        self.crossed = beside_cross_attention(model, self.first)
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

    def _begin(self, mask: Any) -> None:
        self._mask, self._entered = mask, None
        self._boolean: dict[str, Tensor] = {}
        self._read: _Read | None = None
        self._contracted: dict[int, Tensor] = {}

    def _hooks(self) -> ExitStack:
        """Hook the model inside the context."""
        hooks = ExitStack()
        block = self.model.get_submodule(block_name(self.first))
        entering = block.register_forward_pre_hook(self._enter, with_kwargs=True)
        hooks.callback(entering.remove)
        for number, layer in self.layers.items():
            hooks.enter_context(layer.watch(partial(self._report, number)))
        return hooks

    def run_alone(self, inputs: Any) -> dict[int, Tensor]:
        """Run the model on a batch; return the outputs of its heads, (batch, M, H, G), by layer."""
        heads: dict[int, Tensor] = {}

        def note(number: int, seen: ObservedHeads) -> None:
            heads[number] = seen.heads

        with ExitStack() as stack:
            for number, layer in self.layers.items():
                stack.enter_context(observe_heads(layer, partial(note, number)))
            call_model(self.model, inputs)
        return heads

    def of_batch(self, inputs: Any, mask: Any, own: Mapping[int, Tensor]) -> np.ndarray:
        """Run the model on a batch; return its attentioned inputs, (batch, n, N_0).

        ``own`` are outputs of the heads by a kernel that another one has replaced, by layer.
        """
        self._begin(mask)
        self._boolean = boolean_masks(self.model, inputs, crossed=self.crossed)
        observed: dict[int, Tensor] = {}
        with self._hooks(), HiddenKeys() as keys:
            if own:
                observed = self.run_alone(inputs)
            else:
                call_model(self.model, inputs)
        missing = [number for number in self.numbers if number not in self._contracted]
        if missing or self._read is None:
            raise CaptureError(
                f"{self.where(missing[0])} did not run in the forward pass; choose the layers "
                "that do with layers="
            )
        contracted = [self._contracted[number] for number in self.numbers]
        tokens, _, shown, weights = self._read
        for number, heads in own.items():
            check_same_heads(self.where(number), heads, observed[number], shown)
        if mask is None:
            where = self.where(self.numbers[0])
            check_masks(inputs, keys.hidden, shown, where, crossed=self.crossed)
        if self.picture == "product":
            xi = along_product(contracted, weights, tokens, self.skips)
        else:
            identity = matmul(weights[:, None, :], tokens)  # the path past all heads
            by_layer = [identity, *contracted]
            widths = sorted({paths.shape[-1] for paths in by_layer})
            if len(widths) > 1:
                raise CaptureError(
                    f"layers attend to states of {', '.join(map(str, widths))} numbers, of which "
                    'no one network is made; take attend="tokens", or layers of one width by '
                    "layers="
                )
            xi = torch.cat(by_layer, dim=1)
        self._begin(None)
        return xi.cpu().numpy().astype(float)  # single precision would stop the minimisation early

    def _enter(self, block: nn.Module, args: tuple, kwargs: dict) -> None:
        """Record the embedded tokens as they enter the first block."""
        if not (self.picture == "product" and self.attend == "states"):
            tokens = first_argument(args, kwargs)
            self._entered = widen(tokens.transpose(0, 1) if self.first.swapped else tokens)

    def _report(self, number: int, observed: Observation) -> None:
        where, mask, precision = self.where(number), observed.mask, observed.precision
        attention, states = check_attention(where, observed.attention, observed.states)
        # Wrong attention looks as good as right attention: every assumption that a batch can refute
        # is checked here, on each layer and batch, before anything is averaged
        if number in self._contracted:
            raise CaptureError(
                f"{where} runs more than once in a forward pass; layers that share their weights "
                "cannot be told apart"
            )
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        # by the first layer that runs: its attention tells the padding, which all others must share
        if self._read is None:
            self._read = self._read_out(number, states, mask, attention.dtype)
        tokens, read, shown, weights = self._read
        if attention.shape[0] != read.shape[0] or attention.shape[-1] != read.shape[1]:
            raise CaptureError(
                f"{where} attends to {attention.shape[-1]} tokens, but the first block has "
                f"{read.shape[1]}; choose the layers of one sequence with layers="
            )
        if not read.all():  # softmax over nothing but padding gives NaN
            attention = attention.masked_fill(~read[:, None, :, None], 0.0)
        if attention.isnan().any():
            raise CaptureError(
                f"{where} gives attention that is NaN. Where the model gives no NaN by itself, "
                "eager attention to padding overflows in double precision; take model.float(), or "
                'model.set_attn_implementation("sdpa")'
            )
        if not torch.equal(mask, shown):
            raise CaptureError(
                f"{where} hides {int((~mask).sum())} tokens of a batch as padding, but "
                f"{self.where(self.numbers[0])} {int((~shown).sum())} and not the same; choose the "
                "layers of one sequence with layers="
            )
        check_boolean_masks(self._boolean, attention, where)
        excess = attention.sum(dim=-1) - read[:, None, :].to(attention)
        if not observed.has_sinks:
            excess = excess.abs()
        if (off := float(excess.max())) > (1e-2 if is_half(precision) else 1e-3):
            raise CaptureError(
                f"{where} pays attention whose sum over tokens is off 1 by {off:.2g}, as with "
                "weights that change after their softmax; choose other layers with layers="
            )
        layer = self.layers[number]
        exempt = is_exempt(layer.module, layer.points, switched=False)
        if not (exempt or observed.mismatch <= tolerance(precision)):
            message = mismatch_message(layer.module, where, observed.mismatch, takes_layers=True)
            raise CaptureError(message)
        attention = with_gate(where, attention, observed.gate)
        if self.picture == "product":
            self._contracted[number] = attention
            return
        attended = tokens if self.attend == "tokens" else states
        if number in self._moments:
            self._moments[number].add(attended, read)
        self._contracted[number] = side_by_side(attention, weights, attended)

    def _read_out(self, number: int, states: Tensor, shown: Tensor, dtype: torch.dtype) -> _Read:
        """Read a batch out, given the tokens that its attention shows."""
        tokens = states if self._entered is None else self._entered
        if tokens.ndim != 3:
            raise CaptureError(
                f"{block_name(self.first)} takes inputs of shape {tuple(tokens.shape)}, not "
                "(batch, M, N_0), as of an image; choose the layers of a sequence of tokens with "
                "layers=, if the model has any"
            )
        if len(shown) > len(tokens):
            raise CaptureError(
                f"{self.where(number)} attends within windows, {len(shown)} sequences for "
                f"{len(tokens)} examples, which no picture shows. Its heads can be switched off, "
                "scored and removed"
            )
        if shown.shape != tokens.shape[:2]:
            raise CaptureError(
                f"{self.where(number)} attends to {shown.shape[1]} tokens, but the first block has "
                f"{tokens.shape[1]}; choose layers before with layers="
            )
        mask = shown
        if self._mask is not None:
            mask = given_mask(self._mask, shown, self.where(number))
        self._moments[0].add(tokens, mask)
        return _Read(tokens, mask, shown, readout_weights(self.readout, mask, dtype))

    def where(self, number: int) -> str:
        """Return number and name of a layer of the model."""
        return self.layers[number].where

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of the tokens that every path attends to."""
        if self.picture == "product" or self.attend == "tokens":
            moments = [self._moments[0]]
        else:
            moments = [self._moments[number] for number, _ in self.members[0]]
        means = np.array([of_path.mean for of_path in moments])
        return means, np.array([of_path.deviation for of_path in moments])

    def notes(self) -> dict[str, str]:
        """Describe the approximation."""
        on = "embedded tokens" if self.attend == "tokens" else "hidden states"
        scope = f"attention of {type(self.model).__name__} to its {on}"
        left_out = "trained values, biases, nonlinear blocks and normalisation"
        if self.crossed:
            left_out = f"cross-attention, {left_out}"
        if self.picture == "heads":
            left_out = f"paths through several heads, {left_out}"
        else:
            scope += f", in layers {', '.join(map(str, self.numbers))}"
            left_out += "" if self.skips else ", and skip connections,"
        return {"approximation": f"{scope}; {left_out} are left out"}


def _choose_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    """Return the numbers of the chosen layers, in order."""
    if layers is None:
        return list(range(1, count + 1))
    try:
        given = [whole_number("each of layers", layer, 0) for layer in layers]
    except (TypeError, ValueError):
        raise TypeError(
            f"layers must be a list of whole numbers, such as [1], not {layers!r}"
        ) from None
    numbers = sorted(set(given))
    if not numbers or len(numbers) < len(given) or not 1 <= numbers[0] <= numbers[-1] <= count:
        raise ValueError(
            f"layers must name some of the model's layers 1 to {count}, each once, not {given}"
        )
    return numbers
