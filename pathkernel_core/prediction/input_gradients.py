"""Gradient of the log evidence with respect to attentioned inputs at the minimum of the action.

By the envelope theorem it is that at a fixed order parameter. With K = Φ (V ⊗ 1) Φᵀ and A = K + T1

    ∂ ln p(Y)/∂Φ = −½ ∂energy/∂Φ = −(A⁻¹ − A⁻¹YYᵀA⁻¹) Φ (V ⊗ 1)
"""

from __future__ import annotations

import math

from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.backend import Array, array_namespace, real_floating


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
    gradient = problem.form.input_gradient(*solution.posterior, problem.basis)
    xp = array_namespace(xi=xi, labels=labels, training=problem.array)
    examples, outputs = problem.n_examples, problem.outputs
    xi = real_floating("xi", xi, (examples, problem.n_paths, problem.input_width))
    labels = xp.reshape(labels, (examples, outputs))
    scale = math.sqrt(problem.n_paths * problem.input_width)
    return gradient(xi / scale, labels) / scale
