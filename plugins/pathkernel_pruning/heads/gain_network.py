"""A network with gains in front of its heads, and their refit by the form of its loss."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pathkernel_core.system.progress import Progress, Report, silent
from pathkernel_pruning.heads.loss_form import LossForm

PRIOR_VARIANCE = 0.3
"""Default variance of the prior of a gain; values from 0.1 to 1 serve alike."""
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

    def losses(self, gains: np.ndarray) -> np.ndarray:
        """Losses (P,) of all examples at gains (ΣH_ℓ,)."""

    def slope(self, gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (P,) at gains (ΣH_ℓ,), and the gradient (ΣH_ℓ,) of their mean."""

    @property
    def passes(self) -> float:
        """Forward and backward passes of all examples so far."""


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
        form = take_step(network, network.form(gains), prior_variance)
        gains = form.gains
    return form


def take_step(network: GainNetwork, form: LossForm, prior_variance: float) -> LossForm:
    """The form about refitted gains, after one linearised step that the network itself confirms."""
    # where a softmax is saturated its curvature is next to 0, and the linearised step far too long
    cost = form.cost((1 + ROUNDING) * form.loss, form.gains, prior_variance)
    for damping in DAMPING:
        gains = form.refit_gains(form.gains != 0, prior_variance, damping)
        if form.cost(network.loss(gains), gains, prior_variance) < cost:
            return form.move_to(gains)
    return form
