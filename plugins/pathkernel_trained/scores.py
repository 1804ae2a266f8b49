"""Scores of the heads of a trained network, to be compared with the order parameter's.

Scores from an order parameter, whether of the theory, sampled or of the trained weights, are
:func:`pathkernel_core.order_parameter.head_scores`. Those here need the trained network itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pathkernel_core.network import Network
from pathkernel_core.order_parameter import head_scores
from pathkernel_trained.heads import are_removable, removable_heads
from pathkernel_trained.outputs import PathOutputs
from pathkernel_trained.path_network import PathNetwork


def trained_scores(network: PathNetwork) -> list[np.ndarray]:
    """Scores from the trained weights' order parameter, the largest 1; one array per layer."""
    theory = Network(network.shape.heads_per_layer, network.width)
    return head_scores(theory, network.order_parameter)


def gradient_scores(outputs: PathOutputs, *, normalised: bool = True) -> list[np.ndarray]:
    """Mean over episodes of |∂(f − y)²/∂m_h|, with a factor m_h = 1 in front of head h.

    This is the importance of Michel, Levy and Neubig (NeurIPS 2019), who divide it by its ℓ2 norm
    over the heads of a layer. As f is linear in m_h, the derivative is 2 (f − y) f_h, where f_h is
    the part of f that passes through the head.

    Parameters
    ----------
    outputs : PathOutputs
        On validation or training episodes: a score must not know the test set.
    normalised : bool
        Whether to divide by the norm of each layer, as the authors do. It makes all layers equally
        important as a whole, and sets the only head of a layer to 1.

    Returns
    -------
    list of L arrays, shape (H_ℓ,)
    """
    parts = outputs.values @ outputs.through / np.sqrt(outputs.values.shape[1])
    misfit = outputs.output() - outputs.labels
    scores = per_layer(np.mean(np.abs(2 * misfit[:, None] * parts), axis=0), outputs.heads)
    if not normalised:
        return scores
    return [layer / (np.linalg.norm(layer) or 1.0) for layer in scores]


def ablation_scores(outputs: PathOutputs) -> list[np.ndarray]:
    """Accuracy that is lost when a single head is removed, one array per layer.

    The only head of a layer cannot be removed alone; it has no such score, which is NaN.

    Parameters
    ----------
    outputs : PathOutputs
        On validation episodes if it is to be a score, on test episodes for what truly is lost.
    """
    return per_layer(np.mean(lost_without(outputs), axis=0), outputs.heads)


def lost_without(outputs: PathOutputs) -> np.ndarray:
    """What every episode loses with every single head, (P, ΣH_ℓ).

    Returns
    -------
    array
        1 where only the whole network is right, −1 where only the one without the head is, else 0.
        NaN for the only head of a layer, which cannot be removed alone.
    """
    right = outputs.correct([(), *((head,) for head in removable_heads(outputs.heads))])
    lost = np.full((len(right), sum(outputs.heads)), np.nan)
    lost[:, are_removable(outputs.heads)] = right[:, :1].astype(float) - right[:, 1:]
    return lost


def per_layer(values: np.ndarray, heads: Sequence[int]) -> list[np.ndarray]:
    """Values of all heads (ΣH_ℓ,), in the order of ``every_head``, as one array per layer."""
    return np.split(np.asarray(values), np.cumsum(heads)[:-1])
