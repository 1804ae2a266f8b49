"""Gradient of the log evidence with respect to attentioned inputs at the minimum of the action.

By the envelope theorem it is that at a fixed order parameter. With K = Φ (V ⊗ 1) Φᵀ and A = K + T1

    ∂ ln p(Y)/∂Φ = −½ ∂energy/∂Φ = −(A⁻¹ − A⁻¹YYᵀA⁻¹) Φ (V ⊗ 1)
"""

from __future__ import annotations

import math
from typing import Any

from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    inverse_from_root,
    invert_triangular,
    real_floating,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.pair_kernels import KernelPosterior
from pathkernel_core.energy.spaces import per_output


def log_evidence_gradient(solution: Solution, xi: Array, labels: Array) -> Array:
    """Gradient of the leading-order log evidence with respect to the training inputs ξ.

    Parameters
    ----------
    solution : Solution
        Minimum of the action, or the Gaussian process limit, of heads that share their weights.
    xi : array, shape (P, n, N_0)
        Attentioned inputs of the training examples.
    labels : array, shape (P,) or (P, C)
        Their labels.

    Returns
    -------
    array, shape (P, n, N_0)

    Raises
    ------
    ValueError
        If a shape does not fit the solution's problem, or kernels were given in place of inputs.
    """
    problem = solution.problem
    posterior, factor = solution.posterior
    if isinstance(posterior, KernelPosterior):
        raise ValueError("solution is of given kernels, which have no inputs to differentiate by")
    xp = array_namespace(xi=xi, labels=labels, training=problem.array)
    examples, outputs = problem.n_examples, problem.outputs
    xi = real_floating("xi", xi, (examples, problem.n_paths, problem.input_width))
    labels = xp.reshape(labels, (examples, outputs))
    features = xi / math.sqrt(problem.n_paths * problem.input_width)
    factor = from_host(factor, xi)
    if posterior.root is not None:
        gradient = compile_function(_by_examples, xp)(features, labels, factor, posterior.root)
    else:
        arrays = (posterior.weights, *posterior.arrays)
        evaluate = compile_function(_by_features, xp)
        if problem.basis is not None:  # the gradient lies in the span of the inputs, too
            features = matmul(features, problem.basis)
        gradient = evaluate(features, labels, factor, *arrays)
        if problem.basis is not None:
            gradient = matmul(gradient, xp.matrix_transpose(problem.basis))
    return gradient / math.sqrt(problem.n_paths * problem.input_width)


def _by_examples(features: Array, labels: Array, factor: Array, root: Array) -> Array:
    """With L (P·C, P·C) of A = LLᵀ."""
    xp = array_namespace(features=features)
    outputs = labels.shape[1]
    inverse = invert_triangular(root, xp)
    solved = matmul(xp.matrix_transpose(inverse), matmul(inverse, xp.reshape(labels, (-1, 1))))
    weights = inverse_from_root(inverse, xp) - matmul(solved, xp.matrix_transpose(solved))
    mixed = _mix_features(features, matmul(factor, xp.matrix_transpose(factor)), outputs, xp)
    total = 0.0
    for output in range(outputs):  # row (example, output) depends on the features once for each
        rows = mixed[:, output::outputs, :]
        of_output = matmul(weights[output::outputs, :], xp.reshape(rows, (rows.shape[0], -1)))
        total = total - xp.reshape(of_output, features.shape)
    return total


def _by_features(
    features: Array,
    labels: Array,
    factor: Array,
    weights: Array,
    inverse: Array,
    temperature: Array,
) -> Array:
    """With weights w of the mean, and L⁻¹ of B = LLᵀ = T1 + (Fᵀ ⊗ 1) ΦᵀΦ (F ⊗ 1).

    A⁻¹ Φ (F ⊗ 1) = Φ (F ⊗ 1) B⁻¹ and A⁻¹ Y = (Y − Φ w)/T: no matrix of the size of the examples.
    """
    xp = array_namespace(features=features)
    outputs, width = labels.shape[1], features.shape[2]
    rows = _mix_features(features, xp.matrix_transpose(factor), outputs, xp)  # Φ (F ⊗ 1)
    flat = xp.reshape(rows, (rows.shape[0], -1))
    half = matmul(flat, xp.matrix_transpose(inverse))
    solved = xp.reshape(matmul(half, inverse), (rows.shape[0], -1, width))
    by_output = xp.reshape(weights, (features.shape[1], outputs, width))
    total = 0.0
    for output in range(outputs):
        of_output = by_output[:, output, :]  # (n, N_0)
        mean = matmul(xp.reshape(features, (features.shape[0], -1)), xp.reshape(of_output, (-1, 1)))
        residual = (labels[:, output : output + 1] - mean) / temperature
        mixed = matmul(factor[output::outputs, :], solved[output::outputs, ...])
        total = total - mixed + residual[:, :, None] * of_output
    return total


def _mix_features(features: Array, matrix: Array, outputs: int, xp: Any) -> Array:
    """Rows (example, output) of features (P·C, n·C, N_0), mixed by a matrix (r, n·C)."""
    return matmul(matrix, per_output(features, outputs))
