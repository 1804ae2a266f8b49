"""Rows (example, output) and paths (path, output) of several outputs, output fastest.

Features are repeated along the diagonal of the outputs, and everything else stays as for one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    from_host,
    invert_triangular,
    to_host,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.system.errors import NotPositiveDefiniteError


def per_output(features: Array, outputs: int) -> Array:
    """Features of the rows (example, output): (P, n, N_0) → (P·C, n·C, N_0)."""
    if outputs == 1:
        return features
    xp = array_namespace(features=features)
    examples, paths, width = features.shape
    same_output = from_host(np.eye(outputs)[:, None, :, None], features)
    rows = features[:, None, :, None, :] * same_output  # (P, C, n, C, N_0)
    return xp.reshape(rows, (examples * outputs, paths * outputs, width))


def by_output(matrix: Array, outputs: int, xp: Any) -> Array:
    """Matrix over (index, output) as one row for each pair of outputs: (m·C, m·C) → (C², m²)."""
    size = matrix.shape[0] // outputs
    blocks = xp.permute_dims(xp.reshape(matrix, (size, outputs) * 2), (1, 3, 0, 2))
    return xp.reshape(blocks, (outputs**2, size**2))


def explained_labels(root: Array, labels: Array) -> tuple[Array, Array]:
    """(K + T1)⁻¹ Y (P, C) and the diagonal blocks of (K + T1)⁻¹ (P, C, C), from L (P·C, P·C)."""
    xp = array_namespace(root=root)
    inverse = invert_triangular(root, xp)
    half = matmul(inverse, xp.reshape(labels, (-1, 1)))
    coefficients = matmul(xp.matrix_transpose(inverse), half)
    # (K + T1)⁻¹ = L⁻ᵀL⁻¹: its diagonal blocks need the columns of L⁻¹ only, not the product
    by_example = xp.permute_dims(xp.reshape(inverse, (-1, *labels.shape)), (1, 2, 0))
    blocks = matmul(by_example, xp.matrix_transpose(by_example))
    return xp.reshape(coefficients, labels.shape), blocks


def symmetric_product(left: Array, right: Array, xp: Any) -> Array:
    """Change of z zᵀ along dz: left rightᵀ and its transpose."""
    product = matmul(left, xp.matrix_transpose(right))
    return product + xp.matrix_transpose(product)


def not_positive_definite(matrix: Array, temperature: float) -> NotPositiveDefiniteError:
    """Error about a kernel (P·C, P·C) that is not positive definite with the temperature."""
    matrix = to_host(matrix)
    if not np.isfinite(matrix).all():
        return NotPositiveDefiniteError(
            f"the kernel overflows at temperature {temperature:g}; rescale the inputs"
        )
    eigenvalues = np.linalg.eigvalsh(matrix)
    return NotPositiveDefiniteError(
        f"the kernel plus the temperature {temperature:g} is not positive definite in this "
        f"precision: the kernel's smallest eigenvalue is {eigenvalues[0]:.3g}, its largest "
        f"{eigenvalues[-1]:.3g}; raise the temperature, rescale the inputs or use float64"
    )
