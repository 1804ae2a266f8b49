"""Gains in front of the heads of a live model, and its loss to second order in them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_core.arrays.products import matmul
from pathkernel_models.agreement import with_own_function
from pathkernel_models.arguments import check_batches, check_function, check_model, check_seed
from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.compared_layers import ComparedLayers
from pathkernel_models.derivatives import check_kept, check_leaves, derivatives
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.heads_off import refuse_shared_weights
from pathkernel_models.inputs.outputs import MANY_OUTPUTS, Outputs, checked_outputs
from pathkernel_models.precision import is_half
from pathkernel_models.relations import Relation, likely_relation, relation
from pathkernel_models.state import open_to_observation, without_parameter_gradients
from pathkernel_models.switching import ScaledLayer, factors_by_layer, scale_heads
from pathkernel_pruning.heads.loss_form import (
    FormSums,
    LossForm,
    LossName,
    apply_curvature,
    loss_slopes,
    loss_values,
    probabilities,
)

DIRECTIONS = 8
"""Random directions of outputs in place of all outputs, where these are more."""

_STEP = 0.03  # of central differences in a gain
_LARGEST_JACOBIAN = 2**27  # numbers, 1 GiB in float64
_PARTS = 10  # of the batches, each of which is held out in turn
_FEW_SEQUENCES, _FEW_ROWS = 100, 500


class LiveNetwork:
    """A model with gains in front of its heads, on some examples; see ``GainNetwork``.

    Parameters
    ----------
    model, batches, outputs, loss, seed
        As for :func:`pathkernel_pruning.live.head_choice.choose_heads`.

    Attributes
    ----------
    layers : list of AttentionModule
    heads : tuple of int
        Heads of each layer.
    passes : float
        Forward and backward passes of all examples so far.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        outputs: Outputs,
        loss: LossName,
        seed: int = 0,
    ):
        check_model(model)
        check_batches(batches)
        check_function("outputs", outputs, "which gives outputs of a batch and their targets")
        seed = check_seed(seed)
        if loss not in ("squared", "cross-entropy"):
            raise ValueError(f'loss must be "squared" or "cross-entropy", but is {loss!r}')
        self._model, self._outputs, self._loss = model, outputs, loss
        self._generator = torch.Generator().manual_seed(seed)
        self._batches = list(with_own_function(model, outputs, batches))
        if not self._batches:
            raise ValueError("batches must hold at least one batch")
        self.layers = attention_modules(model)
        refuse_shared_weights(model, self.layers)
        self._compared = ComparedLayers()
        self._batch_passes, self._is_checked = 0, False
        self._relations = dict[tuple[int, ...], Relation]()  # by sequences for each row
        self.heads = tuple(attention.heads for attention in self.layers)
        self._has_half_weights = is_half(*(weight.dtype for weight in model.parameters()))

    @property
    def passes(self) -> float:
        """Forward and backward passes of all examples so far."""
        return self._batch_passes / len(self._batches)

    def losses(self, gains: np.ndarray) -> np.ndarray:
        """Losses (P,) of all rows of outputs at gains (ΣH_ℓ,)."""
        losses = []
        for batch in self._batches:
            with self._gains(gains):
                outputs, targets, _ = self._run_outputs(batch)
            losses.append(_host_losses(outputs, targets))
        return np.concatenate(losses)

    def loss(self, gains: np.ndarray) -> float:
        """Mean loss at gains (ΣH_ℓ,)."""
        return float(self.losses(gains).mean())

    def slope(self, gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (P,) of all rows at gains (ΣH_ℓ,), and the gradient (ΣH_ℓ,) of their mean."""
        losses, gradient = [], np.zeros(len(gains))
        for batch in self._batches:
            with self._gains(gains, with_gradients=True) as running:
                outputs, targets, _ = self._run_outputs(batch)
                factors = factors_by_layer(running, self.layers)
                check_kept(outputs, "outputs")
                check_leaves(factors, self.layers)
                values = outputs.detach()
                slopes = derivatives(
                    outputs,
                    factors,
                    loss_slopes(values, targets).to(outputs),
                    name="outputs",
                    keeps_graph=False,
                )
                self._batch_passes += 1
            losses.append(_host_losses(values, targets))
            gradient += torch.cat([slope.double().sum(dim=0).cpu() for slope in slopes]).numpy()
        joined = np.concatenate(losses)
        return joined, gradient / len(joined)

    def form(self, gains: np.ndarray) -> LossForm:
        """Loss to second order about gains (ΣH_ℓ,)."""
        parts = [FormSums(gains, self._loss) for _ in range(min(_PARTS, len(self._batches)))]
        examples: list[tuple[int, np.ndarray]] = []
        for part, batch in zip(cycle(parts), self._batches):
            with self._gains(gains, with_gradients=True) as running:
                outputs, targets, dtype = self._run_outputs(batch)
                factors = factors_by_layer(running, self.layers)
                check_kept(outputs, "outputs")
                check_leaves(factors, self.layers)
                sequences = min(len(factors[0]), len(outputs))
                # differences of outputs in half precision, by weights or autocast, are noise
                is_rounded = is_half(dtype, *(layer.dtype for layer in running))
                sizes = (outputs, factors, len(gains), not (is_rounded or self._has_half_weights))
                related = likely_relation(len(outputs), [len(factor) for factor in factors])
                method = _method(*sizes, related)
                if method != "differences":  # which take the batch as a whole
                    likely, related = related, self._relation(outputs, factors)
                    method = method if related == likely else _method(*sizes, related)
                if method == "outputs":
                    gradient, form = _by_outputs(outputs, targets, factors)
                    self._batch_passes += outputs.shape[1]
                elif method == "directions":
                    gradient, form = _by_directions(
                        outputs, targets, factors, self._generator, related == "examples"
                    )
                    self._batch_passes += DIRECTIONS + 1
            outputs = outputs.detach()  # without what the backward passes of this batch kept
            if method == "differences":
                gradient, form = self._by_differences(batch, gains, outputs, targets)
            examples.append((sequences, targets.cpu().numpy()))
            part.add(outputs, targets, gradient, form)
        if not self._is_checked:
            self._is_checked = True
            _warn_of_examples(examples, sum(self.heads))
        sums = FormSums(gains, self._loss)
        for part in parts:
            sums.include(part)
        return replace(sums.result(), parts=tuple(part.result() for part in parts))

    def _gains(
        self, gains: np.ndarray, with_gradients: bool = False
    ) -> AbstractContextManager[list[ScaledLayer]]:
        return with_gains(self._model, self.layers, gains, self._compared, with_gradients)

    def _run_outputs(self, batch: Any) -> tuple[Tensor, Tensor, torch.dtype]:
        """Outputs (B, C); targets (B, C), or (B,) of classes; and the precision of outputs."""
        self._batch_passes += 1
        given = self._outputs(batch)
        outputs, targets = checked_outputs(given, self._loss)
        return outputs, targets, given[0].dtype

    def _relation(self, outputs: Tensor, factors: Sequence[Tensor]) -> Relation:
        """Relation of outputs to examples, told by derivatives of the first batch of its shapes."""
        rows, sequences = len(outputs), [len(factor) for factor in factors]
        likely = likely_relation(rows, sequences)
        if min(rows, max(sequences)) == 1:  # one example, which has no others
            return likely
        shapes = tuple(count // rows for count in sequences)
        if shapes not in self._relations:
            self._relations[shapes], passes = relation(outputs, factors)
            self._batch_passes += passes
        return self._relations[shapes]

    def _by_differences(
        self, batch: Any, gains: np.ndarray, outputs: Tensor, targets: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (H,) and form (H, H) of a batch by central differences in every gain."""
        slopes = outputs.new_zeros((*outputs.shape, len(gains)))
        for head in range(len(gains)):
            moved = []
            for step in (_STEP, -_STEP):
                changed = gains.copy()
                changed[head] += step
                with self._gains(changed):
                    moved.append(self._run_outputs(batch)[0])
            slopes[..., head] = (moved[0] - moved[1]) / (2 * _STEP)
        return _products(outputs, targets, slopes)


@contextmanager
def with_gains(
    model: nn.Module,
    layers: Sequence[AttentionModule],
    gains: np.ndarray,
    compared: ComparedLayers,
    with_gradients: bool = False,
) -> Iterator[list[ScaledLayer]]:
    """Evaluate a model with gains (ΣH_ℓ,) in front of its heads, see :func:`scale_heads`.

    With gradients, they are taken by the gains alone.
    """
    by_layer = np.split(gains, np.cumsum([attention.heads for attention in layers])[:-1])
    with ExitStack() as stack:
        stack.enter_context(open_to_observation(model))
        if with_gradients:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(without_parameter_gradients(model))
        yield stack.enter_context(
            scale_heads(layers, by_layer, compared, with_gradients=with_gradients)
        )


def _method(
    outputs: Tensor, factors: Sequence[Tensor], heads: int, is_precise: bool, related: Relation
) -> str:
    """Cheapest way to the derivatives: ``outputs``, ``directions`` or ``differences``."""
    exact = {}  # passes beside the first
    if related == "examples":
        exact["outputs"] = outputs.shape[1]
    fits = outputs.numel() * sum(factor.shape[1] for factor in factors) <= _LARGEST_JACOBIAN
    if is_precise and fits:
        exact["differences"] = 2 * heads
    # a random form serves less well: for half of the passes or less
    directions = DIRECTIONS + 1
    if related != "batch" and 2 * directions <= min(exact.values(), default=2 * directions):
        return "directions"
    if not exact and not is_precise:
        raise CaptureError(
            f"attention runs on {max(map(len, factors))} sequences, and {len(outputs)} rows of "
            "outputs depend on several of them each, as in a contrastive loss or for windows of "
            "an image. Derivatives are then differences, too coarse in half precision; convert the "
            "model, model.float(), and leave autocast"
        )
    return min(exact, key=exact.__getitem__) if exact else "differences"


def _host_losses(outputs: Tensor, targets: Tensor) -> np.ndarray:
    return loss_values(outputs, targets).detach().cpu().double().numpy()


def _slopes(
    outputs: Tensor, directions: Tensor, factors: Sequence[Tensor], rows: int | None
) -> Tensor:
    """Derivatives (B, H) of the sum of outputs times directions by the gains of every example.

    ``rows`` is the number of examples, of several windows each, or None for a row of each sequence.
    """
    slopes = derivatives(outputs, factors, directions.to(outputs), name="outputs")
    by_sequence = [slope.cpu().double() for slope in slopes]
    if rows is not None:
        by_sequence = [slope.unflatten(0, (rows, -1)).sum(dim=1) for slope in by_sequence]
    return torch.cat(by_sequence, dim=1)


def _by_outputs(
    outputs: Tensor, targets: Tensor, factors: Sequence[Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    # examples do not interact, so that a gain of one example moves its outputs alone
    rows = len(outputs)
    units = torch.eye(outputs.shape[1]).to(outputs)
    slopes = torch.stack(
        [_slopes(outputs, unit.expand_as(outputs), factors, rows) for unit in units], dim=1
    )
    return _products(outputs.detach().cpu(), targets.cpu(), slopes)


def _by_directions(
    outputs: Tensor,
    targets: Tensor,
    factors: Sequence[Tensor],
    generator: torch.Generator,
    is_by_example: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and form of a batch, the form as a mean over random directions v of its outputs.

    The mean of v vᵀ is the curvature B of the loss. Directions of the rows of a sequence are
    independent, so that the products between rows are 0 in the mean.
    """
    values, rows = outputs.detach(), len(outputs) if is_by_example else None
    is_squared = targets.ndim == 2
    chances = torch.empty(0) if is_squared else probabilities(values)

    def toward(classes: Tensor) -> Tensor:
        """Derivatives (B, H) of the cross-entropy of these classes by the gains."""
        # in place: arrays of the logits' size are the largest of a decoder
        chosen = (torch.arange(len(classes)), classes)
        before = chances[chosen]
        chances[chosen] = before - 1
        by_gain = _slopes(outputs, chances, factors, rows)
        chances[chosen] = before
        return by_gain

    def draw_classes() -> Tensor:
        """Classes (B,) of the model's own probabilities."""
        parts = chances.split(max(1, MANY_OUTPUTS // chances.shape[1]))
        return torch.cat([torch.multinomial(p.cpu(), 1, generator=generator)[:, 0] for p in parts])

    by_gain = (
        _slopes(outputs, loss_slopes(values, targets), factors, rows)
        if is_squared
        else toward(targets)
    )
    gradient = by_gain.sum(dim=0)
    form = torch.zeros((len(gradient),) * 2, dtype=torch.float64)
    for _ in range(DIRECTIONS):
        if is_squared:
            signs = torch.randint(0, 2, values.shape, generator=generator)
            directions = 2**0.5 * (2 * signs - 1).to(values)
            by_gain = _slopes(outputs, directions, factors, rows)
        else:
            by_gain = toward(draw_classes().to(values.device))
        form += by_gain.T @ by_gain / DIRECTIONS
    return gradient.numpy(), form.numpy()


def _products(outputs: Tensor, targets: Tensor, slopes: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sums Jᵀ ∂ℓ/∂z, (H,), and Jᵀ B J, (H, H), of derivatives J (B, C, H)."""
    gradient = (loss_slopes(outputs, targets)[..., None] * slopes).sum(dim=(0, 1))
    form = matmul(slopes.flatten(0, 1).T, apply_curvature(outputs, targets, slopes).flatten(0, 1))
    return gradient.cpu().numpy(), form.cpu().numpy()


def _warn_of_examples(batches: Sequence[tuple[int, np.ndarray]], heads: int) -> None:
    """Warn if the examples are few for a choice among heads, or of some classes mainly."""
    sequences = sum(count for count, _ in batches)
    targets = np.concatenate([targets for _, targets in batches])
    # of several batches each is held out in turn, which tells more than a number
    if len(batches) == 1 and sequences < _FEW_SEQUENCES and len(targets) < _FEW_ROWS:
        warnings.warn(
            f"{sequences} examples are few to weigh {heads} heads; give {_FEW_SEQUENCES} or more",
            RuntimeWarning,
            stacklevel=5,
        )
    if len(targets) > sequences:
        return  # tokens, whose classes are never balanced
    if targets.ndim == 1 or targets.shape[1] == 1:
        classes, counts = np.unique(targets.reshape(-1), return_counts=True)
        if 1 < len(classes) <= len(targets) / 10 and counts.min() < counts.mean() / 2:
            rarest = classes[counts.argmin()]
            warnings.warn(
                f"only {counts.min()} of {len(targets)} examples have the target {rarest:g}; "
                "balance the classes, or gains are fitted to the others",
                RuntimeWarning,
                stacklevel=5,
            )
        if len(classes) == 1 and len(targets) > 1:
            warnings.warn(
                f"all examples have the target {classes[0]:g}; give examples of every class",
                RuntimeWarning,
                stacklevel=5,
            )
