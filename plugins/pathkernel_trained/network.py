"""The network of Eq. 1-4 as it is trained: all weights trainable, and no factors 1/√N.

    z⁰ = V⁰ x,    z^ℓ = H_ℓ^{-1/2} Σ_h attention_h(V^{ℓh} z^{ℓ-1}),    f = a · mean over t of z^L_t

where the attention of head h in layer ℓ is Ω^{ℓh}_{st} = softmax over s of
(K^{ℓh} x_s)·(Q^{ℓh} x_t)/√G. The theory's network has 1/√N_0 in front of V⁰ and 1/√N in front of
every other weight; a trained weight stands for the theory's divided by its root, see
:func:`pathkernel_trained.path_network.empirical_order_parameter`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pathkernel_core.arrays.backend import Array

Weights = Mapping[str, Array | tuple[Array, ...]]
"""Arrays of a network by name, of the shapes of :meth:`NetworkShape.weight_shapes`.

Values, queries and keys are one array over all layers, or a tuple of an array for each layer where
layers have different numbers of heads.
"""

LAYERED = ("values", "queries", "keys")
"""Names of the weights that every layer has."""


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a network, whose layers may differ in their numbers of heads, as after pruning.

    Attributes
    ----------
    layers : int
        Attention layers L.
    heads : int or tuple of int
        Heads H of each layer; a tuple, the first layer first, where they differ.
    width : int
        Width N of all hidden layers.
    qk_width : int
        Width G of queries and keys.
    """

    layers: int
    heads: int | tuple[int, ...]
    width: int
    qk_width: int

    def __post_init__(self):
        heads = self.heads if isinstance(self.heads, tuple) else (self.heads,)
        sizes = {name: (getattr(self, name),) for name in ("layers", "width", "qk_width")}
        for name, values in (*sizes.items(), ("heads", heads)):
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ValueError(
                        f"{name} must be a whole number of at least 1, but is {value!r}"
                    )
        if isinstance(self.heads, tuple):
            if len(heads) != self.layers:
                raise ValueError(
                    f"heads must be one number, or one for each of the {self.layers} layers, but "
                    f"is {heads}"
                )
            if len(set(heads)) == 1:  # equal networks have equal shapes
                object.__setattr__(self, "heads", heads[0])

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """Heads H_1 … H_L of each layer, the first layer first."""
        return self.heads if isinstance(self.heads, tuple) else (self.heads,) * self.layers

    @property
    def scale(self) -> float:
        """Factor 1/√G of the scores (Eq. 3)."""
        return 1 / math.sqrt(self.qk_width)

    def weight_shapes(self, token_width: int) -> dict[str, tuple]:
        """Shape of every weight, by name, for tokens of width N_0.

        ``projection`` V⁰ (N, N_0), ``values`` V (L, H, N, N), ``readout`` a (N,), ``queries`` and
        ``keys`` (L, H, G, N_0). Where layers have different numbers of heads the layered ones have
        a tuple of a shape for each layer, such as (H_ℓ, N, N).
        """

        def stack_layers(*sizes: int) -> tuple:
            shapes = tuple((heads, *sizes) for heads in self.heads_per_layer)
            return shapes if isinstance(self.heads, tuple) else (self.layers, *shapes[0])

        attention = stack_layers(self.qk_width, token_width)
        return {
            "projection": (self.width, token_width),
            "values": stack_layers(self.width, self.width),
            "readout": (self.width,),
            "queries": attention,
            "keys": attention,
        }


def initial_weights(shape: NetworkShape, token_width: int, seed: int) -> dict[str, np.ndarray]:
    """Weights to start training from: uniform between ±1/√fan_in, float32.

    ``token_width`` N_0 is the fan-in of projection, queries and keys; that of the other weights is
    N. Every weight has a separate random stream, so that a change of one size does not change the
    others. Raises a ValueError if layers have different numbers of heads.
    """
    if isinstance(shape.heads, tuple):
        raise ValueError(
            f"training starts with equally many heads in all layers, not {shape.heads}"
        )
    shapes = shape.weight_shapes(token_width)
    streams = np.random.SeedSequence(seed).spawn(len(shapes))
    weights = {}
    for (name, sizes), stream in zip(shapes.items(), streams):
        bound = 1 / math.sqrt(sizes[-1])
        drawn = np.random.default_rng(stream).uniform(-bound, bound, sizes)
        weights[name] = drawn.astype(np.float32)
    return weights


def shape_of(weights: Weights) -> NetworkShape:
    """Sizes of a network from its weights; a ValueError names the first that does not fit."""
    sizes = [layer.shape for layer in weights["queries"]]
    heads = tuple(count for count, _, _ in sizes)
    _, qk_width, token_width = sizes[0]
    shape = NetworkShape(len(sizes), heads, weights["projection"].shape[0], qk_width)
    for name, expected in shape.weight_shapes(token_width).items():
        if _shape(weights[name]) != expected:
            raise ValueError(
                f"{name} must have shape {expected} to fit the other weights, but has "
                f"{_shape(weights[name])}"
            )
    return shape


@dataclass(frozen=True)
class Cost:
    """Size of a network and cost of an evaluation.

    Attributes
    ----------
    parameters : int
        Number of trained parameters.
    flops : int
        Floating-point operations of one sequence, computed layer by layer: multiplications and
        additions of matrix products. Softmax and means are not counted.
    """

    parameters: int
    flops: int


def network_cost(shape: NetworkShape, token_width: int, tokens: int, removed: int = 0) -> Cost:
    """Cost of a network on sequences of M tokens of width N_0, without ``removed`` of its heads."""
    heads = sum(shape.heads_per_layer) - removed
    width, inner = shape.width, shape.qk_width
    parameters = width * token_width + width + heads * (width**2 + 2 * inner * token_width)
    projection = tokens * width * token_width
    queries_and_keys = 2 * tokens * inner * token_width
    scores = tokens**2 * inner
    values = tokens * width**2
    attended = tokens**2 * width
    per_head = queries_and_keys + scores + values + attended
    return Cost(parameters, 2 * (projection + heads * per_head + width))


def join_layers(layers: Sequence[Array]) -> Array | tuple[Array, ...]:
    """Weights of all layers, stacked if their shapes are equal, and else a tuple."""
    alike = len({tuple(layer.shape) for layer in layers}) == 1
    return np.stack(layers) if alike else tuple(layers)


def _shape(weight: Array | tuple[Array, ...]) -> tuple:
    if isinstance(weight, tuple):
        return tuple(tuple(layer.shape) for layer in weight)
    return tuple(weight.shape)
