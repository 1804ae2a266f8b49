"""The saddle points of other papers by their own formulas or code, for ``benchmarks.engine``.

Nothing here uses pathkernel: kernels are given as arrays, inverses are explicit, and equations are
solved by SciPy or minimised by PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import types
from collections.abc import Sequence
from unittest import mock

import numpy as np
import torch
from scipy.optimize import brentq, root

INSTALL = (
    "deepbays is not installed: pip download --no-deps deepbays==0.1.11, then "
    "pip install --no-deps --target FOLDER deepbays-0.1.11-py3-none-any.whl, and put FOLDER on "
    "PYTHONPATH"
)


def erf_kernels(patches: np.ndarray) -> np.ndarray:
    """Kernels of units erf(w·x) on all pairs of patches (P, n, D), as (n, n, P, P)."""
    bare = np.einsum("pad,qbd->abpq", patches, patches) / patches.shape[2]
    sizes = 1 + 2 * np.einsum("aapp->ap", bare)
    return 2 / np.pi * np.arcsin(2 * bare / np.sqrt(np.einsum("ap,bq->abpq", sizes, sizes)))


def direct_minimum(
    kernels: np.ndarray, labels: np.ndarray, heads: Sequence[int], width: float, temperature: float
) -> np.ndarray:
    """Order parameter U (n, n) of the first layer at the minimum of the action.

    L-BFGS of PyTorch in float64 over Cholesky factors of all layers' order parameters, through
    automatic differentiation. With one layer the action over N is
    tr U − ln det U + [ln det(K + T1) + Yᵀ(K + T1)⁻¹Y]/N, K = Σ U_ij K_ij/n, the same for patches,
    gates and heads; all layers have the width N.
    """
    torch.set_num_threads(1)
    tensors, y = torch.asarray(kernels / len(kernels)), torch.asarray(labels)
    noise = temperature * torch.eye(len(labels), dtype=torch.float64)
    sizes = [math.prod(heads[layer:]) for layer in range(len(heads))]
    factors = [torch.eye(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    optimiser = torch.optim.LBFGS(
        factors,
        max_iter=3000,
        tolerance_grad=1e-10,
        tolerance_change=0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def entropy() -> torch.Tensor:
        above, total = torch.eye(1, dtype=torch.float64), torch.zeros(())
        for count, factor in reversed(list(zip(heads, factors))):
            lower = torch.tril(factor)
            tall = lower.reshape(count, len(above), -1)
            relative = torch.linalg.solve_triangular(above, tall, upper=False)
            logs = count * above.diagonal().log().sum() - lower.diagonal().abs().log().sum()
            total, above = total + (relative**2).sum() + 2 * logs, lower
        return total

    def action() -> torch.Tensor:
        optimiser.zero_grad()
        lower = torch.tril(factors[0])
        order = lower @ lower.T
        root_ = torch.linalg.cholesky(torch.einsum("ab,abpq->pq", order, tensors) + noise)
        solved = torch.linalg.solve_triangular(root_, y[:, None], upper=False)
        energy = 2 * root_.diagonal().log().sum() + (solved**2).sum()
        value = entropy() + energy / width
        value.backward()
        return value

    optimiser.step(action)
    lower = torch.tril(factors[0].detach())
    return (lower @ lower.T).numpy()


def deepbays_convolution() -> type | None:
    """Class ``CONV_1HL`` of deepbays, the authors' code of local kernel renormalisation, or None.

    The package imports torchvision and CuPy for data sets and other theories; only the module of
    this one is imported.
    """
    spec = importlib.util.find_spec("deepbays")
    if spec is None or not spec.submodule_search_locations:
        return None
    (folder,) = spec.submodule_search_locations
    stand_ins = {"cupy": types.ModuleType("cupy")}
    for name, place in (("deepbays", folder), ("deepbays.rkgp", f"{folder}/rkgp")):
        stand_ins[name] = types.ModuleType(name)
        stand_ins[name].__path__ = [place]
    with mock.patch.dict(sys.modules, stand_ins):
        return importlib.import_module("deepbays.rkgp.theory_1HL_CONV").CONV_1HL


def gradient_of_energy(
    kernels: np.ndarray, labels: np.ndarray, order: np.ndarray, temperature: float
) -> np.ndarray:
    """Derivative M − R of ln det(K + T1) + Yᵀ(K + T1)⁻¹Y by U, where K = Σ U_ij K_ij/n."""
    kernels = kernels / len(kernels)
    noisy = np.tensordot(order, kernels, order.ndim) + temperature * np.eye(len(labels))
    inverse = np.linalg.inv(noisy)
    dual = inverse @ labels
    return np.tensordot(kernels, inverse - np.outer(dual, dual), 2)


def scalar_renormalisation(
    kernel: np.ndarray, labels: np.ndarray, depth: int, width: float
) -> float:
    """Scalar u₀ of every hidden layer of a deep linear network at T → 0.

    It solves 1 − u = α (1 − r/uᴸ), α = P/N, r = YᵀK₀⁻¹Y/P: the stationary point of
    L N (u − ln u) + P L ln u + YᵀK₀⁻¹Y/uᴸ, the action of L hidden layers at T = 0.
    """
    ratio = labels @ np.linalg.solve(kernel, labels) / len(labels)
    load = len(labels) / width

    def equation(log: float) -> float:
        return 1 - math.exp(log) - load * (1 - ratio * math.exp(-depth * log))

    return math.exp(brentq(equation, -20, 20, xtol=1e-14))


def branch_order_parameters(
    kernels: np.ndarray,
    labels: np.ndarray,
    widths: Sequence[float],
    variance: float,
    temperature: float,
) -> np.ndarray:
    """Order parameters u (widths, B) of independent branches with kernels (B, P, P).

    They solve r_l − Tr_l = N(u_l/σ² − 1), with r_l = u_l Yᵀ(K + T1)⁻¹C_l(K + T1)⁻¹Y/B and
    Tr_l = u_l tr[(K + T1)⁻¹C_l]/B, from the widest to the narrowest network, each from the last:
    from the limit, a narrow one may run off to u_l = 0.
    """

    def equations(logs: np.ndarray, width: float) -> np.ndarray:
        u = np.exp(logs)
        slopes = u * gradient_of_energy(kernels, labels, u, temperature)
        return slopes + width * np.expm1(logs - math.log(variance))

    logs, by_width = np.full(len(kernels), math.log(variance)), {}
    for width in sorted(widths, reverse=True):
        solved = root(equations, logs, args=(width,), method="lm", tol=1e-12)
        by_width[width] = logs = solved.x
    return np.exp([by_width[width] for width in widths])
