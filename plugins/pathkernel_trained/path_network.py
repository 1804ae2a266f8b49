"""A trained network along its paths, as the theory, comparison and pruning use it.

The network is f = n^{-1/2} Σ_π w_π · ξ_π (Eq. 5), with w_π the product of its weights along path π
and ξ_π the attentioned input (Eq. 7), which its queries and keys determine. Values and readout also
enter the order parameter, and the norms that score heads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pathkernel_core.arrays.backend import to_host
from pathkernel_core.paths.heads import kept_heads
from pathkernel_core.paths.layers import QueryKey
from pathkernel_core.paths.network import Network
from pathkernel_core.paths.order_parameter import order_parameter_from_weights, path_weights
from pathkernel_datasets.variables.head_axis import Heads, heads_named
from pathkernel_tasks.array_guards import Shape, check_shapes, real_numbers
from pathkernel_tasks.heads_file import read_heads
from pathkernel_trained.checkpoint import (
    Checkpoint,
    checked_checkpoint,
    read_network,
    write_network,
)
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

    @property
    def shape(self) -> NetworkShape:
        """Sizes of the network."""
        heads = tuple(layer.n_heads for layer in self.layers)
        return NetworkShape(len(heads), heads, self.width, self.layers[0].queries.shape[1])


def along_paths(checkpoint: Checkpoint) -> PathNetwork:
    """Network of a checkpoint along its paths."""
    weights = checkpoint.weights
    queries, keys, values = (
        map(_to_double, weights[name]) for name in ("queries", "keys", "values")
    )
    # in double precision: products of several layers lose digits in float32
    along = path_weights(_theory_values(weights), _to_double(weights["readout"]))
    return PathNetwork(
        shape_of(weights).width,
        tuple(QueryKey(*pair, checkpoint.scale) for pair in zip(queries, keys)),
        along @ _to_double(weights["projection"]),
        empirical_order_parameter(weights),
        tuple(np.linalg.norm(layer, axis=(1, 2)) for layer in values),
        checkpoint.label_vectors,
        checkpoint.about,
    )


def empirical_order_parameter(weights: Weights) -> np.ndarray:
    """Order parameter (n, n) of one trained set of weights, U = W Wᵀ / N (Eq. 13, 35).

    The trained network has no factors 1/√N, the theory's has one in front of the readout and of
    every value weight (Eq. 2, 4). The two are the same function if the theory's weights are √N
    times the trained ones, as they are here. Even so U has another scale than the theory's, as
    descent with little weight decay does not draw from the posterior: compare structure and signs
    (:mod:`pathkernel_trained.comparison`). Rotations of a hidden layer do not change U. Other
    changes of its basis do, although the output stays the same: U describes these weights, not the
    function that they compute.
    """
    readout = np.sqrt(shape_of(weights).width) * _to_double(weights["readout"])
    return order_parameter_from_weights(_theory_values(weights), readout)


def without_heads(
    network: Checkpoint | PathNetwork, removed: Heads, *, gains: ArrayLike | None = None
) -> Checkpoint | PathNetwork:
    """Remove heads of a trained network; its other weights stay, or are multiplied by gains.

    Queries, keys and values of the heads are removed. The factor 1/√H_ℓ in front of each layer's
    sum counts the heads that are left, so that the layer is rescaled. ``about`` names the heads,
    and has that of the whole network as ``whole_network``.

    Parameters
    ----------
    network : Checkpoint or PathNetwork
    removed : iterable of (layer, head), or of labels such as ``"2-1"``
        Heads to remove, both numbered from 1.
    gains : array, shape (ΣH_ℓ,), optional
        Factors of the outputs of all heads, in their order in the whole network; those of removed
        heads have no effect. The values are multiplied by them, and by √(H'_ℓ/H_ℓ), with H'_ℓ heads
        left: the output is then that of the whole network with these gains and 0 for the removed
        heads, its layers not rescaled.

    Raises
    ------
    ValueError
        As :func:`pathkernel_core.paths.heads.kept_heads`; or if there is not one finite gain per
        head.
    """
    removed, heads = heads_named(removed), network.shape.heads_per_layer
    remaining = kept_heads(heads, removed)
    about = {
        "removed_heads": [list(head) for head in removed],
        "heads_of_whole_network": list(heads),
        "whole_network": dict(network.about),
    }
    indices = [np.array(numbers) - 1 for numbers in remaining]
    if gains is not None:
        left = [layer[i] for layer, i in zip(_gains_by_layer(gains, heads), indices)]
        about["gains"] = [layer.tolist() for layer in left]
        factors = [np.sqrt(len(layer) / count) * layer for layer, count in zip(left, heads)]
        return _multiply_heads(without_heads(network, removed), factors, about)
    if isinstance(network, Checkpoint):
        weights = dict(network.weights)
        for name in LAYERED:
            weights[name] = join_layers([layer[i] for layer, i in zip(weights[name], indices)])
        return replace(network, weights=weights, about=about, further={})
    paths = Network(heads, 1).paths_through(remaining)
    return replace(
        network,
        layers=tuple(layer.keep_heads(left) for layer, left in zip(network.layers, remaining)),
        path_weights=network.path_weights[paths],
        order_parameter=network.order_parameter[np.ix_(paths, paths)],
        value_norms=tuple(norms[i] for norms, i in zip(network.value_norms, indices)),
        about=about,
    )


def _gains_by_layer(gains: ArrayLike, heads: tuple[int, ...]) -> list[np.ndarray]:
    gains = np.asarray(gains, dtype=np.float64)
    if gains.shape != (sum(heads),) or not np.isfinite(gains).all():
        raise ValueError(
            f"gains must hold a finite number for each of the network's {sum(heads)} heads, shape "
            f"({sum(heads)},), but has shape {gains.shape}"
            + " and some that are not finite"
            * (gains.shape == (sum(heads),))
        )
    return np.split(gains, np.cumsum(heads)[:-1])


def _multiply_heads(
    network: Checkpoint | PathNetwork, factors: Sequence[np.ndarray], about: Mapping[str, Any]
) -> Checkpoint | PathNetwork:
    """Multiply the values of every head by its factor, L arrays (H_ℓ,)."""
    if isinstance(network, Checkpoint):
        values = [
            to_host(layer) * factor[:, None, None].astype(to_host(layer).dtype)
            for layer, factor in zip(network.weights["values"], factors)
        ]
        weights = {**network.weights, "values": join_layers(values)}
        return replace(network, weights=weights, about=about)
    paths = np.array(Network(network.shape.heads_per_layer, 1).paths) - 1
    along = np.prod([factor[column] for factor, column in zip(factors, paths.T)], axis=0)
    return replace(
        network,
        path_weights=along[:, None] * network.path_weights,
        order_parameter=np.outer(along, along) * network.order_parameter,
        value_norms=tuple(abs(factor) * old for factor, old in zip(factors, network.value_norms)),
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
    """Read a network along its paths, from a file of either kind.

    Raises as :func:`pathkernel_trained.checkpoint.read_checkpoint`.
    """
    arrays, about = read_network(path)
    if "path_weights" not in arrays:
        return along_paths(checked_checkpoint(path, arrays, about))
    heads, title = read_heads(path), f"checkpoint {str(path)!r}"
    counts = [layer.n_heads for layer in heads.layers]
    paths, token_width = math.prod(counts), heads.layers[0].queries.shape[2]
    norms: dict[str, Shape] = {f"value_norms.{i}": (count,) for i, count in enumerate(counts, 1)}
    products: dict[str, Shape] = {
        "path_weights": (paths, token_width),
        "order_parameter": (paths, paths),
    }
    check_shapes(title, arrays, {"width": (), **products, **norms})
    numbers = {
        name: real_numbers(f"{title}: {name!r}", arrays[name], whole=name == "width")
        for name in ("width", *products, *norms)
    }
    width = int(numbers["width"])
    if width < 1:
        raise ValueError(f"{title}: 'width' must be at least 1, but is {width}")
    return PathNetwork(
        width,
        heads.layers,
        *(numbers[name] for name in products),
        tuple(numbers[name] for name in norms),
        heads.label_vectors,
        about,
    )


def _theory_values(weights: Weights) -> list[np.ndarray]:
    """Values √N times the trained ones, as the core divides by √N in every layer."""
    return [np.sqrt(shape_of(weights).width) * _to_double(layer) for layer in weights["values"]]


def _to_double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.float64)


def _narrow(array: np.ndarray) -> np.ndarray:
    narrow = array.astype(np.float32)
    return narrow if np.array_equal(narrow, array) else array
