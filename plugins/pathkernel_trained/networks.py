"""Trained networks with heads removed, and what that saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathkernel_core.network import Network
from pathkernel_trained.checkpoint import Checkpoint
from pathkernel_trained.heads import Head, kept_heads
from pathkernel_trained.network import LAYERED, NetworkShape, join_layers
from pathkernel_trained.path_network import PathNetwork


def pruned_checkpoint(checkpoint: Checkpoint, removed: Iterable[Head]) -> Checkpoint:
    """A trained network without some heads, not trained again.

    Queries, keys and values of the heads are gone; all other weights are as they were. The network
    has 1/√H_ℓ in front of each layer's sum, with the heads H_ℓ that the layer has, so that leaving
    heads out also rescales the layer.

    Parameters
    ----------
    checkpoint : Checkpoint
    removed : iterable of (layer, head)
        Both numbered from 1, as in the checkpoint.

    Returns
    -------
    Checkpoint
        For :func:`pathkernel_trained.checkpoint.save_checkpoint`. Its ``about`` says what was
        removed, and keeps that of the whole network under ``whole_network``.

    Raises
    ------
    ValueError
        If there is no such head, one is named twice, or a layer would be left without any.
    """
    removed = tuple(removed)
    kept = kept_heads(checkpoint.shape.heads_per_layer, removed)
    weights = dict(checkpoint.weights)
    for name in LAYERED:
        layers = zip(checkpoint.weights[name], kept)
        weights[name] = join_layers([array[[head - 1 for head in left]] for array, left in layers])
    about = _about(checkpoint, removed)
    return Checkpoint(weights, checkpoint.label_vectors, about, scale=checkpoint.scale)


def pruned_paths(network: PathNetwork, removed: Iterable[Head]) -> PathNetwork:
    """A trained network along its paths without some heads; as for :func:`pruned_checkpoint`."""
    removed = tuple(removed)
    heads = network.shape.heads_per_layer
    kept = kept_heads(heads, removed)
    paths = Network(heads, 1).paths_through(kept)
    return PathNetwork(
        network.width,
        tuple(layer.keep_heads(left) for layer, left in zip(network.layers, kept)),
        network.path_weights[paths],
        network.order_parameter[np.ix_(paths, paths)],
        tuple(norms[np.array(left) - 1] for norms, left in zip(network.value_norms, kept)),
        network.label_vectors,
        _about(network, removed),
    )


def _about(whole: Checkpoint | PathNetwork, removed: Sequence[Head]) -> Mapping[str, Any]:
    return {
        "removed_heads": [list(head) for head in removed],
        "heads_of_whole_network": list(whole.shape.heads_per_layer),
        "whole_network": dict(whole.about),
    }


@dataclass(frozen=True)
class Cost:
    """Size of a network and cost of an evaluation.

    Attributes
    ----------
    parameters : int
        Numbers that were trained.
    flops : int
        Floating-point operations of one sequence, computed layer by layer: multiplications and
        additions of matrix products. Softmax and means are not counted.
    """

    parameters: int
    flops: int


def network_cost(shape: NetworkShape, token_width: int, tokens: int) -> Cost:
    """Parameters and operations of a network.

    Parameters
    ----------
    shape : NetworkShape
    token_width : int
        Width N_0 of the tokens.
    tokens : int
        Tokens M of a sequence.
    """
    heads = sum(shape.heads_per_layer)
    width, inner = shape.width, shape.qk_width
    parameters = width * token_width + width + heads * (width**2 + 2 * inner * token_width)
    projection = tokens * width * token_width
    queries_and_keys = 2 * tokens * inner * token_width
    scores = tokens**2 * inner
    values = tokens * width**2
    attended = tokens**2 * width
    per_head = queries_and_keys + scores + values + attended
    return Cost(parameters, 2 * (projection + heads * per_head + width))
