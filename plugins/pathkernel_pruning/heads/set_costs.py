"""Costs of sets of heads by a form of the loss, with refitted gains or without.

A *criterion* says what a set of heads that are left costs: the loss with gains of 1, or −ln of the
posterior density of refitted gains. A form predicts it for every set: taking a unit of heads out,
or exchanging two units, changes a quadratic function of the gains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pathkernel_pruning.heads.gain_network import DAMPING
from pathkernel_pruning.heads.head_groups import HeadGroups, Unit
from pathkernel_pruning.heads.loss_form import LossForm


class Criterion(Protocol):
    """What a set of heads costs, measured and by a form."""

    def measured(self, form: LossForm, loss: float, gains: np.ndarray) -> float:
        """Cost of gains (H,) at which the network has a mean loss."""

    @property
    def dampings(self) -> tuple[float, ...]:
        """Damping of a step of the gains, tried until the loss confirms it."""

    @property
    def errors(self) -> float:
        """Standard errors over the examples by which a cost must fall."""

    def gains(self, form: LossForm, left: np.ndarray, damping: float) -> np.ndarray:
        """Gains (H,) of the heads that are left, bool (H,), by a form; 0 of the others."""

    def removals(self, form: LossForm, left: np.ndarray) -> RemovalCosts:
        """Costs of the removal of units from a set, bool (H,), by a form."""


class RemovalCosts(Protocol):
    """Cost of a set, and of those with one unit less."""

    @property
    def whole(self) -> float:
        """Cost of the whole set, less a constant of the form."""

    def singles(self) -> np.ndarray:
        """Rise of the cost by the removal of every head, (H,), infinite for those that are off."""

    def unit(self, unit: Unit) -> float:
        """Rise of the cost by the removal of several heads together."""


@dataclass(frozen=True)
class LossCriterion:
    """The mean loss, with gains of 1 of all heads that are left."""

    def measured(self, form: LossForm, loss: float, gains: np.ndarray) -> float:
        """The loss itself."""
        return loss

    dampings = ()
    errors = 0.0  # no gains are fitted to the examples

    def gains(self, form: LossForm, left: np.ndarray, damping: float) -> np.ndarray:
        """Ones and zeros."""
        return left.astype(float)

    def removals(self, form: LossForm, left: np.ndarray) -> RemovalCosts:
        """Rises of the second-order loss."""
        moved = form.move_to(left.astype(float))
        return _Quadratic(left, moved.loss, moved.rises(), moved.form)


@dataclass(frozen=True)
class _Quadratic:
    left: np.ndarray
    whole: float
    rises: np.ndarray
    pairs: np.ndarray

    def singles(self) -> np.ndarray:
        return np.where(self.left, self.rises, np.inf)

    def unit(self, unit: Unit) -> float:
        between = self.pairs[np.ix_(unit, unit)]
        return float(self.rises[list(unit)].sum() + (between.sum() - np.trace(between)) / 2)


@dataclass(frozen=True)
class PosteriorCriterion:
    """−ln of the posterior density of the gains of the heads that are left, refitted.

    Parameters
    ----------
    prior_variance : float
        Variance τ of the prior of a gain about 1.
    """

    prior_variance: float
    errors = 1.0

    def measured(self, form: LossForm, loss: float, gains: np.ndarray) -> float:
        """Cost of gains, up to a constant of the network."""
        return form.cost(loss, gains, self.prior_variance)

    @property
    def dampings(self) -> tuple[float, ...]:
        """As of :func:`pathkernel_pruning.heads.gain_network.take_step`."""
        return DAMPING

    def gains(self, form: LossForm, left: np.ndarray, damping: float) -> np.ndarray:
        """Refitted gains, by a step of the linearised network."""
        moved = form.move_to(np.where(left, form.gains, 0.0))
        return moved.refit_gains(left, self.prior_variance, damping)

    def removals(self, form: LossForm, left: np.ndarray) -> RemovalCosts:
        """Rises of the cost, all other gains refitted after the removal.

        With w = P/T, A = w G + 1/τ and F = w g + (m − 1)/τ on the heads that are left, the cost is
        w ℓ + |m − 1|²/2τ − ½ Fᵀ A⁻¹ F; at its minimum heads B have the gains x_B, and without them
        it is higher by ½ x_Bᵀ ((A⁻¹)_BB)⁻¹ x_B.
        """
        form = form.move_to(np.where(left, form.gains, 0.0))
        weight, on = form.weight, np.flatnonzero(left)
        precision = weight * form.form[np.ix_(on, on)]
        precision[np.diag_indices_from(precision)] += 1 / self.prior_variance
        force = weight * form.gradient[on] + (form.gains[on] - 1) / self.prior_variance
        covariance = np.zeros_like(form.form)
        inverse = np.linalg.inv(precision)
        covariance[np.ix_(on, on)] = inverse
        step = -inverse @ force
        gains = np.zeros(len(left))
        gains[on] = form.gains[on] + step
        whole = form.cost(form.loss, form.gains, self.prior_variance) + float(force @ step) / 2
        return _Gaussian(left, whole, gains, covariance)


@dataclass(frozen=True)
class _Gaussian:
    left: np.ndarray
    whole: float
    gains: np.ndarray
    covariance: np.ndarray

    def singles(self) -> np.ndarray:
        variances = np.where(self.left, np.diag(self.covariance), 1.0)
        return np.where(self.left, self.gains**2 / (2 * variances), np.inf)

    def unit(self, unit: Unit) -> float:
        gains = self.gains[list(unit)]
        return float(gains @ np.linalg.solve(self.covariance[np.ix_(unit, unit)], gains)) / 2


class Exchange(NamedTuple):
    """Units of as many heads, one of which comes for the other, and the change of the cost."""

    change: float
    coming: Unit
    going: Unit


def best_exchanges(
    criterion: Criterion, form: LossForm, left: np.ndarray, groups: HeadGroups, count: int
) -> list[Exchange]:
    """Return the exchanges of units that lower the cost most by a form, the best first.

    Parameters
    ----------
    criterion : Criterion
    form : LossForm
    left : array of bool, shape (H,)
        Heads that are left.
    groups : HeadGroups
        Which units can come and go.
    count : int
        Number of exchanges.
    """
    before, ranked = criterion.removals(form, left).whole, list[Exchange]()
    for coming, singles, units in groups.exchanges(left):
        larger = left.copy()
        larger[list(coming)] = True
        costs = criterion.removals(form, larger)
        change = costs.whole - before
        rises = np.where(singles, costs.singles(), np.inf) if singles.any() else singles
        for head in np.argsort(rises, kind="stable")[: min(count, np.count_nonzero(singles))]:
            ranked.append(Exchange(change + float(rises[head]), coming, (int(head),)))
        ranked += [Exchange(change + costs.unit(going), coming, going) for going in units]
    return sorted(ranked)[:count]
