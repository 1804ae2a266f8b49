"""Refits where a softmax is saturated, so that its curvature tells nothing of long steps."""

import numpy as np
import pytest

from pathkernel_pruning.heads.gain_choice import choose_heads_by_gains
from pathkernel_pruning.heads.gain_network import refit_remaining_gains
from pathkernel_pruning.heads.loss_form import FormSums, apply_curvature, loss_slopes, loss_values


class Logits:
    """Logits that are a product of two layers of gains and large contributions of their heads."""

    heads = (2, 2)

    def __init__(self, seed):
        generator = np.random.default_rng(seed)
        self.targets = generator.integers(0, 3, 60)
        right = np.eye(3)[self.targets]
        noise = generator.normal(size=(4, 60, 3))
        self.parts = 14 * (0.5 * right + 0.25 * noise)  # paths (1, 1), (1, 2), (2, 1), (2, 2)

    def _outputs(self, gains):
        return np.einsum("p,pxc->xc", np.outer(gains[:2], gains[2:]).reshape(-1), self.parts)

    def loss(self, gains):
        return float(loss_values(self._outputs(gains), self.targets).mean())

    def form(self, gains):
        steps = 1e-6 * np.eye(4)
        slopes = np.stack(
            [(self._outputs(gains + s) - self._outputs(gains - s)) / 2e-6 for s in steps], axis=-1
        )
        outputs, sums = self._outputs(gains), FormSums(gains, "cross-entropy")
        gradient = (loss_slopes(outputs, self.targets)[..., None] * slopes).sum(axis=(0, 1))
        curvature = apply_curvature(outputs, self.targets, slopes).reshape(-1, 4)
        sums.add(outputs, self.targets, gradient, slopes.reshape(-1, 4).T @ curvature)
        return sums.result()


@pytest.mark.parametrize("seed", range(5))
def test_no_refit_raises_the_loss(seed):
    network = Logits(seed)
    whole = np.ones(4)
    for off in range(4):
        gains = np.where(np.arange(4) == off, 0.0, whole)
        refitted = refit_remaining_gains(network, gains, 0.3).gains
        assert network.loss(refitted) <= 1.03 * network.loss(gains)
    choice = choose_heads_by_gains(network, 1, trials=0, refits=True, prior_variance=0.3)
    plain = np.where(np.isin(np.arange(4), choice.heads), 0.0, 1.0)
    assert network.loss(choice.gains) <= 1.03 * network.loss(plain)


def test_an_unchecked_step_would():
    """The networks above are such that a linearised step alone raises the loss."""
    rises = []
    for seed in range(5):
        network = Logits(seed)
        for off in range(4):
            gains = np.where(np.arange(4) == off, 0.0, 1.0)
            form = network.form(gains)
            stepped = form.refit_gains(gains != 0, 0.3)
            rises.append(network.loss(stepped) > 1.03 * network.loss(gains))
    assert any(rises)
