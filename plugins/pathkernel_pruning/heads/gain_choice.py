"""Choose heads to remove by the form of the loss in their gains; refit the gains of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_pruning.heads.loss_form import LossForm

PART = 4
"""The form is computed again when one of so many heads that are left has gone."""
PRIOR_VARIANCE = 0.3
"""Default variance of the prior of a gain; values from 0.1 to 1 serve alike."""
TRIALS = 3
"""Default number of heads that are tried at every renewal beyond those that go."""
STEPS = 2
"""Linearised steps of a refit; thirty of Adam on the loss itself find no better gains."""

DAMPING = (0.0, 10.0, 100.0, 1000.0)
"""Damping of a step, in units of the precision of the prior, tried until the loss confirms it."""

ROUNDING = 0.01
"""Relative rise of the loss by a step that is no rise: two digits of half precision."""


class GainNetwork(Protocol):
    """A network on some examples, with a gain in front of the output of every head."""

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads H_1 … H_L of each layer."""

    def form(self, gains: np.ndarray) -> LossForm:
        """Loss to second order about gains (ΣH_ℓ,)."""

    def loss(self, gains: np.ndarray) -> float:
        """Mean loss at gains (ΣH_ℓ,)."""


@dataclass(frozen=True, eq=False)
class GainChoice:
    """Heads of a network that can go, and gains of all.

    Attributes
    ----------
    heads : list of int
        Positions on the axis of heads, in the order of their removal.
    expected : list of float
        Mean loss by the form after the removal of each.
    renewed : list of bool
        Whether the form was computed again before the removal of each.
    gains : array, shape (ΣH_ℓ,)
        0 of the heads that go.
    whole, loss : float
        Mean loss of the whole network, and with these gains by the form.
    """

    heads: list[int]
    expected: list[float]
    renewed: list[bool]
    gains: np.ndarray
    whole: float
    loss: float


def refit_remaining_gains(
    network: GainNetwork,
    gains: np.ndarray,
    prior_variance: float,
    steps: int = STEPS,
    report: Report = silent,
) -> LossForm:
    """Refit all gains that are not 0, in linearised steps, from the gains given.

    Returns the loss to second order about the gains so found. ``report`` is called with a Progress
    before every step. A step that
    makes the posterior density of the gains smaller is shortened, or left out.
    """
    for step in range(steps):
        report(Progress(step, steps, "refitting gains"))
        form = _take_step(network, network.form(gains), prior_variance)
        gains = form.gains
    return form


def _take_step(network: GainNetwork, form: LossForm, prior_variance: float) -> LossForm:
    """The form about refitted gains, after one linearised step that the network itself confirms."""
    # where a softmax is saturated its curvature is next to 0, and the linearised step far too long
    cost = form.cost((1 + ROUNDING) * form.loss, form.gains, prior_variance)
    for damping in DAMPING:
        gains = form.refit_gains(form.gains != 0, prior_variance, damping)
        if form.cost(network.loss(gains), gains, prior_variance) < cost:
            return form.move_to(gains)
    return form


def choose_heads_by_gains(
    network: GainNetwork,
    count: int,
    *,
    trials: int,
    refits: bool,
    prior_variance: float,
    keeps_layers: bool = False,
    report: Report = silent,
) -> GainChoice:
    """Choose heads to remove one after another, those first that raise the loss least.

    A head is chosen by the form, which is computed again whenever a quarter of those that are left
    has gone. Between two computations some candidates are switched off singly, and their measured
    rises replace those of the form, whose entries between heads stay: the form underrates large
    rises.

    Parameters
    ----------
    network : GainNetwork
    count : int
        Number of heads to remove.
    trials : int
        Candidates that are tried beyond those that are to go; 0 for the form alone.
    refits : bool
        Whether the gains that are left are refitted, as heads go and at the end.
    prior_variance : float
        Variance of the prior of a gain.
    keeps_layers : bool
        Whether every layer keeps a head.
    report : callable
        Called with a Progress before every computation of the form.
    """
    total = sum(network.heads)
    layers = np.repeat(np.arange(len(network.heads)), network.heads)
    gains, whole = np.ones(total), np.nan
    heads, expected, renewed = list[int](), list[float](), list[bool]()
    while len(heads) < count:
        report(Progress(len(heads), count, "loss to second order in the gains of heads"))
        form = network.form(gains)
        whole = form.loss if not heads else whole
        if refits and heads:
            # these derivatives tell those at the refitted gains, too: one pass, which confirms them
            form = _take_step(network, form, prior_variance)
        size, missing = -(-int(np.count_nonzero(gains)) // PART), count - len(heads)
        size = missing if missing <= 1.5 * size else size
        rises, may_go = form.rises(), form.gains != 0
        if trials:
            candidates, _ = _cheapest(form, rises, may_go, size + trials, layers, keeps_layers)
            may_go = np.zeros(total, dtype=bool)
            may_go[candidates] = True
            for head in candidates:
                rises[head] = network.loss(_without(form.gains, [head])) - form.loss
        chosen, sums = _cheapest(form, rises, may_go, size, layers, keeps_layers)
        gains = _without(form.gains, chosen)
        heads += chosen
        expected += [form.loss + rise for rise in sums]
        renewed += [not number for number in range(len(chosen))]
    if not refits:
        return GainChoice(heads, expected, renewed, gains, whole, expected[-1])
    # these gains have been refitted before: one step more, unless they have become a burden
    plain = (gains != 0).astype(float)
    is_worse = network.loss(gains) > network.loss(plain)
    start, steps = (plain, STEPS) if is_worse else (gains, 1)
    form = refit_remaining_gains(network, start, prior_variance, steps=steps, report=report)
    return GainChoice(heads, expected, renewed, form.gains, whole, form.loss)


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
