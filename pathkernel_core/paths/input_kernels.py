"""Kernels of attentioned inputs along pairs of paths, and their sum by an order parameter."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    from_host,
    not_overflown,
    not_underflown,
    real_floating,
    to_host,
)
from pathkernel_core.arrays.products import matmul


def path_kernel(xi: Array, xi_dual: Array, path: int, path_dual: int) -> Array:
    """Kernel of a pair of paths, C = ξ^π(x)·ξ^π'(x')/N_0, shape (P, P')."""
    xp, xi, xi_dual = _check_pair(xi, xi_dual)
    transposed = xp.matrix_transpose(xi_dual[:, path_dual, :])
    with np.errstate(all="ignore"):
        kernel = matmul(xi[:, path, :], transposed) / xi.shape[-1]
    return not_overflown("the kernel", kernel, "rescale xi")


def same_path_kernels(xi: Array) -> Array:
    """Kernels of every path with itself, shape (n, P, P)."""
    xp, xi, _ = _check_pair(xi, xi)
    by_path = xp.permute_dims(xi, (1, 0, 2))
    with np.errstate(all="ignore"):
        kernels = matmul(by_path, xp.matrix_transpose(by_path)) / xi.shape[-1]
    return not_overflown("the kernels", kernels, "rescale xi")


def total_kernel(
    xi: Array, order_parameter: Array, xi_dual: Array | None = None, variance: float = 1.0
) -> Array:
    """Total kernel K = (σ²_0/n) Σ U_ππ' C_ππ' of one output (Eq. 10), shape (P, P').

    Parameters
    ----------
    xi : array, shape (P, n, N_0)
        Attentioned inputs.
    order_parameter : array, shape (n, n) or (n,)
        Order parameter U, or the diagonal u of independent branches; with skip connections, the
        result of :func:`pathkernel_core.paths.order_parameter.scaled_order_parameter`.
    xi_dual : array, shape (P', n, N_0), optional
        Second set of attentioned inputs; by default the first.
    variance : float
        Prior variance σ²_0 of the projection.
    """
    xp, xi, xi_dual = _check_pair(xi, xi if xi_dual is None else xi_dual)
    _, paths, width = xi.shape
    matrix = to_host(order_parameter)
    shape = (paths,) * max(1, min(matrix.ndim, 2))
    matrix = from_host(real_floating("order_parameter", matrix, shape), xi)
    with np.errstate(all="ignore"):
        mixed = matrix[:, None] * xi if matrix.ndim == 1 else matmul(matrix, xi)
        mixed = xp.reshape(mixed, (xi.shape[0], -1)) * (variance / (paths * width))
        kernel = matmul(mixed, xp.matrix_transpose(xp.reshape(xi_dual, (xi_dual.shape[0], -1))))
    return not_overflown("the kernel", kernel, "rescale xi, U or the prior variance")


def _check_pair(xi: Array, xi_dual: Array) -> tuple[Any, Array, Array]:
    xp = array_namespace(xi=xi, xi_dual=xi_dual)
    xi = real_floating("xi", xi, ("P", "n", "N_0"))
    xi_dual = real_floating("xi_dual", xi_dual, ("P'", *xi.shape[1:]))
    not_underflown("the kernels", xi, xi_dual, scale=1 / xi.shape[-1], remedy="rescale xi")
    return xp, xi, xi_dual
