"""The mean loss of a network to second order in the gains of its heads.

A gain m_h, 1 in the whole network, multiplies what head h passes on. With J = ∂z/∂m the derivatives
of the outputs z of an example and B = ∂²ℓ/∂z² the curvature of its loss, the mean loss has

    gradient  g = mean Jᵀ ∂ℓ/∂z,        form  G = mean Jᵀ B J,

the Gauss-Newton form, positive semidefinite (section "Gains of heads" of docs/equations.md).
The entries of G between two heads tell what they share, which no score of single heads can.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import array_api_compat
import numpy as np

Array: TypeAlias = Any
LossName: TypeAlias = Literal["squared", "cross-entropy"]

_SMALLEST_NOISE = 0.05  # of the mean square of the targets


@dataclass(frozen=True, eq=False)
class LossForm:
    """A mean loss to second order in the gains of heads, about some gains.

    Attributes
    ----------
    gains : array, shape (H,)
        Gains about which the loss is expanded.
    loss : float
        Mean loss of the examples at these gains.
    gradient : array, shape (H,)
        Its derivatives by the gains.
    form : array, shape (H, H)
        Gauss-Newton form G.
    examples : int
        Number P of examples, rows of outputs.
    temperature : float
        Scale of the loss in the likelihood exp(−ℓ / temperature) of an example: twice the mean
        squared error of an output, or 1 for cross-entropy.
    """

    gains: np.ndarray
    loss: float
    gradient: np.ndarray
    form: np.ndarray
    examples: int
    temperature: float
    parts: tuple[LossForm, ...] = ()

    @property
    def weight(self) -> float:
        """Weight P/T of the mean loss in −ln of the likelihood."""
        return self.examples / self.temperature

    def rises(self) -> np.ndarray:
        """Rise of the loss with one head off, −m g + ½ m² G_hh, (H,)."""
        return -self.gains * self.gradient + 0.5 * self.gains**2 * np.diag(self.form)

    def rise(self, removed: np.ndarray) -> float:
        """Rise of the loss when the heads of a set, bool (H,), are switched off together."""
        step = np.where(removed, -self.gains, 0.0)
        return float(self.gradient @ step + 0.5 * step @ self.form @ step)

    def move_to(self, gains: np.ndarray) -> LossForm:
        """The same second-order loss about other gains, (H,)."""
        step = gains - self.gains
        loss = self.loss + float(self.gradient @ step + 0.5 * step @ self.form @ step)
        return replace(self, gains=gains, loss=loss, gradient=self.gradient + self.form @ step)

    def cost(self, loss: float, gains: np.ndarray, prior_variance: float) -> float:
        """−ln of the posterior density of gains (H,) with a mean loss, up to a constant."""
        prior = np.sum((gains - 1) ** 2) / (2 * prior_variance)
        return self.weight * loss + float(prior)

    def refit_gains(
        self, left: np.ndarray, prior_variance: float, damping: float = 0.0
    ) -> np.ndarray:
        """Posterior mean of the gains of the heads that are left, given the examples, (H,).

        The prior of a gain is normal about 1 with a variance τ; the posterior is that of the
        linearised network: (P G/T + 1/τ) δ = −P g/T − (m − 1)/τ, T the temperature of the loss.

        Parameters
        ----------
        left : array of bool, shape (H,)
            Heads whose gains are free; those of others stay.
        prior_variance : float
            Variance τ of the prior.
        damping : float
            Added curvature in units of 1/τ, for a shorter step (Levenberg).
        """
        precision = self.weight * self.form[np.ix_(left, left)]
        precision[np.diag_indices_from(precision)] += (1 + damping) / prior_variance
        force = self.weight * self.gradient[left] + (self.gains[left] - 1) / prior_variance
        gains = self.gains.copy()
        gains[left] -= np.linalg.solve(precision, force)
        return gains


def held_out_loss(form: LossForm, left: np.ndarray, prior_variance: float) -> float:
    """Mean loss of every part of the examples at gains refitted to the others; NaN for one part.

    In closed form, of the network linearised about the gains of the form: no pass is needed.

    Parameters
    ----------
    form : LossForm
        About refitted gains.
    left : array of bool, shape (H,)
        Heads whose gains are fitted.
    prior_variance : float
        Variance of the prior of a gain.
    """
    if len(form.parts) < 2:
        return np.nan
    total = 0.0
    for part in form.parts:
        part = part.move_to(form.gains)
        examples = form.examples - part.examples
        others = replace(
            form,
            gradient=(form.examples * form.gradient - part.examples * part.gradient) / examples,
            form=(form.examples * form.form - part.examples * part.form) / examples,
            examples=examples,
        )
        fitted = others.refit_gains(left, prior_variance)
        total += part.examples * part.move_to(fitted).loss
    return total / form.examples


class FormSums:
    """Sums over batches of examples, from which a form follows.

    Parameters
    ----------
    gains : array, shape (H,)
    loss : {"squared", "cross-entropy"}
        Loss of an example: the sum over outputs of squared errors, or −ln of the probability of
        its class.
    """

    def __init__(self, gains: np.ndarray, loss: LossName):
        self._gains, self._is_squared = gains, loss == "squared"
        self._loss = self._targets = 0.0
        self._gradient, self._form = np.zeros(len(gains)), np.zeros((len(gains),) * 2)
        self._rows = self._numbers = 0

    def add(self, outputs: Array, targets: Array, gradient: Array, form: Array) -> None:
        """Add a batch.

        Parameters
        ----------
        outputs : array, shape (B, C)
        targets : array, shape (B, C), or (B,) of classes
        gradient : array, shape (H,)
            Sum over examples of Jᵀ ∂ℓ/∂z.
        form : array, shape (H, H)
            Sum over examples of Jᵀ B J.
        """
        self._loss += float(loss_values(outputs, targets).sum())
        self._gradient += gradient
        self._form += form
        self._rows += outputs.shape[0]
        if self._is_squared:
            self._numbers += outputs.shape[0] * outputs.shape[1]
            self._targets += float((targets**2).sum())

    def include(self, other: FormSums) -> None:
        """Add all batches of other sums, about the same gains."""
        self._loss += other._loss
        self._gradient += other._gradient
        self._form += other._form
        self._rows += other._rows
        self._numbers += other._numbers
        self._targets += other._targets

    def result(self) -> LossForm:
        """The form of all batches."""
        temperature = 1.0
        if self._is_squared:
            # an error of next to none, such as of a network that fits all, would leave the prior
            # without any weight
            floor = _SMALLEST_NOISE * self._targets
            temperature = 2 * max(self._loss, floor, sys.float_info.min) / self._numbers
        return LossForm(
            self._gains,
            self._loss / self._rows,
            self._gradient / self._rows,
            self._form / self._rows,
            self._rows,
            temperature,
        )


def loss_values(outputs: Array, targets: Array) -> Array:
    """Losses (B,) of outputs (B, C); cross-entropy of classes (B,), squared of targets (B, C)."""
    if targets.ndim == 2:
        return ((outputs - targets) ** 2).sum(1)
    xp = array_api_compat.array_namespace(outputs)
    shifted = outputs - xp.max(outputs, axis=1, keepdims=True)
    chosen = xp.take_along_axis(shifted, targets[:, None], axis=1)[:, 0]
    return xp.log(xp.sum(xp.exp(shifted), axis=1)) - chosen


def loss_slopes(outputs: Array, targets: Array) -> Array:
    """Derivatives (B, C) of the losses by the outputs (B, C)."""
    if targets.ndim == 2:
        return 2 * (outputs - targets)
    xp = array_api_compat.array_namespace(outputs)
    classes = xp.arange(outputs.shape[1], device=array_api_compat.device(outputs))
    return probabilities(outputs) - xp.astype(targets[:, None] == classes, outputs.dtype)


def apply_curvature(outputs: Array, targets: Array, slopes: Array) -> Array:
    """Curvature B of the losses times derivatives J of the outputs, (B, C, H) both."""
    if targets.ndim == 2:
        return 2 * slopes
    chances = probabilities(outputs)[..., None]
    weighted = chances * slopes
    return weighted - chances * weighted.sum(1)[:, None]


def probabilities(outputs: Array) -> Array:
    """Softmax (B, C) of logits (B, C)."""
    xp = array_api_compat.array_namespace(outputs)
    raised = xp.exp(outputs - xp.max(outputs, axis=1, keepdims=True))
    return raised / xp.sum(raised, axis=1, keepdims=True)
