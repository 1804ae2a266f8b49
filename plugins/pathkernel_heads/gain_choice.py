"""Choose heads to remove by the form of the loss in their gains; refit the gains of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pathkernel_core.progress import Progress, Report, silent
from pathkernel_heads.loss_form import LossForm

RENEWALS = 8
"""Number of times that the form is computed anew until all heads are off."""
STEPS = 2
"""Linearised steps of a refit; thirty of Adam on the loss itself find no better gains."""


class GainNetwork(Protocol):
    """A network on some examples, with a gain in front of the output of every head."""

    heads: tuple[int, ...]
    """Heads H_1 … H_L of each layer."""

    def form(self, gains: np.ndarray) -> LossForm:
        """Loss to second order about gains (ΣH_ℓ,)."""

    def loss(self, gains: np.ndarray) -> float:
        """Mean loss at gains (ΣH_ℓ,)."""


@dataclass(frozen=True, eq=False)
class Removal:
    """Heads chosen together, between two computations of the form.

    Attributes
    ----------
    heads : list of int
        Positions on the axis of heads, in the order of their removal.
    expected : list of float
        Mean loss after the removal of each by the form.
    measured : float
        Mean loss without them before any refit; NaN if it was not measured.
    gains : array, shape (ΣH_ℓ,)
        Gains afterwards.
    """

    heads: list[int]
    expected: list[float]
    measured: float
    gains: np.ndarray


def refit(
    network: GainNetwork, gains: np.ndarray, prior_variance: float, steps: int = STEPS
) -> np.ndarray:
    """Refit all gains that are not 0, in linearised steps, from the gains given, (ΣH_ℓ,)."""
    for _ in range(steps):
        gains = network.form(gains).refitted(gains != 0, prior_variance)
    return gains


def choose(
    network: GainNetwork,
    count: int,
    *,
    trials: int,
    refits: bool,
    prior_variance: float,
    keeps_layers: bool = False,
    report: Report = silent,
) -> list[Removal]:
    """Choose heads to remove one after another, those first that raise the loss least.

    A head is chosen by the form, which is computed anew for every eighth of the heads. Between two
    computations some candidates are switched off singly, and their measured rises replace those of
    the form, whose entries between heads stay: the form underrates large rises.

    Parameters
    ----------
    network : GainNetwork
    count : int
        Number of heads to remove.
    trials : int
        Candidates that are tried beyond those that are to go; 0 for the form alone.
    refits : bool
        Whether the gains that are left are refitted as heads go.
    prior_variance : float
        Variance of the prior of a gain.
    keeps_layers : bool
        Whether every layer keeps a head.
    report : callable
        Called with a Progress before every computation of the form.
    """
    total = sum(network.heads)
    layers = np.repeat(np.arange(len(network.heads)), network.heads)
    block = -(-total // RENEWALS)
    gains, removals, form = np.ones(total), list[Removal](), None
    done = 0
    while done < count:
        report(Progress(done, count, "heads"))
        form = network.form(gains)
        if refits and done:  # the derivatives serve for both: the form itself tells those after it
            form = form.moved(form.refitted(gains != 0, prior_variance))
            gains = form.gains
        size = min(block, count - done)
        rises = form.rises()
        may_go = gains != 0
        if trials:
            order, _ = _cheapest(form, rises, may_go, size + trials, layers, keeps_layers)
            start = network.loss(gains) if refits and done else form.loss
            may_go = np.zeros(total, dtype=bool)
            for head in order:
                rises[head] = network.loss(_without(gains, [head])) - start
                may_go[head] = True
        heads, expected = _cheapest(form, rises, may_go, size, layers, keeps_layers)
        gains = _without(gains, heads)
        removals.append(Removal(heads, [form.loss + rise for rise in expected], np.nan, gains))
        done += len(heads)
    return removals


def _without(gains: np.ndarray, heads: list[int]) -> np.ndarray:
    left = gains.copy()
    left[heads] = 0.0
    return left


def _cheapest(
    form: LossForm,
    rises: np.ndarray,
    may_go: np.ndarray,
    count: int,
    layers: np.ndarray,
    keeps_layers: bool,
) -> tuple[list[int], list[float]]:
    """Heads that raise the loss least, one after another, and its rise after each."""
    # of m_h m_h' G_hh' only the sum over those chosen is needed
    pairs = form.gains[:, None] * form.form * form.gains
    left = np.bincount(layers, weights=form.gains != 0)
    increments = np.where(may_go, rises, np.inf)
    chosen, total, sums = list[int](), 0.0, list[float]()
    while len(chosen) < count:
        allowed = np.where(left[layers] > keeps_layers, increments, np.inf)
        head = int(np.argmin(allowed))
        if not np.isfinite(allowed[head]):
            break
        chosen.append(head)
        total += float(increments[head])
        sums.append(total)
        increments = increments + pairs[:, head]
        increments[head] = np.inf
        left[layers[head]] -= 1
    return chosen, sums
