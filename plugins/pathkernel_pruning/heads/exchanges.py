"""Exchange heads that are off for heads that are on, where that lowers what a set of heads costs.

A form of the loss proposes exchanges, and the network is run at the few that it ranks first. Where
gains are refitted, a fall of the cost must be larger than its standard error over the examples: a
smaller one is as likely theirs as the network's. Gains that a form predicts for another set can be
far from its best ones; so each set is run at the gains before the exchange, too, and the sets that
come nearest are refitted before the search ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_pruning.heads.gain_network import GainNetwork
from pathkernel_pruning.heads.head_groups import HeadGroups, Unit
from pathkernel_pruning.heads.loss_form import LossForm
from pathkernel_pruning.heads.set_costs import Criterion, Exchange, best_exchanges

PROPOSALS = 6
"""Default number of exchanges at which the network is run before the form is computed again."""

_NEAREST = 2  # sets that are refitted where no proposal serves
_MOST_REFITTED = 8  # sets in a search
_STEPS = 2  # of such a refit
_LEAST = 1e-9  # fall of a cost that is none, relative to its size


@dataclass(frozen=True, eq=False)
class Point:
    """Losses (P,) of all examples at gains (H,), and what these cost."""

    gains: np.ndarray
    losses: np.ndarray
    cost: float

    @property
    def left(self) -> np.ndarray:
        """Heads that are on, bool (H,)."""
        return self.gains != 0


class ExchangeSearch:
    """Exchanges of heads in a network, from some gains on.

    Parameters
    ----------
    network : GainNetwork
    groups : HeadGroups
        Which heads can be off together.
    criterion : Criterion
        What a set of heads costs.
    form : LossForm
        Loss about the gains from which the search starts.
    proposals : int
        Exchanges at which the network is run before the form is computed again.
    budget : float
        Passes of the network, counted by itself, after which the search ends.
    report : callable
        Called with a Progress before every round.

    Attributes
    ----------
    point : Point
        Best gains so far.
    form : LossForm
        Loss about them.
    exchanges : list of Exchange
        Those made.
    """

    def __init__(
        self,
        network: GainNetwork,
        groups: HeadGroups,
        criterion: Criterion,
        form: LossForm,
        *,
        proposals: int = PROPOSALS,
        budget: float = math.inf,
        report: Report = silent,
    ):
        self._network, self._groups, self._criterion = network, groups, criterion
        self._proposals, self._budget, self._report = proposals, budget, report
        self._scale = form
        self._tried = dict[bytes, tuple[Point, Exchange]]()  # by the heads that are on
        self.form, self.exchanges = form, list[Exchange]()
        self.point = self._measure(form.gains)

    @property
    def is_spent(self) -> bool:
        """Whether the budget of passes is used up."""
        return self._network.passes >= self._budget

    def run(self, *, renews: bool = True) -> None:
        """Exchange heads until no exchange helps, or the budget is used up.

        ``renews`` says whether the form is computed again where it proposes none that helps.
        """
        is_fresh, refitted = False, set[bytes]()
        while not self.is_spent:
            self._tell()
            if self._make_best_proposal():
                is_fresh = False
            elif not renews:
                return
            elif not is_fresh:
                self._renew()
                is_fresh = True
            elif self._make_nearest(refitted):
                is_fresh = False
            else:
                return

    def _tell(self) -> None:
        made, passes = len(self.exchanges), self._network.passes
        text = f"loss {self.point.losses.mean():.4g}, {made} exchanges, {passes:.0f} passes"
        self._report(Progress(made, made + 1, text))

    def _make_best_proposal(self) -> bool:
        """Run the network at the exchanges that the form proposes; make the best if it serves."""
        best: tuple[Point, Exchange] | None = None
        for exchange, left in self._propose():
            points = [self._measure(gains) for gains in self._guesses(exchange, left)]
            tried = min(points, key=lambda point: point.cost), exchange
            self._tried[left.tobytes()] = tried
            if best is None or tried[0].cost < best[0].cost:
                best = tried
            if self.is_spent:
                break
        return best is not None and self._make(*best)

    def _propose(self) -> Iterator[tuple[Exchange, np.ndarray]]:
        """Exchanges that the form ranks first and that were not tried, and what is on after."""
        before, count = self.point.left, 0
        for exchange in best_exchanges(
            self._criterion, self.form, before, self._groups, self._proposals + len(self._tried)
        ):
            left = before.copy()
            left[list(exchange.coming)], left[list(exchange.going)] = True, False
            if left.tobytes() not in self._tried and count < self._proposals:
                count += 1
                yield exchange, left

    def _guesses(self, exchange: Exchange, left: np.ndarray) -> list[np.ndarray]:
        """Gains that may be near the best of a set: by the form, and those before the exchange."""
        predicted = self._criterion.gains(self.form, left, 0.0)
        kept = np.where(left, self.point.gains, 0.0)
        kept[list(exchange.coming)] = 1.0
        return [predicted] if np.array_equal(predicted, kept) else [predicted, kept]

    def _renew(self) -> None:
        """Compute the form, and refit the gains of the present set by it."""
        form = self._network.form(self.point.gains)
        self.form = replace(form, temperature=self._scale.temperature)
        point = self._step(self.point, self.form, self.point.left)
        if point is not None:
            self._tried.clear()
            self.point, self.form = point, self.form.move_to(point.gains)

    def _make_nearest(self, refitted: set[bytes]) -> bool:
        """Refit the sets that came nearest, and make the first exchange that then serves."""
        costs = {key: point.cost for key, (point, _) in self._tried.items() if key not in refitted}
        number = min(_NEAREST, _MOST_REFITTED - len(refitted))
        for key in (
            sorted(costs, key=costs.__getitem__)[:number] if self._criterion.dampings else ()
        ):
            refitted.add(key)
            if self._make(self._refit(self._tried[key][0]), self._tried[key][1]):
                return True
            if self.is_spent:
                break
        return False

    def _refit(self, point: Point) -> Point:
        """Gains of a set after a few steps by the network's own gradient and the form."""
        for _ in range(_STEPS):
            losses, gradient = self._network.slope(point.gains)
            loss = float(losses.mean())
            form = replace(self.form, gains=point.gains, loss=loss, gradient=gradient)
            after = self._step(point, form, point.left)
            if after is None:
                break
            point = after
        return point

    def _step(self, point: Point, form: LossForm, left: np.ndarray) -> Point | None:
        """The first of ever shorter steps of the gains that lowers the cost, if one does."""
        for damping in self._criterion.dampings:
            after = self._measure(self._criterion.gains(form, left, damping))
            if after.cost < point.cost:
                return after
        return None

    def _make(self, point: Point, exchange: Exchange) -> bool:
        """Go to a point if it costs less for sure, and move the form along."""
        change = point.losses - self.point.losses
        error = self._scale.weight * float(change.std()) / len(change) ** 0.5
        least = max(_LEAST * abs(self.point.cost), self._criterion.errors * error)
        if self.point.cost - point.cost <= least:
            return False
        self.point, self.form = point, self.form.move_to(point.gains)
        self.exchanges.append(exchange)
        self._tried.clear()
        return True

    def _measure(self, gains: np.ndarray) -> Point:
        losses = self._network.losses(gains)
        cost = self._criterion.measured(self._scale, float(losses.mean()), gains)
        return Point(gains, losses, cost)


def exchanged_units(units: list[Unit], exchanges: list[Exchange]) -> list[Unit]:
    """Units of heads that are off after exchanges: those that go take the place of those back."""
    for exchange in exchanges:
        coming = {*exchange.coming}
        place = next(number for number, unit in enumerate(units) if coming & {*unit})
        rest = [tuple(head for head in unit if head not in coming) for unit in units]
        rest[place] = (*rest[place], *exchange.going)
        units = [unit for unit in rest if unit]
    return units
