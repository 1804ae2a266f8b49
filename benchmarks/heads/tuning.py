"""One epoch of fine-tuning of a model whose heads have gains, some of them 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmarks.heads.trials import Gained

RATE = 3e-4  # of Adam


@contextmanager
def fine_tuned(gained: Gained, gains: np.ndarray, seed: int) -> Iterator[None]:
    """Train all weights for one epoch of the training examples, inside the context.

    Gains (ΣH_ℓ,) stay, and so do heads that are off. The weights are restored afterwards.
    """
    model, before = gained.model, {}
    try:
        for name, weight in model.named_parameters():
            before[name] = weight.detach().clone(), weight.requires_grad
            weight.requires_grad_(True)
        _train(gained, gains, seed)
        for weight in model.parameters():
            weight.requires_grad_(False)
        yield
    finally:
        for name, (values, requires_grad) in before.items():
            weight = model.get_parameter(name)
            weight.requires_grad_(requires_grad)
            weight.grad = None
            weight.data.copy_(values)


def _train(gained: Gained, gains: np.ndarray, seed: int) -> None:
    adam = torch.optim.Adam(gained.model.parameters(), lr=RATE)
    batches = gained.head_model.batches("train")
    with gained.gains(gains), torch.enable_grad():
        for number in np.random.default_rng(seed).permutation(len(batches)):
            adam.zero_grad()
            gained.head_model.losses(batches[number]).mean().backward()
            adam.step()
