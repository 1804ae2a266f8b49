"""Orders in which heads of a model are removed: scores, searches and the form in the gains.

An order is a function of the examples, which returns the heads that go at each count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

import pathkernel as pk
from benchmarks.heads.importances import (
    UntracedError,
    magnitude_importances,
    taylor_importances,
)
from benchmarks.heads.models import Batch, HeadModel
from benchmarks.heads.trials import Gained, Trials, counted_passes
from pathkernel_models.state import open_to_observation
from pathkernel_models.switching import factors_by_layer
from pathkernel_models.watching import Observation
from pathkernel_pruning.heads.evaluated_scores import score_by_evaluation
from pathkernel_pruning.heads.head_game import HeadGame
from pathkernel_pruning.heads.heads import removal_order
from pathkernel_pruning.heads.removal_games import sampled_shapley
from pathkernel_pruning.live.evaluations import Evaluations

REFERENCE = "greedy by trial"
SHAPLEY_ORDERS = 4
RANDOM_ORDERS = 5
GATE_STEPS, GATE_RATE = 100, 0.05  # of Adam on learned gates


@dataclass(frozen=True, eq=False)
class Drawn:
    """A model with one draw of validation examples."""

    gained: Gained
    batches: list[Batch]
    counts: tuple[int, ...]
    seed: int

    @property
    def head_model(self) -> HeadModel:
        """The model, its outputs and its loss."""
        return self.gained.head_model


@dataclass(frozen=True, eq=False)
class Removed:
    """Heads that go at some number of removals, as positions, and the gains of the rest if any.

    ``passes`` and ``seconds`` are what this number of removals took, if it was searched by itself.
    """

    heads: list[int]
    gains: np.ndarray | None = None
    passes: float | None = None
    seconds: float | None = None


Order = Callable[[Drawn], Mapping[int, list[Removed]]]
"""Returns, for every count, the heads that go; several where an order is drawn at random."""


class NotDefinedError(Exception):
    """An order is not defined for a model; the message says why."""


def _by_scores(scores: Sequence[float] | np.ndarray, drawn: Drawn) -> dict[int, list[Removed]]:
    order = removal_order(np.asarray(scores), drawn.gained.per_layer, keeps_layers=False).tolist()
    return {count: [Removed(order[:count])] for count in drawn.counts}


def _aligned(scores: xr.DataArray, drawn: Drawn) -> np.ndarray:
    """Scores in the order of the heads' axis."""
    labels = [f"{layer}-{number}" for layer, number in drawn.gained.heads]
    return scores.sel(head=labels).values


def _gradient(drawn: Drawn, *, normalised: bool) -> Mapping[int, list[Removed]]:
    """Mean |∂L/∂m|; by layer, divided by its norm over the heads of a layer (Michel et al.)."""
    scores = pk.gradient_scores(
        drawn.head_model.model, drawn.batches, drawn.head_model.losses, normalised=normalised
    )
    return _by_scores(_aligned(scores, drawn), drawn)


def _fisher(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """Mean of (∂L/∂m)² over examples."""
    gained, total, examples = drawn.gained, 0.0, 0
    for batch in drawn.batches:
        with gained.gains(np.ones(len(gained.heads)), with_gradients=True) as running:
            losses = drawn.head_model.losses(batch)
            factors = factors_by_layer(running, gained.layers)
            slopes = torch.autograd.grad(losses.sum(), factors)
        total = total + torch.cat(slopes, dim=1).double().square().sum(dim=0).numpy()
        examples += len(losses)
    return _by_scores(total / examples, drawn)


def _curvature(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """The form once: −g + ½ G_hh."""
    model = drawn.head_model
    scores = pk.curvature_scores(model.model, drawn.batches, model.outputs, loss=model.loss)
    return _by_scores(_aligned(scores, drawn), drawn)


def _chosen(drawn: Drawn, **options: Any) -> Mapping[int, list[Removed]]:
    """``choose_heads``, a call for each count."""
    model, removed = drawn.head_model, {}
    for count in drawn.counts:
        started = time.process_time()
        with counted_passes(model.model) as passes:
            choice = pk.choose_heads(
                model.model, drawn.batches, model.outputs, count, loss=model.loss, **options
            )
        seconds = time.process_time() - started
        heads = [drawn.gained.heads.index(head) for head in choice.heads]
        gains = _aligned(choice.gains, drawn) if options.get("refit", True) else None
        removed[count] = [Removed(heads, gains, passes.of(len(drawn.batches)), seconds)]
    return removed


def _learned_gates(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """Gains trained by Adam on the loss with a growing penalty on their sum; small ones go first.

    The penalty grows to twice the mean derivative of the loss by a gain, which switches most off.
    """
    gained, batches = drawn.gained, drawn.batches
    gates = torch.ones(len(gained.heads), dtype=torch.float64, requires_grad=True)
    adam, shuffled = torch.optim.Adam([gates], lr=GATE_RATE), np.random.default_rng(drawn.seed)
    penalty, mean_gates = 0.0, torch.zeros_like(gates)
    for step in range(GATE_STEPS):
        batch = batches[shuffled.integers(len(batches))]
        with gained.gains(gates.detach().numpy(), with_gradients=True) as running:
            loss = drawn.head_model.losses(batch).mean()
            slopes = torch.autograd.grad(loss, factors_by_layer(running, gained.layers))
        slope = torch.cat([slope.double().sum(dim=0) for slope in slopes])
        penalty = penalty or 2 * float(slope.abs().mean())
        gates.grad = slope + penalty * (step + 1) / GATE_STEPS
        adam.step()
        with torch.no_grad():
            gates.clamp_(min=0.0)  # as a proximal step does: a penalty moves no gate below 0
        mean_gates += gates.detach() / GATE_STEPS
    # of the mean along the way, since several gates end at 0: those that vanish early go first
    return _by_scores(mean_gates.numpy(), drawn)


def _ablation(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """Rise of the loss without each head."""
    scores = score_by_evaluation(_game(drawn))["ablation"]
    return _by_scores(_aligned(scores.mean("draw"), drawn), drawn)


def _shapley(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """Shapley values of the loss from a few orders of arrival."""
    game, generator = _game(drawn), np.random.default_rng(drawn.seed)
    values, _ = sampled_shapley(game.worth, game.players, SHAPLEY_ORDERS, generator)
    return _by_scores(values, drawn)


def _game(drawn: Drawn) -> HeadGame:
    model = drawn.head_model
    evaluator = Evaluations(model.model, lambda _: model.measure(drawn.batches)["loss"])
    return HeadGame(evaluator, "validation")


def _greedy(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """At every step the head whose removal, tried, leaves the smallest loss."""
    trials, off, tried, removed = Trials(drawn.gained, drawn.batches), list[int](), 0, {}
    started = time.process_time()
    while len(off) < max(drawn.counts):
        trials.start(off)
        left = [head for head in range(len(drawn.gained.heads)) if head not in off]
        losses = [trials.loss(off, head) for head in left]
        off.append(left[int(np.argmin(losses))])
        tried += len(left)
        if len(off) in drawn.counts:
            seconds = time.process_time() - started
            removed[len(off)] = [Removed(list(off), None, float(tried), seconds)]
    return removed


def _magnitude(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """Frobenius norm of W_O W_V."""
    batch = {name: values for name, values in drawn.batches[0].items() if name != "labels"}
    return _by_scores(_aligned(pk.magnitude_scores(drawn.head_model.model, batch), drawn), drawn)


def _torch_pruning(
    drawn: Drawn, *, importances: Callable[[Gained, Sequence[Batch]], np.ndarray]
) -> Mapping[int, list[Removed]]:
    """Importances of :mod:`benchmarks.heads.importances`."""
    try:
        return _by_scores(importances(drawn.gained, drawn.batches), drawn)
    except UntracedError as error:
        raise NotDefinedError(str(error)) from error


def _entropy(drawn: Drawn) -> Mapping[int, list[Removed]]:
    """Heads of the largest mean entropy of attention go first."""
    totals = [np.zeros(heads) for heads in drawn.gained.per_layer]

    def add(total: np.ndarray, rows: torch.Tensor | None, observed: Observation) -> None:
        entropy = torch.special.entr(observed.attention).sum(dim=-1)  # (batch, H, query)
        if rows is not None:  # queries that are padding say nothing
            entropy = entropy * rows[:, None]
        total += entropy.double().sum(dim=(0, 2)).numpy()

    for batch in drawn.batches:
        with ExitStack() as watching:
            watching.enter_context(open_to_observation(drawn.head_model.model))
            for attention, total in zip(drawn.gained.layers, totals):
                note = partial(add, total, batch.get("attention_mask"))
                watching.enter_context(attention.watch(note))
            drawn.head_model.outputs(batch)
    return _by_scores(-np.concatenate(totals), drawn)


def _random(drawn: Drawn) -> Mapping[int, list[Removed]]:
    generator = np.random.default_rng(drawn.seed)
    orders = [generator.permutation(len(drawn.gained.heads)).tolist() for _ in range(RANDOM_ORDERS)]
    return {count: [Removed(order[:count]) for order in orders] for count in drawn.counts}


def _theory(drawn: Drawn, *, width: float) -> Mapping[int, list[Removed]]:
    """Sum of |U| over pairs of heads, at a minimum of the theory."""
    model = drawn.head_model
    if model.theory is None:
        raise NotDefinedError("the theory needs a target for each example, not for each token")
    captured = pk.capture(model.model, _labelled(drawn), **model.theory).scale_tokens(30)
    scores = [minimum.head_scores for minimum in _minima(captured, width)]
    return _by_scores(_aligned(captured.by_head(np.mean(scores, axis=0)), drawn), drawn)


def _tangent(drawn: Drawn, *, width: float | None) -> Mapping[int, list[Removed]]:
    """Contributions of heads in the tangent picture; without a width their mean kernels alone."""
    model = drawn.head_model
    if model.theory is None:
        raise NotDefinedError("the theory needs a target for each example, not for each token")
    try:
        captured = pk.capture(model.model, drawn.batches, picture="tangent", outputs=model.outputs)
    except pk.CaptureError as error:  # layers of several widths
        raise NotDefinedError(str(error)) from error
    captured = captured.scale_tokens(1)
    if width is None:
        scores = [np.diag(pk.Problem(captured.xi, captured.labels).mean_kernels)]
    else:
        scores = [minimum.head_contributions for minimum in _minima(captured, width)]
    return _by_scores(_aligned(captured.by_head(np.mean(scores, axis=0)), drawn), drawn)


def _minima(captured: pk.Captured, width: float) -> Iterator[pk.Solution]:
    """Minima of the theory for every class against the others, as outputs of their own."""
    labels = captured.labels.reshape(len(captured.labels), -1)
    for column in labels.T:
        problem = pk.Problem(captured.xi, column)
        yield pk.minimise_action(problem, pk.Network(captured.heads, width), temperature=0.1)


def _labelled(drawn: Drawn) -> list[tuple[Mapping[str, torch.Tensor], torch.Tensor]]:
    """Batches with targets ±1, or a column for every class against the others."""
    labelled = []
    for batch in drawn.batches:
        inputs, labels = dict(batch), batch["labels"].double()
        del inputs["labels"]
        if drawn.head_model.loss == "cross-entropy":
            classes = drawn.head_model.model.config.num_labels
            labels = torch.eye(classes, dtype=torch.float64)[batch["labels"]] - 1 / classes
        labelled.append((inputs, labels))
    return labelled


ORDERS: dict[str, Order] = {
    REFERENCE: _greedy,
    "choose_heads": _chosen,
    "no exchanges": partial(_chosen, proposals=0),
    "no refit along": partial(_chosen, refit=False),
    "form once": _curvature,
    "raw gradient": partial(_gradient, normalised=False),
    "gradient by layer": partial(_gradient, normalised=True),
    "Fisher": _fisher,
    "learned gates": _learned_gates,
    "ablation": _ablation,
    "Shapley": _shapley,
    "magnitude": _magnitude,
    "Torch-Pruning Taylor": partial(_torch_pruning, importances=taylor_importances),
    "Torch-Pruning magnitude": partial(_torch_pruning, importances=magnitude_importances),
    "attention entropy": _entropy,
    "theory, states": partial(_theory, width=10.0),
    "theory, tangent": partial(_tangent, width=10.0),
    "tangent kernel": partial(_tangent, width=None),
    "random": _random,
}
"""Orders by name; the first is what others are compared with."""

FINE_TUNED = (
    REFERENCE,
    "choose_heads",
    "Torch-Pruning Taylor",
    "Torch-Pruning magnitude",
    "gradient by layer",
    "random",
)
"""Orders that are measured after an epoch of fine-tuning, too."""
