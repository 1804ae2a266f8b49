"""The energy as GPyTorch has it: the marginal likelihood of a Gaussian process of many kernels.

The kernel is a sum over pairs of paths with weights U = BBᵀ, and B is learned. The entropy, which
makes the order parameters of a network of finite width, has no counterpart there.
"""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import torch


class _PathsKernel(gpytorch.kernels.Kernel):
    """Φ (BBᵀ ⊗ 1) Φ'ᵀ of features (P, n·N_0)."""

    def __init__(self, factor: np.ndarray):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.as_tensor(factor))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, **_) -> torch.Tensor:
        mixed = self._mixed(x1)
        mixed_2 = mixed if x1 is x2 or torch.equal(x1, x2) else self._mixed(x2)
        return mixed @ mixed_2.mT

    def _mixed(self, features: torch.Tensor) -> torch.Tensor:
        by_path = features.reshape(len(features), len(self.factor), -1)
        return (self.factor.mT @ by_path).reshape(len(features), -1)


class _Process(gpytorch.models.ExactGP):
    def __init__(self, features, labels, likelihood, factor):
        super().__init__(features, labels, likelihood)
        self.kernel = _PathsKernel(factor)

    def forward(self, features):
        mean = torch.zeros(len(features), dtype=features.dtype)
        return gpytorch.distributions.MultivariateNormal(mean, self.kernel(features))


class MarginalLikelihood:
    """Energy and its gradient with respect to B.

    Parameters
    ----------
    features : array, shape (P, n, N_0)
        Scaled features Φ.
    labels : array, shape (P,)
    factor : array, shape (n, n)
        Lower triangular B.
    temperature : float
        Variance T of the noise.
    """

    def __init__(
        self, features: np.ndarray, labels: np.ndarray, factor: np.ndarray, temperature: float
    ):
        rows = torch.as_tensor(features).reshape(len(features), -1)
        targets = torch.as_tensor(labels).reshape(-1)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = temperature
        likelihood.requires_grad_(False)
        self._process = _Process(rows, targets, likelihood, factor).double().train()
        self._likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, self._process)
        self._rows, self._targets = rows, targets

    def __call__(self) -> tuple[float, np.ndarray]:
        self._process.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):  # factorised, as ours
            mean = self._likelihood(self._process(self._rows), self._targets)
        energy = -2 * len(self._targets) * mean - len(self._targets) * math.log(2 * math.pi)
        energy.backward()
        return energy.item(), self._process.kernel.factor.grad.numpy()
