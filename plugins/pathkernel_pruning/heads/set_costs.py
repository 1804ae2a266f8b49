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
    """Cost of a set, and of those with one unit less or more."""

    @property
    def whole(self) -> float:
        """Cost of the whole set, less a constant of the form."""

    def singles(self) -> np.ndarray:
        """Rise of the cost by the removal of every head, (H,), infinite for those that are off."""

    def unit(self, unit: Unit) -> float:
        """Rise of the cost by the removal of several heads together."""

    def with_unit(self, unit: Unit) -> RemovalCosts:
        """Costs of the removal of units from the set with heads that are off."""


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
        return _Quadratic(form.move_to(left.astype(float)))


@dataclass(frozen=True)
class _Quadratic:
    form: LossForm  # about gains of 1 of the heads that are left

    @property
    def whole(self) -> float:
        return self.form.loss

    def singles(self) -> np.ndarray:
        return np.where(self.form.gains != 0, self.form.rises(), np.inf)

    def unit(self, unit: Unit) -> float:
        between = self.form.form[np.ix_(unit, unit)]
        rises = self.form.rises()[list(unit)]
        return float(rises.sum() + (between.sum() - np.trace(between)) / 2)

    def with_unit(self, unit: Unit) -> _Quadratic:
        gains = self.form.gains.copy()
        gains[list(unit)] = 1.0
        return _Quadratic(self.form.move_to(gains))


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

        With w = P/T, A = w G + 1/τ and b = w (G m − g) + 1/τ at the gains m of the form, the cost
        of gains x, 0 off the set, is ½ xᵀ A x − bᵀ x and a constant; at its minimum heads B have
        the gains x_B, and without them it is higher by ½ x_Bᵀ ((A⁻¹)_BB)⁻¹ x_B.
        """
        on = np.flatnonzero(left)
        precision = form.weight * form.form
        precision[np.diag_indices_from(precision)] += 1 / self.prior_variance
        slope = form.weight * (form.form @ form.gains - form.gradient) + 1 / self.prior_variance
        no_gains = np.zeros(len(left))
        constant = form.cost(form.move_to(no_gains).loss, no_gains, self.prior_variance)
        empty_set = _Gaussian(no_gains, constant, precision, np.zeros_like(precision), slope)
        return empty_set.with_unit(tuple(on.tolist()))


@dataclass(frozen=True)
class _Gaussian:
    """Least cost over the gains of a set: these, A, the inverse of its part, and b − A x."""

    gains: np.ndarray
    whole: float
    precision: np.ndarray
    covariance: np.ndarray
    slope: np.ndarray

    def singles(self) -> np.ndarray:
        variances = np.diag(self.covariance)
        left = variances > 0
        return np.where(left, self.gains**2 / (2 * np.where(left, variances, 1.0)), np.inf)

    def unit(self, unit: Unit) -> float:
        gains = self.gains[list(unit)]
        return float(gains @ np.linalg.solve(self.covariance[np.ix_(unit, unit)], gains)) / 2

    def with_unit(self, unit: Unit) -> _Gaussian:
        """As many new rows of the covariance as the unit has heads, from the old ones."""
        new = list(unit)
        # gains of the minimum move by so much as those of the unit do
        moves = -self.covariance @ self.precision[:, new]
        moves[new] = np.eye(len(new))
        pulls = self.precision @ moves
        variances = np.linalg.inv(pulls[new])
        step = variances @ self.slope[new]
        return _Gaussian(
            self.gains + moves @ step,
            self.whole - float(self.slope[new] @ step) / 2,
            self.precision,
            self.covariance + moves @ variances @ moves.T,
            self.slope - pulls @ step,
        )


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
    before, ranked = criterion.removals(form, left), list[Exchange]()
    for coming, singles, units in groups.exchanges(left):
        costs = before.with_unit(coming)
        change = costs.whole - before.whole
        rises = np.where(singles, costs.singles(), np.inf) if singles.any() else singles
        for head in np.argsort(rises, kind="stable")[: min(count, np.count_nonzero(singles))]:
            ranked.append(Exchange(change + float(rises[head]), coming, (int(head),)))
        ranked += [Exchange(change + costs.unit(going), coming, going) for going in units]
    return sorted(ranked)[:count]
