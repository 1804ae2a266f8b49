"""The order parameter of a network trained by gradient descent."""

from __future__ import annotations

import numpy as np

from pathkernel_core.order_parameter import order_parameter_from_weights
from pathkernel_trained.network import Weights, shape_of


def empirical_order_parameter(weights: Weights) -> np.ndarray:
    """Order parameter of one trained set of weights, U = W Wᵀ / N (Eq. 13, 35).

    The trained network has no factors 1/√N, the theory's has one in front of the readout and of
    every value weight (Eq. 2, 4). The two are the same function if the theory's weights are √N
    times the trained ones, so that is how they enter here. The scale of U then still is not the
    theory's, as descent with little weight decay does not draw from the posterior: compare
    structure and signs (:mod:`pathkernel_trained.comparison`). Rotations of a hidden layer do not
    change U. Other changes of its basis, which the output does not show either, do: U is of
    these weights, not of the function that they compute.

    Parameters
    ----------
    weights : mapping of str to array
        Of a checkpoint, see :func:`pathkernel_trained.checkpoint.read_checkpoint`.

    Returns
    -------
    array, shape (n, n)
        float64, n = H^L, in path order: the first layer's head is slowest.

    Raises
    ------
    ValueError
        If the arrays do not fit together.
    """
    root = np.sqrt(shape_of(weights).width)
    values = [root * np.asarray(layer, dtype=np.float64) for layer in weights["values"]]
    return order_parameter_from_weights(
        values, root * np.asarray(weights["readout"], dtype=np.float64)
    )
