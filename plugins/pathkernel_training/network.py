"""The network of Eq. 1-4 as it is trained: every weight trainable, and no factors 1/√N.

    z⁰ = V⁰ x,    z^ℓ = H^{-1/2} Σ_h attention_h(V^{ℓh} z^{ℓ-1}),    f = a · mean over t of z^L_t

where the attention of head h in layer ℓ is Ω^{ℓh}_{st} = softmax over s of
(K^{ℓh} x_s)·(Q^{ℓh} x_t)/√G. The theory's network has 1/√N_0 in front of V⁰ and 1/√N in front of
every other weight; a trained weight stands for the theory's divided by its root, see
:mod:`pathkernel_training.empirical`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pathkernel_core.backend import Array

Weights = Mapping[str, Array]
"""Arrays of a network by name; their shapes are those of :meth:`NetworkShape.weight_shapes`."""


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a network whose layers are alike.

    Attributes
    ----------
    layers : int
        Attention layers L.
    heads : int
        Heads H of each layer.
    width : int
        Width N of all hidden layers.
    qk_width : int
        Width G of queries and keys.
    """

    layers: int
    heads: int
    width: int
    qk_width: int

    def __post_init__(self):
        for name in ("layers", "heads", "width", "qk_width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, but is {value!r}")

    @property
    def scale(self) -> float:
        """Factor 1/√G of the scores (Eq. 3)."""
        return 1 / math.sqrt(self.qk_width)

    def weight_shapes(self, token_width: int) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, by name.

        Parameters
        ----------
        token_width : int
            Width N_0 of the tokens.

        Returns
        -------
        dict
            ``projection`` V⁰ (N, N_0), ``values`` V (L, H, N, N), ``readout`` a (N,),
            ``queries`` and ``keys`` (L, H, G, N_0).
        """
        attention = (self.layers, self.heads, self.qk_width, token_width)
        return {
            "projection": (self.width, token_width),
            "values": (self.layers, self.heads, self.width, self.width),
            "readout": (self.width,),
            "queries": attention,
            "keys": attention,
        }


def initial_weights(shape: NetworkShape, token_width: int, seed: int) -> dict[str, np.ndarray]:
    """Weights to start training from: uniform between ±1/√fan_in, float32.

    Parameters
    ----------
    shape : NetworkShape
    token_width : int
        Width N_0 of the tokens, the fan-in of projection, queries and keys; that of the other
        weights is N.
    seed : int
        Every weight has a random stream of its own, so that a change of one size leaves the others'
        weights as they are.
    """
    shapes = shape.weight_shapes(token_width)
    streams = np.random.SeedSequence(seed).spawn(len(shapes))
    weights = {}
    for (name, sizes), stream in zip(shapes.items(), streams):
        bound = 1 / math.sqrt(sizes[-1])
        drawn = np.random.default_rng(stream).uniform(-bound, bound, sizes)
        weights[name] = drawn.astype(np.float32)
    return weights


def shape_of(weights: Weights) -> NetworkShape:
    """Sizes of a network from its weights.

    Raises
    ------
    ValueError
        If the arrays do not fit together, naming the first that does not.
    """
    layers, heads, qk_width, token_width = weights["queries"].shape
    shape = NetworkShape(layers, heads, weights["projection"].shape[0], qk_width)
    for name, expected in shape.weight_shapes(token_width).items():
        if tuple(weights[name].shape) != expected:
            raise ValueError(
                f"{name} must have shape {expected} to fit the other weights, but has "
                f"{tuple(weights[name].shape)}"
            )
    return shape
