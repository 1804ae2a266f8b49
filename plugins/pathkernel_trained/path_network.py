"""A trained network along its paths: all that the theory, comparison and pruning ask of one.

The network is f = n^{-1/2} Σ_π w_π · ξ_π (Eq. 5), with w_π the product of its weights along path π
and ξ_π the attentioned input (Eq. 7), which its queries and keys give. Values and readout enter
in nothing else but the order parameter and the norms that heads are scored by. This is a hundredth
of the weights of a wide network. Arrays of a file, which is a file of heads
(:mod:`pathkernel_tasks.heads_file`), too:

====================  ==============  ==============================================================
``width``             ()              width N of the hidden layers
``queries.1`` …       (H, G, N_0)     queries of each layer
``keys.1`` …          (H, G, N_0)     keys of each layer
``scale``             (L,)            factor of the scores of each layer
``labels``            (3, N_0)        label vectors of −, + and ?, if the task has them
``path_weights``      (n, N_0)        w_π, in path order
``order_parameter``   (n, n)          U of the weights (Eq. 13)
``value_norms.1`` …   (H,)            Frobenius norms of the values of each layer
====================  ==============  ==============================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_core.order_parameter import path_weights
from pathkernel_tasks.array_files import read_arrays
from pathkernel_tasks.array_guards import real_numbers
from pathkernel_tasks.heads_file import read_heads
from pathkernel_trained.checkpoint import (
    PATHS,
    Checkpoint,
    read_checkpoint,
    read_header,
    write_network,
)
from pathkernel_trained.empirical import empirical_order_parameter
from pathkernel_trained.network import NetworkShape, Weights, shape_of

_KIND = "network"


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
        U of the weights, see :func:`pathkernel_trained.empirical.empirical_order_parameter`.
    value_norms : tuple of L arrays, shape (H_ℓ,)
        Frobenius norms of the values of every head.
    label_vectors : array, shape (3, N_0), or None
        Label vectors of −, + and ? that the network was trained with, if its task has them.
    about : mapping
        What is known about the training, as JSON holds it.

    Raises
    ------
    ValueError
        If the shapes do not fit together, naming the array.
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
        paths = int(np.prod(heads))
        found = {name: getattr(self, name).shape for name in ("path_weights", "order_parameter")}
        found["value_norms"] = tuple(norms.shape for norms in self.value_norms)
        expected = {
            "path_weights": (paths, self.token_width),
            "order_parameter": (paths, paths),
            "value_norms": tuple((count,) for count in heads),
        }
        for name, shape in expected.items():
            if found[name] != shape:
                raise ValueError(f"{name} must have shape {shape}, but has {found[name]}")

    @property
    def shape(self) -> NetworkShape:
        """Sizes of the network."""
        heads = tuple(layer.n_heads for layer in self.layers)
        return NetworkShape(len(heads), heads, self.width, self.layers[0].queries.shape[1])

    @property
    def token_width(self) -> int:
        """Width N_0 of its tokens."""
        return self.layers[0].queries.shape[2]


def along_paths(checkpoint: Checkpoint) -> PathNetwork:
    """Network of a checkpoint along its paths.

    Raises
    ------
    ValueError
        If the arrays do not fit together.
    """
    weights = checkpoint.weights
    pairs = zip(map(_double, weights["queries"]), map(_double, weights["keys"]))
    return PathNetwork(
        shape_of(weights).width,
        tuple(QueryKey(queries, keys, checkpoint.scale) for queries, keys in pairs),
        products_along_paths(weights),
        empirical_order_parameter(weights),
        tuple(np.linalg.norm(_double(layer), axis=(1, 2)) for layer in weights["values"]),
        checkpoint.label_vectors,
        checkpoint.about,
    )


def products_along_paths(weights: Weights) -> np.ndarray:
    """Products of weights along the paths, w_π = a V^{L h_L} … V^{1 h_1} V⁰, (n, N_0), float64.

    Rows in path order: the first layer's head is slowest.
    """
    # the core divides by √N in every layer, as the theory's network does; the trained one does not
    root = np.sqrt(shape_of(weights).width)
    values = [root * _double(layer) for layer in weights["values"]]
    return path_weights(values, _double(weights["readout"])) @ _double(weights["projection"])


def save_paths(path: str | os.PathLike, network: PathNetwork) -> None:
    """Write a network along its paths; errors as for ``save_checkpoint``.

    Queries and keys that are exact in single precision, as trained ones are, are written in it.
    """
    arrays = {
        "width": np.array(network.width),
        "scale": np.array([layer.scale for layer in network.layers]),
        "path_weights": network.path_weights,
        "order_parameter": network.order_parameter,
    }
    if network.label_vectors is not None:
        arrays["labels"] = network.label_vectors
    for number, (layer, norms) in enumerate(zip(network.layers, network.value_norms), start=1):
        arrays[f"queries.{number}"] = _narrow(layer.queries)
        arrays[f"keys.{number}"] = _narrow(layer.keys)
        arrays[f"value_norms.{number}"] = norms
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    write_network(path, arrays, PATHS, network.about)


def read_paths(path: str | os.PathLike) -> PathNetwork:
    """Network of a file along its paths, from its weights where the file has them.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, holds queries and keys only, or an array is missing, of a wrong shape or
        type, or not finite. The message names the file and the array.
    """
    found, about = read_header(path)
    if found != PATHS:
        return along_paths(read_checkpoint(path))
    heads = read_heads(path)
    norms = [f"value_norms.{number}" for number in range(1, len(heads.layers) + 1)]
    names = ("width", "path_weights", "order_parameter", *norms)
    arrays, _ = read_arrays(path, _KIND, lambda name: name in names)
    title = f"{_KIND} {str(path)!r}"
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"{title} lacks {', '.join(missing)}")
    _, products, order_parameter, *value_norms = (
        real_numbers(f"{title}: {name!r}", arrays[name], whole=name == "width") for name in names
    )
    try:
        return PathNetwork(
            int(arrays["width"]),
            heads.layers,
            products,
            order_parameter,
            tuple(value_norms),
            heads.label_vectors,
            about,
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{title} is damaged: {error}") from error


def _double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.float64)


def _narrow(array: np.ndarray) -> np.ndarray:
    narrow = array.astype(np.float32)
    return narrow if np.array_equal(narrow, array) else array
