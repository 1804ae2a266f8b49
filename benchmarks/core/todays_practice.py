"""Today's practice: the order parameters trained by Adam through automatic differentiation.

A rendering of how the saddle point of the theory is found in the published code: PyTorch in
float64, full matrices from the identity, u_a eliminated in closed form, the kernel contracted from
the features at every step, a solve and a separate log-determinant. All variances are 1, all widths
equal, one output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: S/N, the largest gradient entry, steps and seconds."""

    converged: bool
    action: float
    gradient_norm: float
    steps: int
    seconds: float
    order_parameter: np.ndarray


def minimise(
    xi: np.ndarray,
    labels: np.ndarray,
    heads: tuple[int, ...],
    width: float,
    temperature: float,
    *,
    learning_rate: float,
    tolerance: float,
    max_steps: int,
    max_seconds: float = math.inf,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> Descent:
    """Descend with Adam until every entry of ∂(S/N)/∂U is below the tolerance, or a cap is hit."""
    torch.set_num_threads(1)
    examples, paths, inputs = xi.shape
    features = torch.asarray(xi, device=device) / math.sqrt(inputs * paths)
    labels = torch.asarray(labels, device=device)
    noise = temperature * torch.eye(examples, dtype=torch.float64, device=device)
    sizes = [math.prod(heads[layer:]) for layer in range(len(heads))]
    parameters = [
        torch.eye(size, dtype=torch.float64, device=device, requires_grad=True) for size in sizes
    ]
    optimiser = torch.optim.Adam(parameters, lr=learning_rate)

    start = clock()
    for step in range(1, max_steps + 1):
        optimiser.zero_grad()
        chain = [torch.triu(upper) + torch.triu(upper, 1).T for upper in parameters]
        action = _entropy(chain, heads) + _energy(features, labels, noise, chain[0]) / width
        action.backward()
        norm = _gradient_norm(parameters)
        seconds = clock() - start
        ended = norm < tolerance or not math.isfinite(norm) or seconds > max_seconds
        if ended or step == max_steps:
            break
        optimiser.step()
    return Descent(
        norm < tolerance, action.item(), norm, step, seconds, chain[0].detach().cpu().numpy()
    )


def _energy(
    features: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor, order: torch.Tensor
) -> torch.Tensor:
    mixed = torch.einsum("pai,ab->pbi", features, order)
    kernel = torch.einsum("pbi,qbi->pq", mixed, features) + noise
    return torch.logdet(kernel) + labels @ torch.linalg.solve(kernel, labels)


def _entropy(chain: list[torch.Tensor], heads: tuple[int, ...]) -> torch.Tensor:
    count, trace = heads[-1], torch.trace(chain[-1])
    # stationary in u_a: u² + (H − 1) u − tr U_L = 0
    readout = (1 - count + torch.sqrt((count - 1) ** 2 + 4 * trace)) / 2
    total = readout - torch.log(readout)
    total = total + trace / readout - torch.logdet(chain[-1]) + count * torch.log(readout)
    for count, below, above in zip(heads, chain, chain[1:]):
        size = len(above)
        partial = torch.einsum("hahb->ab", below.reshape(count, size, count, size))
        total = total + torch.trace(torch.linalg.solve(above, partial))
        total = total - torch.logdet(below) + count * torch.logdet(above)
    return total


def _gradient_norm(parameters: list[torch.Tensor]) -> float:
    """Largest entry of ∂(S/N)/∂U; an upper triangle's entry off the diagonal counts twice."""
    largest = []
    for upper in parameters:
        gradient = torch.triu(upper.grad).abs()
        largest.append(torch.maximum(gradient.diagonal().max(), gradient.triu(1).max() / 2))
    return torch.stack(largest).max().item()
