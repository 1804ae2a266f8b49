"""A trained network along its paths: all that the theory, comparison and pruning ask of one.

The network is f = n^{-1/2} Σ_π w_π · ξ_π (Eq. 5), with w_π the product of its weights along path π
and ξ_π the attentioned input (Eq. 7), which its queries and keys give. Values and readout enter
in nothing else but the order parameter and the norms that heads are scored by.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_core.network import Network
from pathkernel_core.order_parameter import order_parameter_from_weights, path_weights
from pathkernel_tasks.array_guards import real_numbers
from pathkernel_tasks.heads_file import read_heads
from pathkernel_trained.checkpoint import (
    Checkpoint,
    checked_checkpoint,
    numbered,
    read_network,
    write_network,
)
from pathkernel_trained.heads import Head, kept_heads
from pathkernel_trained.network import LAYERED, NetworkShape, Weights, join_layers, shape_of


@dataclass(frozen=True, eq=False)
class PathNetwork:
    """A trained network along its paths; arrays in float64.

    Attributes
    ----------
    width : int
        Width N of its hidden layers.
    layers : tuple of QueryKey
        The first layer first.
    path_weights : array, shape (n, N_0)
        Products w_π of the weights along the paths; the first layer's head is slowest.
    order_parameter : array, shape (n, n)
        U of the weights, see :func:`empirical_order_parameter`.
    value_norms : tuple of L arrays, shape (H_ℓ,)
        Frobenius norms of the values of every head.
    label_vectors, about
        As of a :class:`~pathkernel_trained.checkpoint.Checkpoint`.
    """

    width: int
    layers: tuple[QueryKey, ...]
    path_weights: np.ndarray
    order_parameter: np.ndarray
    value_norms: tuple[np.ndarray, ...]
    label_vectors: np.ndarray | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        heads = self.shape.heads_per_layer
        paths, token_width = int(np.prod(heads)), self.layers[0].queries.shape[2]
        for name, actual, expected in (
            ("path_weights", self.path_weights.shape, (paths, token_width)),
            ("order_parameter", self.order_parameter.shape, (paths, paths)),
            ("value_norms", tuple(map(np.shape, self.value_norms)), tuple((h,) for h in heads)),
        ):
            if actual != expected:
                raise ValueError(f"{name} must have shape {expected}, but has {actual}")

    @property
    def shape(self) -> NetworkShape:
        """Sizes of the network."""
        heads = tuple(layer.n_heads for layer in self.layers)
        return NetworkShape(len(heads), heads, self.width, self.layers[0].queries.shape[1])


def along_paths(checkpoint: Checkpoint) -> PathNetwork:
    """Network of a checkpoint along its paths."""
    weights = checkpoint.weights
    queries, keys, values = (map(_double, weights[name]) for name in ("queries", "keys", "values"))
    along = path_weights(_theory_values(weights), _double(weights["readout"]))
    return PathNetwork(
        shape_of(weights).width,
        tuple(QueryKey(*pair, checkpoint.scale) for pair in zip(queries, keys)),
        along @ _double(weights["projection"]),
        empirical_order_parameter(weights),
        tuple(np.linalg.norm(layer, axis=(1, 2)) for layer in values),
        checkpoint.label_vectors,
        checkpoint.about,
    )


def empirical_order_parameter(weights: Weights) -> np.ndarray:
    """Order parameter (n, n) of one trained set of weights, U = W Wᵀ / N (Eq. 13, 35).

    The trained network has no factors 1/√N, the theory's has one in front of the readout and of
    every value weight (Eq. 2, 4). The two are the same function if the theory's weights are √N
    times the trained ones, so that is how they enter here. The scale of U then still is not the
    theory's, as descent with little weight decay does not draw from the posterior: compare
    structure and signs (:mod:`pathkernel_trained.comparison`). Rotations of a hidden layer do not
    change U. Other changes of its basis, which the output does not show either, do: U is of
    these weights, not of the function that they compute.
    """
    readout = np.sqrt(shape_of(weights).width) * _double(weights["readout"])
    return order_parameter_from_weights(_theory_values(weights), readout)


def without_heads(
    network: Checkpoint | PathNetwork, removed: Iterable[Head]
) -> Checkpoint | PathNetwork:
    """A trained network without some heads, (layer, head), not trained again.

    Queries, keys and values of the heads are gone; all other weights are as they were. The network
    has 1/√H_ℓ in front of each layer's sum, with the heads H_ℓ that the layer has, so that leaving
    heads out also rescales the layer. ``about`` names the heads, and has that of the whole network
    as ``whole_network``. Raises as :func:`pathkernel_trained.heads.kept_heads`.
    """
    removed, heads = tuple(removed), network.shape.heads_per_layer
    kept = kept_heads(heads, removed)
    about = {
        "removed_heads": [list(head) for head in removed],
        "heads_of_whole_network": list(heads),
        "whole_network": dict(network.about),
    }
    left = [np.array(numbers) - 1 for numbers in kept]
    if isinstance(network, Checkpoint):
        weights = dict(network.weights)
        for name in LAYERED:
            weights[name] = join_layers([layer[few] for layer, few in zip(weights[name], left)])
        return replace(network, weights=weights, about=about, further={})
    paths = Network(heads, 1).paths_through(kept)
    return replace(
        network,
        layers=tuple(layer.keep_heads(few) for layer, few in zip(network.layers, kept)),
        path_weights=network.path_weights[paths],
        order_parameter=network.order_parameter[np.ix_(paths, paths)],
        value_norms=tuple(norms[few] for norms, few in zip(network.value_norms, left)),
        about=about,
    )


def save_paths(path: str | os.PathLike, network: PathNetwork) -> None:
    """Write a network along its paths; errors as for ``save_checkpoint``.

    Queries and keys that are exact in single precision, as trained ones are, are written in it.
    """
    arrays = {
        "width": np.array(network.width),
        "path_weights": network.path_weights,
        "order_parameter": network.order_parameter,
    }
    for number, (layer, norms) in enumerate(zip(network.layers, network.value_norms), start=1):
        arrays[f"queries.{number}"] = _narrow(layer.queries)
        arrays[f"keys.{number}"] = _narrow(layer.keys)
        arrays[f"value_norms.{number}"] = norms
    scales = [layer.scale for layer in network.layers]
    write_network(path, arrays, scales, network.label_vectors, network.about)


def read_paths(path: str | os.PathLike) -> PathNetwork:
    """Network of a file along its paths, from its weights where the file has them.

    Raises as :func:`pathkernel_trained.checkpoint.read_checkpoint`.
    """
    arrays, about = read_network(path)
    if "path_weights" not in arrays:
        return along_paths(checked_checkpoint(path, arrays, about))
    heads, title = read_heads(path), f"checkpoint {str(path)!r}"
    try:
        width, products, order_parameter = (
            real_numbers(f"{title}: {name!r}", arrays[name], whole=name == "width")
            for name in ("width", "path_weights", "order_parameter")
        )
        norms = [
            real_numbers(f"{title}: 'value_norms'", layer, whole=False)
            for layer in numbered(arrays, "value_norms")
        ]
    except KeyError as error:
        raise ValueError(f"{title} lacks {error}") from error
    try:
        return PathNetwork(
            int(width),
            heads.layers,
            *(products, order_parameter, tuple(norms)),
            *(heads.label_vectors, about),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{title} is damaged: {error}") from error


def _theory_values(weights: Weights) -> list[np.ndarray]:
    """Values √N times the trained ones, as the core divides by √N in every layer."""
    return [np.sqrt(shape_of(weights).width) * _double(layer) for layer in weights["values"]]


def _double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.float64)


def _narrow(array: np.ndarray) -> np.ndarray:
    narrow = array.astype(np.float32)
    return narrow if np.array_equal(narrow, array) else array
