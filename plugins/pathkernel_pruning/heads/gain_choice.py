"""Choose heads to remove by the form of the loss in their gains; refit the gains of the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import chain, product
from typing import Protocol

import numpy as np

from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_pruning.heads.head_groups import HeadGroups
from pathkernel_pruning.heads.loss_form import LossForm

PART = 4
"""The form is computed again when one of so many heads that are left has gone."""
PRIOR_VARIANCE = 0.3
"""Default variance of the prior of a gain; values from 0.1 to 1 serve alike."""
TRIALS = 3
"""Default number of heads that are tried at every renewal beyond those that go."""
STEPS = 2
"""Linearised steps of a refit; thirty of Adam on the loss itself find no better gains."""

MOST_UNITS = 1024
"""Units of a layer up to which the best one is found exactly."""

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


Unit = tuple[int, ...]
"""Heads that go together, as positions on the axis of heads."""


@dataclass(frozen=True, eq=False)
class GainChoice:
    """Heads of a network that can go, and gains of all.

    Attributes
    ----------
    units : list of tuple of int
        Heads that go together, in the order of their removal.
    expected : list of float
        Mean loss by the form after the removal of each unit.
    renewed : list of bool
        Whether the form was computed again before the removal of each unit.
    gains : array, shape (ΣH_ℓ,)
        0 of the heads that go.
    whole, loss : float
        Mean loss of the whole network, and with these gains by the form.
    """

    units: list[Unit]
    expected: list[float]
    renewed: list[bool]
    gains: np.ndarray
    whole: float
    loss: float

    @property
    def heads(self) -> list[int]:
        """Positions on the axis of heads, in the order of their removal."""
        return list(chain.from_iterable(self.units))


def refit_remaining_gains(
    network: GainNetwork,
    gains: np.ndarray,
    prior_variance: float,
    steps: int = STEPS,
    report: Report = silent,
) -> LossForm:
    """Refit all gains that are not 0, in linearised steps, from the gains given.

    Returns the loss to second order about the gains so found. ``report`` is called with a Progress
    before every step. A step that makes the posterior density of the gains smaller is shortened, or
    left out.
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
    groups: HeadGroups | None = None,
    report: Report = silent,
) -> GainChoice:
    """Choose heads to remove one after another, those first that raise the loss least.

    A head is chosen by the form, which is computed again whenever a quarter of those that are left
    has gone. Between two computations some candidates are switched off singly, and their measured
    rises replace those of the form, whose entries between heads stay: the form underrates large
    rises. Where several heads can only go together, such units are tried and chosen, by their rise
    for each head.

    Parameters
    ----------
    network : GainNetwork
    count : int
        Number of heads to remove, which ``groups`` can lose.
    trials : int
        Candidates that are tried beyond those that are to go; 0 for the form alone.
    refits : bool
        Whether the gains that are left are refitted, as heads go and at the end.
    prior_variance : float
        Variance of the prior of a gain.
    groups : HeadGroups, optional
        Which heads can go together; by default any can go.
    report : callable
        Called with a Progress before every computation of the form.
    """
    groups = HeadGroups(network.heads, network.heads) if groups is None else groups
    gains, whole = np.ones(sum(network.heads)), np.nan
    units, expected, renewed = list[Unit](), list[float](), list[bool]()
    while (missing := count - sum(map(len, units))) > 0:
        report(Progress(count - missing, count, "loss to second order in the gains of heads"))
        form = network.form(gains)
        whole = form.loss if not units else whole
        if refits and units:
            # these derivatives tell those at the refitted gains, too: one pass, which confirms them
            form = _take_step(network, form, prior_variance)
        size = -(-int(np.count_nonzero(gains)) // PART)
        size = missing if missing <= 1.5 * size else size
        chosen, sums = _cheapest(form, groups, size, missing, further=trials)
        if trials:
            measured = {
                unit: network.loss(_without(form.gains, unit)) - form.loss for unit in chosen
            }
            chosen, sums = _cheapest_tried(form, groups, measured, size, missing)
        gains = _without(form.gains, chain.from_iterable(chosen))
        units += chosen
        expected += [form.loss + rise for rise in sums]
        renewed += [not number for number in range(len(chosen))]
    if not refits:
        return GainChoice(units, expected, renewed, gains, whole, expected[-1])
    # these gains have been refitted before: one step more, unless they have become a burden
    plain = (gains != 0).astype(float)
    is_worse = network.loss(gains) > network.loss(plain)
    start, steps = (plain, STEPS) if is_worse else (gains, 1)
    form = refit_remaining_gains(network, start, prior_variance, steps=steps, report=report)
    return GainChoice(units, expected, renewed, form.gains, whole, form.loss)


def _without(gains: np.ndarray, heads: Iterable[int]) -> np.ndarray:
    left = gains.copy()
    left[list(heads)] = 0.0
    return left


def _cheapest(
    form: LossForm, groups: HeadGroups, size: int, missing: int, *, further: int
) -> tuple[list[Unit], list[float]]:
    """Units that raise the loss least for each head, one after another, and its rise after each.

    They have ``size`` heads or a few more, such that of ``missing`` heads the others can go, too;
    then so many ``further`` units.
    """
    pairs, increments, present = _pairs(form), form.rises(), form.gains != 0
    chosen, sums, removed, total = list[Unit](), list[float](), 0, 0.0
    while removed < size or further > 0:
        goal = missing - removed if removed < size else None
        further -= removed >= size
        alone = np.flatnonzero(groups.single_heads(present)).tolist()
        rises: dict[Unit, float] = {(head,): float(increments[head]) for head in alone}
        rises |= dict(cheapest_unit(slots, increments, pairs) for slots in groups.blocks(present))
        unit = _first_allowed(rises, groups, present, goal)
        if unit is None:
            break
        chosen.append(unit)
        total += rises[unit]
        sums.append(total)
        removed += len(unit)
        increments = increments + pairs[:, unit].sum(axis=1)
        present[list(unit)] = False
    return chosen, sums


def _cheapest_tried(
    form: LossForm, groups: HeadGroups, measured: dict[Unit, float], size: int, missing: int
) -> tuple[list[Unit], list[float]]:
    """The same as :func:`_cheapest` among units whose rises, one by one, were measured."""
    units, present, rises = list(measured), form.gains != 0, dict(measured)
    members = np.zeros((len(units), len(present)))
    for member, unit in zip(members, units):
        member[list(unit)] = 1.0
    # of m_h m_h' G_hh' only the sum over those chosen is needed
    between = members @ _pairs(form) @ members.T
    chosen, sums, removed, total = list[Unit](), list[float](), 0, 0.0
    while removed < size:
        unit = _first_allowed(rises, groups, present, missing - removed)
        if unit is None:
            break
        chosen.append(unit)
        total += rises.pop(unit)
        sums.append(total)
        removed += len(unit)
        added = dict(zip(units, between[:, units.index(unit)].tolist()))
        rises = {other: rise + added[other] for other, rise in rises.items()}
        present[list(unit)] = False
    return chosen, sums


def _pairs(form: LossForm) -> np.ndarray:
    """Parts m_h m_h' G_hh' of the loss, (H, H)."""
    return form.gains[:, None] * form.form * form.gains


def _first_allowed(
    rises: Mapping[Unit, float], groups: HeadGroups, present: np.ndarray, goal: int | None
) -> Unit | None:
    """The unit of the least rise for each head that can go; with it ``goal`` heads, if any."""
    by_rise = [(rise / len(unit), unit) for unit, rise in rises.items()]
    heapify(by_rise)  # of which mostly the first is needed
    while by_rise:
        _, unit = heappop(by_rise)
        left = present.copy()
        left[list(unit)] = False
        if not (present[list(unit)].all() and groups.allows(left)):
            continue
        if goal is None or groups.can_lose(left, goal - len(unit)):
            return unit
    return None


def cheapest_unit(
    slots: Sequence[list[int]], increments: np.ndarray, pairs: np.ndarray
) -> tuple[Unit, float]:
    """Find the unit, one head of each slot, that raises the loss least, and this rise.

    Exact up to ``MOST_UNITS`` units; of more, no other head of any one slot is better.

    Parameters
    ----------
    slots : sequence of list of int
    increments : array, shape (H,)
        Rise of the loss without each head.
    pairs : array, shape (H, H)
        Further rise without two of them, 0 or not on the diagonal, which is not read.
    """
    if math.prod(map(len, slots)) <= MOST_UNITS:
        units = np.array(list(product(*slots)))
        between = pairs[units[:, :, None], units[:, None, :]]
        between = between.sum(axis=(1, 2)) - pairs[units, units].sum(axis=1)
        rises = increments[units].sum(axis=1) + between / 2
        best = int(np.argmin(rises))
        return tuple(units[best].tolist()), float(rises[best])
    unit = np.array([slot[int(np.argmin(increments[slot]))] for slot in slots])
    is_better = True
    while is_better:  # every change lowers the rise, so that no unit comes back
        is_better = False
        for place, slot in enumerate(slots):
            others = np.delete(unit, place)
            rises = increments[slot] + pairs[np.ix_(slot, others)].sum(axis=1)
            if rises.min() < rises[slot.index(unit[place])]:
                unit[place], is_better = slot[int(np.argmin(rises))], True
    between = pairs[np.ix_(unit, unit)]
    rise = increments[unit].sum() + (between.sum() - np.trace(between)) / 2
    return tuple(unit.tolist()), float(rise)
