"""Choose heads to remove by the form of the loss in their gains, in stages, then exchange some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import chain, product

import numpy as np

from pathkernel_core.paths.heads import every_head, head_label
from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_pruning.heads.exchanges import ExchangeSearch, exchanged_units
from pathkernel_pruning.heads.gain_network import (
    STEPS,
    GainNetwork,
    refit_remaining_gains,
    take_step,
)
from pathkernel_pruning.heads.head_groups import HeadGroups, Unit
from pathkernel_pruning.heads.loss_form import LossForm
from pathkernel_pruning.heads.set_costs import LossCriterion, PosteriorCriterion

PART = 4
"""The form is computed again when one of so many heads that are left has gone."""
TRIALS = 3
"""Heads that are tried at every renewal beyond those that go."""
MOST_UNITS = 1024
"""Units of a layer up to which the best one is found exactly."""


@dataclass(frozen=True, eq=False)
class GainChoice:
    """Heads of a network that can go, and gains of all.

    Attributes
    ----------
    units : list of tuple of int
        Heads that go together, in the order of their removal; those that came by an exchange are
        where the heads were that came back.
    expected : list of float
        Mean loss by the form after the removal of each unit; NaN of what came by an exchange, or
        was off from the beginning.
    renewed : list of bool
        Whether the form was computed again before the removal of each unit.
    gains : array, shape (ΣH_ℓ,)
        0 of the heads that go.
    whole, loss : float
        Mean loss of the whole network, and with these gains by the form.
    form : LossForm
        The last one that was computed, about gains near these.
    exchanges : int
        Number of exchanges made.
    is_complete : bool
        Whether the search has ended by itself, and not by its budget.
    """

    units: list[Unit]
    expected: list[float]
    renewed: list[bool]
    gains: np.ndarray
    whole: float
    loss: float
    form: LossForm
    exchanges: int = 0
    is_complete: bool = True

    @property
    def heads(self) -> list[int]:
        """Positions on the axis of heads, in the order of their removal."""
        return list(chain.from_iterable(self.units))


def choose_heads_by_gains(
    network: GainNetwork,
    count: int,
    *,
    trials: int,
    refits: bool,
    prior_variance: float,
    groups: HeadGroups | None = None,
    start: Sequence[Unit] = (),
    proposals: int = 0,
    budget: float = math.inf,
    report: Report = silent,
) -> GainChoice:
    """Choose heads to remove one after another, those first that raise the loss least.

    A head is chosen by the form, which is computed again whenever a quarter of those that are left
    has gone. Between two computations some candidates are switched off singly, and their measured
    rises replace those of the form, whose entries between heads stay: the form underrates large
    rises. Where several heads can only go together, such units are tried and chosen, by their rise
    for each head. Then heads are exchanged, see :mod:`pathkernel_pruning.heads.exchanges`.

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
    start : sequence of tuple of int
        Units that are off from the beginning, at most ``count`` heads, without which ``groups`` can
        lose the others.
    proposals : int
        Exchanges at which the network is run before the form is computed again; 0 for none.
    budget : float
        Passes of the network, after which the last form decides what goes.
    report : callable
        Called with a Progress before every computation of the form.

    Raises
    ------
    KeyboardInterrupt
        With a note of the best choice so far, if there is one.
    """
    groups = HeadGroups(network.heads, network.heads) if groups is None else groups
    prior = prior_variance if refits else None
    search = _Search(network, count, trials, groups, prior, proposals, budget, report)
    try:
        search.begin(start)
        search.remove_in_stages()
        search.finish()
    except KeyboardInterrupt as interrupt:
        if search.form is not None:
            choice = search.complete()
            axis = every_head(network.heads)
            labels = ", ".join(head_label(axis[head]) for head in choice.heads)
            interrupt.add_note(f"best choice so far, of {count} heads: {labels}")
        raise
    return search.complete()


class _Search:
    """State of a choice of heads: what is off, the gains, and the last form."""

    def __init__(
        self,
        network: GainNetwork,
        count: int,
        trials: int,
        groups: HeadGroups,
        prior_variance: float | None,
        proposals: int,
        budget: float,
        report: Report,
    ):
        self.network, self.count, self.trials, self.groups = network, count, trials, groups
        self.prior_variance, self.proposals = prior_variance, proposals
        self.budget, self.report = budget, report
        self.form: LossForm | None = None
        self.gains, self.whole, self.exchanges = np.ones(sum(network.heads)), np.nan, 0
        self.units, self.expected, self.renewed = list[Unit](), list[float](), list[bool]()

    @property
    def missing(self) -> int:
        """Number of heads that have still to go."""
        return self.count - sum(map(len, self.units))

    @property
    def is_spent(self) -> bool:
        """Whether the budget of passes is used up."""
        return math.isfinite(self.budget) and self.network.passes >= self.budget

    def begin(self, units: Sequence[Unit]) -> None:
        """Switch units off that others have chosen."""
        if not units:
            return
        self.whole = self.network.loss(self.gains)
        self.gains = _without(self.gains, chain.from_iterable(units))
        self.units = list(units)
        self.expected, self.renewed = [np.nan] * len(units), [False] * len(units)
        if self.missing <= 0:  # no stage computes a form
            form = self.network.form(self.gains)
            if self.prior_variance is not None:
                form = take_step(self.network, form, self.prior_variance)
            self.form, self.gains = form, form.gains

    def remove_in_stages(self) -> None:
        """Remove heads, a quarter of those that are left for each form."""
        while self.missing > 0 and not (self.form is not None and self.is_spent):
            done = self.count - self.missing
            text = "loss to second order in the gains of heads"
            self.report(Progress(done, self.count, text))
            form = self.network.form(self.gains)
            if self.form is None and not self.units:
                self.whole = form.loss
            elif self.prior_variance is not None and not self.is_spent:
                # these derivatives tell those at the refitted gains, too: one pass confirms them
                form = take_step(self.network, form, self.prior_variance)
            self.form = form
            size = -(-int(np.count_nonzero(self.gains)) // PART)
            size = self.missing if self.missing <= 1.5 * size else size
            chosen, sums = _cheapest(form, self.groups, size, self.missing, further=self.trials)
            if self.trials and not self.is_spent:
                measured = {
                    unit: self.network.loss(_without(form.gains, unit)) - form.loss
                    for unit in chosen
                }
                chosen, sums = _cheapest_tried(form, self.groups, measured, size, self.missing)
            elif self.trials:
                chosen, sums = _cheapest(form, self.groups, size, self.missing, further=0)
            self._remove(form, chosen, sums)
            if self.prior_variance is None and self.missing > 0:
                self._exchange(renews=False)

    def _remove(self, form: LossForm, chosen: list[Unit], sums: list[float]) -> None:
        self.gains = _without(form.gains, chain.from_iterable(chosen))
        self.units += chosen
        self.expected += [form.loss + rise for rise in sums]
        self.renewed += [not number for number in range(len(chosen))]
        self.form = form.move_to(self.gains)

    def finish(self) -> None:
        """Refit the gains, if they are to be, and exchange heads while that helps."""
        if self.missing > 0 or self.is_spent:
            return
        if self.prior_variance is not None:
            # these gains have been refitted before: one step more, unless they are a burden now
            plain = (self.gains != 0).astype(float)
            is_worse = self.network.loss(self.gains) > self.network.loss(plain)
            start, steps = (plain, STEPS) if is_worse else (self.gains, 1)
            self.form = refit_remaining_gains(
                self.network, start, self.prior_variance, steps=steps, report=self.report
            )
            self.gains = self.form.gains
        self._exchange(renews=True)

    def _exchange(self, *, renews: bool) -> None:
        if not self.proposals or self.is_spent or self.form is None:
            return
        prior = self.prior_variance
        search = ExchangeSearch(
            self.network,
            self.groups,
            LossCriterion() if prior is None else PosteriorCriterion(prior),
            self.form,
            proposals=self.proposals,
            budget=self.budget,
            report=self.report,
        )
        try:
            search.run(renews=renews)
        finally:  # an interrupted search has found something, too
            self.gains, self.form = search.point.gains, search.form
            self.exchanges += len(search.exchanges)
            known = dict(zip(self.units, zip(self.expected, self.renewed)))
            self.units = exchanged_units(self.units, search.exchanges)
            told = [known.get(unit, (np.nan, False)) for unit in self.units]
            self.expected, self.renewed = map(list, zip(*told))

    def complete(self) -> GainChoice:
        """The choice as it is, heads that are missing chosen by the last form."""
        assert self.form is not None
        is_complete = self.missing <= 0 and not self.is_spent
        if self.missing > 0:
            form = self.form.move_to(self.gains)
            chosen, sums = _cheapest(form, self.groups, self.missing, self.missing, further=0)
            self._remove(form, chosen, sums)
        form = self.form
        return GainChoice(
            self.units,
            self.expected,
            self.renewed,
            self.gains,
            self.whole,
            form.loss,
            form,
            self.exchanges,
            is_complete,
        )


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
