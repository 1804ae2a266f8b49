"""Path vectors of the tangent kernel of a live model: derivatives of its outputs by head.

Let o_t be the output of an attention block at token t, and a_ht = Σ_s Ω^h_ts x_s what head h
attends to there, with the states x_s that its values are made of. A head adds M_h a_ht to o_t, so
that the derivative of an output f by its map M_h from states to outputs is

    ξ_h = vec Σ_t G_t ⊗ a_ht,    G_t = ∂f/∂o_t,

and ξ_h(x)·ξ_h'(x') = Σ_tt' (G_t·G'_t') (a_ht·a'_h't') is the tangent kernel of a pair of heads.
Hidden states side by side are the case G = 1: they leave out how much the model amplifies what a
layer writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_capture.captured import Captured
from pathkernel_capture.contraction import check_attention, with_gate
from pathkernel_core.arrays.products import matmul
from pathkernel_models.agreement import is_exempt, mismatch_message, with_own_function
from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.derivatives import check_kept, check_leaves, derivatives
from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import join_batches
from pathkernel_models.inputs.outputs import Outputs, checked_outputs, target_tensor
from pathkernel_models.precision import tolerance, widen
from pathkernel_models.recording import first_tensor
from pathkernel_models.relations import examples_interact
from pathkernel_models.state import open_to_observation, without_parameter_gradients
from pathkernel_models.watching import Observation

PROJECTION = 24
"""Dimensions of a random projection of derivatives, and of one of attended states."""


def check_options(outputs: Outputs | None, projection: int, are_defaults: bool) -> None:
    """Raise an error if options of the tangent picture do not fit."""
    if not callable(outputs):
        raise TypeError(
            'picture="tangent" needs outputs=, a function that runs the model on a batch and gives '
            "its outputs, (B,) or (B, C), and their targets"
        )
    if not isinstance(projection, int) or isinstance(projection, bool) or projection < 1:
        raise ValueError(f"projection must be a positive number of dimensions, not {projection!r}")
    if not are_defaults:
        raise ValueError(
            'readout, attend and masks are of other pictures: with picture="tangent" the function '
            "outputs says what is read out, and heads attend to the states that they see"
        )


def capture_tangent(
    model: nn.Module,
    batches: Iterable[Any],
    layers: Mapping[int, AttentionModule],
    outputs: Outputs,
    projection: int,
    seed: int,
) -> Captured:
    """Capture derivatives of a model's outputs by the maps of its heads.

    Parameters
    ----------
    model, batches, outputs, projection, seed
        As for :func:`pathkernel.capture`.
    layers : mapping of int to AttentionModule
        Those to capture, by number.

    Raises
    ------
    CaptureError
        If the attention of a layer is not understood, or not that of the examples; or a row of
        ``outputs`` depends on several examples.
    ValueError
        If there is no batch, or ``outputs`` gives no outputs with gradients and their targets.
    """
    tangents = _Tangents(layers, _Projections(projection, seed))
    xi, labels = [], []
    batches = with_own_function(model, outputs, batches)
    with open_to_observation(model), torch.enable_grad(), without_parameter_gradients(model):
        for batch in batches:
            with tangents.observe_layers():
                z, targets = _run_outputs(outputs, batch)
                if labels and targets.shape[1:] != labels[0].shape[1:]:
                    raise ValueError(
                        f"outputs gives targets of shape {targets.shape}, but {labels[0].shape} "
                        "for the first batch; it must give equally many columns for every batch"
                    )
                tangents.check(z)
                xi.append(tangents.of_outputs(z))
            labels.append(targets)
    if not xi:
        raise ValueError("batches must hold at least one batch")
    vectors = join_batches(xi)
    # one deviation for all: the sizes of heads, which a deviation for each would take away, are
    # what this picture tells. Nothing is centred, since these are no averages of tokens
    deviation = float(np.linalg.norm(vectors) / np.sqrt(vectors.size))
    members = tuple((n, head) for n, layer in layers.items() for head in range(1, layer.heads + 1))
    note = (
        f"derivatives of outputs of {type(model).__name__} by the maps of its heads from states to "
        "outputs; higher orders, and derivatives by the attention and other weights are left out"
    )
    means = np.zeros((1, vectors.shape[2]))
    return Captured(
        xi=vectors,
        labels=np.concatenate(labels),
        members=(members,),
        means=means,
        deviations=np.array([deviation]),
        notes={"approximation": note},
    )


def _run_outputs(outputs: Outputs, batch: Any) -> tuple[Tensor, np.ndarray]:
    """Outputs (B, C) of a batch, and targets (B,) or (B, C) for the theory."""
    given = outputs(batch)
    z, y = given if isinstance(given, tuple | list) and len(given) == 2 else (None, None)
    is_classes = (
        isinstance(z, Tensor)
        and z.ndim == 2
        and z.shape[1] > 1
        and not (targets := target_tensor(y, z)).is_floating_point()
        and targets.ndim == 1
    )
    columns, targets = checked_outputs(given, "cross-entropy" if is_classes else "squared")
    labels = targets.detach().cpu().numpy()
    if is_classes:  # each class against the others, of mean 0
        return columns, np.eye(columns.shape[1])[labels] - 1 / columns.shape[1]
    return columns, labels if z.ndim == 2 else labels[:, 0]


class _Projections:
    """Random projections to ``dimensions``, the same for every layer and batch of a seed."""

    # With entries of variance 1/k the mean of RᵀR is the identity, so that with independent
    # projections of both factors a kernel's mean over seeds is the kernel itself. All layers share
    # them: kernels of heads of two layers would vanish otherwise

    def __init__(self, dimensions: int, seed: int):
        self._dimensions = dimensions
        self._generators = [torch.Generator().manual_seed(2 * seed + side) for side in (0, 1)]
        self._states: Tensor | None = None
        self._derivatives: Tensor | None = None

    def states(self, attended: Tensor) -> Tensor:
        """Project states (batch, M, N_0)."""
        if self._states is None:
            self._states = self._draw(0, attended.shape[-1:])
        return matmul(widen(attended), self._states.to(widen(attended)))

    def derivatives(self, slopes: Tensor, column: int, outputs: int) -> Tensor:
        """Project derivatives (batch, M, N) of one of C outputs; their sum is of all outputs."""
        if self._derivatives is None:
            self._derivatives = self._draw(1, (outputs, slopes.shape[-1]))
        return matmul(widen(slopes), self._derivatives[column].to(widen(slopes)))

    def _draw(self, side: int, shape: tuple[int, ...]) -> Tensor:
        """Matrix of entries (…, k), the identity if there are no more entries than dimensions."""
        entries, k = int(np.prod(shape)), self._dimensions
        if entries <= k:
            return torch.eye(entries, dtype=torch.float64).reshape(*shape, entries)
        drawn = torch.randn(entries, k, generator=self._generators[side], dtype=torch.float64)
        return (drawn / k**0.5).reshape(*shape, k)


class _Tangents:
    """Attended states and outputs of attention blocks, observed while the model runs."""

    def __init__(self, layers: Mapping[int, AttentionModule], projections: _Projections):
        self._layers, self._projections = layers, projections
        self._attended: dict[int, Tensor] = {}  # (batch, H, M, k)
        self._added: dict[int, list[Tensor]] = {}  # zeros in the shape of each block's output
        self._has_run = False
        self._are_apart = False  # whether outputs have been seen not to depend on other examples
        self._widths: dict[str, set[int]] = {"attend to states": set(), "give outputs": set()}

    @contextmanager
    def observe_layers(self) -> Iterator[None]:
        """Observe all layers inside the context, in which derivatives are taken, too."""
        self._attended, self._added = {}, {number: [] for number in self._layers}
        self._has_run = False
        with ExitStack() as stack:
            for number, layer in self._layers.items():
                # a module that reads the weight of its projection gives the block's output itself
                block = layer.projection if layer.runs_projection else layer.module
                hook = block.register_forward_hook(partial(self._add, number))
                stack.callback(hook.remove)
                stack.enter_context(layer.watch(partial(self._report, number)))
            yield

    def _add(self, number: int, block: nn.Module, _: Any, output: Any) -> Any:
        """Add zeros, by which derivatives are taken, to the output of a block."""
        # the zeros are leaves: a detached output would cut off the layers before
        given = first_tensor(output)
        zeros = torch.zeros_like(given, requires_grad=torch.is_grad_enabled())
        if not self._has_run:  # else again in the backward pass, as with checkpoints
            self._added[number].append(zeros)
            self._check_width("give outputs", given.shape[-1])
        added = given + zeros
        return (added, *output[1:]) if isinstance(output, tuple | list) else added

    def _report(self, number: int, observed: Observation) -> None:
        # padding does not matter: the model's outputs have no derivatives by it
        if self._has_run:
            return
        layer = self._layers[number]
        attention, states = check_attention(layer.where, observed.attention, observed.states)
        attention = with_gate(layer.where, attention, observed.gate)
        if number in self._attended:
            raise CaptureError(
                f"{layer.where} runs more than once in a forward pass; layers that share their "
                "weights cannot be told apart"
            )
        exempt = is_exempt(layer.module, layer.points, switched=False)
        if not (exempt or observed.mismatch <= tolerance(observed.precision)):
            raise CaptureError(
                mismatch_message(layer.module, layer.where, observed.mismatch, takes_layers=True)
            )
        attention = attention.detach()
        if attention.isnan().any():
            raise CaptureError(
                f"{layer.where} gives attention that is NaN. Where the model gives no NaN by "
                "itself, eager attention to padding overflows in double precision; take "
                "model.float()"
            )
        self._check_width("attend to states", states.shape[-1])
        # projected before they are averaged: a head then has M vectors of k numbers, not of N_0
        projected = self._projections.states(states.detach())[:, None]
        self._attended[number] = matmul(attention.to(projected.dtype), projected)

    def _check_width(self, what: str, width: int) -> None:
        self._widths[what].add(width)
        if len(self._widths[what]) > 1:
            raise CaptureError(
                f"layers {what} of {' and '.join(map(str, sorted(self._widths[what])))} numbers, "
                "of which no one network is made; choose layers of one width with layers="
            )

    def check(self, outputs: Tensor) -> None:
        """Raise an error unless every layer ran once, and gives every row of outputs by itself."""
        self._has_run = True
        for number, layer in self._layers.items():
            if number not in self._attended:
                raise CaptureError(
                    f"{layer.where} did not run in the forward pass; choose the layers that do "
                    "with layers="
                )
            if (runs := len(self._added[number])) != 1:
                raise CaptureError(
                    f"{layer.where} has an output projection that ran {runs} times in the forward "
                    "pass; describe the one that runs by a method pathkernel_heads"
                )
            check_leaves(self._added[number], [layer])
            if (sequences := len(self._attended[number])) != len(outputs):
                raise CaptureError(
                    f"{layer.where} runs on {sequences} sequences for {len(outputs)} rows of "
                    "outputs, as windows of an image, or outputs of tokens; the tangent picture "
                    "needs a row of outputs for each sequence"
                )
        check_kept(outputs, "outputs")
        if not self._are_apart and len(outputs) > 1:
            zeros = [self._added[number][0] for number in self._layers]

            def by_token(slopes: list[Tensor]) -> list[Tensor]:
                return list(map(self._by_token, self._layers, slopes))

            if examples_interact(outputs, zeros, name="outputs", by_example=by_token):
                raise CaptureError(
                    "outputs gives rows that depend on other examples of the batch, as in a "
                    "contrastive loss, so that no example has a path vector of its own; give "
                    "outputs of each example alone"
                )
            self._are_apart = True

    def of_outputs(self, outputs: Tensor) -> np.ndarray:
        """Path vectors (batch, ΣH_ℓ, k²) of outputs (batch, C)."""
        zeros, columns = [self._added[number][0] for number in self._layers], outputs.shape[1]
        projected: list[Tensor] = []  # Σ_c R_c G_c of each layer, (batch, M, k)
        for column in range(columns):
            # examples do not interact, so that a sum over them has the derivatives of each
            total, is_last = outputs[:, column].sum(), column + 1 == columns
            slopes = derivatives(total, zeros, name="outputs", keeps_graph=not is_last)
            by_token = list(map(self._by_token, self._layers, slopes))
            parts = [self._projections.derivatives(slope, column, columns) for slope in by_token]
            projected = [sum(pair) for pair in zip(projected, parts)] if projected else parts
        by_layer = [
            matmul(derivatives.mT[:, None], self._attended[number]).flatten(2).cpu()
            for number, derivatives in zip(self._layers, projected)
        ]
        self._attended, self._added = {}, {}
        return torch.cat(by_layer, dim=1).numpy().astype(float)

    def _by_token(self, number: int, slope: Tensor) -> Tensor:
        """Derivatives (batch, M, N) by the output of a block, whatever the order of its axes."""
        layer, attended = self._layers[number], self._attended[number]
        batch, tokens = attended.shape[0], attended.shape[2]
        if not slope.isfinite().all():
            raise CaptureError(
                f"{layer.where} has derivatives that are NaN or infinite, as by tokens that pay no "
                "attention; leave padding out, or take model.float()"
            )
        if slope.ndim > 3 and len(slope) == batch:  # tokens on several axes, as of an image
            slope = slope.flatten(1, -2)
        orders = [slope, slope.transpose(0, 1)]
        for ordered in reversed(orders) if layer.swapped else orders:
            if ordered.ndim == 3 and ordered.shape[:2] == (batch, tokens):
                return ordered
        raise CaptureError(
            f"{layer.where} gives outputs of shape {tuple(slope.shape)} for {batch} sequences of "
            f"{tokens} tokens; choose other layers with layers="
        )
