"""Attention of a layer (Eq. 3): the heads of one layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    is_true,
    not_overflown,
    real_floating,
    rows_of,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.arrays.scalars import positive


class Layer(Protocol):
    """Attention heads of one layer.

    A layer whose tokens already stand for paths sets ``tokens_are_paths = True``; it has no skip
    connection.
    """

    @property
    def n_heads(self) -> int:
        """Number of heads."""

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, key tokens, query tokens) of a batch of inputs (batch, M, N_0).

        With ``query`` only the column of that query token, (batch, H, key tokens, 1).
        """

    def select(self, examples: slice) -> Layer:
        """Layer for a slice of the examples."""

    def keep_heads(self, heads: Sequence[int]) -> Layer:
        """Layer with only these heads, numbered from 1."""

    def convert(self, function: Callable[[Array], Array]) -> Layer:
        """Layer with ``function(array)`` in place of each array."""


class _ArrayHeads:
    """Heads of a dataclass whose array fields have the heads on one axis."""

    _arrays: ClassVar[tuple[str, ...]]
    _axis: ClassVar[int] = 0

    @property
    def n_heads(self) -> int:
        """Number of heads H."""
        return getattr(self, self._arrays[0]).shape[self._axis]

    def select(self, examples: slice) -> Self:
        """Layer for a slice of the examples: the layer itself, where all examples share it."""
        return self

    def keep_heads(self, heads: Sequence[int]) -> Self:
        """Layer with only these heads, numbered from 1."""
        if not heads or min(heads) < 1 or max(heads) > self.n_heads:
            raise ValueError(
                f"heads are numbered from 1 to {self.n_heads} in this layer, but are {list(heads)}"
            )

        def take(array: Array) -> Array:
            xp = array_namespace(array=array)
            return xp.take(
                array, from_host(np.subtract(heads, 1), array, xp.int64), axis=self._axis
            )

        return self.convert(take)

    def convert(self, function: Callable[[Array], Array]) -> Self:
        """Layer with ``function(array)`` in place of each array."""
        arrays = {name: function(getattr(self, name)) for name in self._arrays}
        return dataclasses.replace(self, **arrays)  # type: ignore[type-var]


def _attention_of_heads(
    inputs: Array, queries: Array, keys: Array, scale: float, query: int | None, linear: bool
) -> Array:
    xp = array_api_compat.array_namespace(inputs)
    tokens = inputs if query is None else inputs[:, query : query + 1, :]
    keys = matmul(inputs[:, None, :, :], xp.matrix_transpose(keys))
    queries = matmul(tokens[:, None, :, :], xp.matrix_transpose(queries))
    return _weigh_keys(scale * matmul(keys, xp.matrix_transpose(queries)), linear, xp)


def _attention_of_products(
    inputs: Array, products: Array, scale: float, query: int | None, linear: bool
) -> Array:
    xp = array_api_compat.array_namespace(inputs)
    heads, width, _ = products.shape
    tokens = inputs if query is None else inputs[:, query : query + 1, :]
    # one matrix product for all examples and heads instead of many small ones
    rows = xp.reshape(tokens, (-1, width))
    directions = matmul(rows, xp.matrix_transpose(xp.reshape(products, (-1, width))))
    directions = xp.reshape(directions, (inputs.shape[0], -1, heads, width))
    scores = matmul(inputs[:, None, :, :], xp.permute_dims(directions, (0, 2, 3, 1)))
    return _weigh_keys(scale * scores, linear, xp)


def _score_scale(scale: float, heads: Array) -> float:
    """Check a factor of scores, which must not vanish in the precision of the heads."""
    checked = positive("scale", scale)
    xp = array_api_compat.array_namespace(heads)
    exact = xp.isdtype(heads.dtype, "real floating")
    smallest = float(xp.finfo(heads.dtype).smallest_normal) if exact else 0.0
    if checked < smallest:
        raise ValueError(f"scale must be at least {smallest:g} in {heads.dtype}, but is {scale!r}")
    return checked


def _weigh_keys(scores: Array, linear: bool, xp: Any) -> Array:
    """Softmax of scores (batch, H, key tokens, …) over the keys, or scores over their number."""
    if linear:
        return scores / scores.shape[2]
    # less their largest: exp overflows from 710 on in float64, from 89 on in float32
    weights = xp.exp(scores - xp.max(scores, axis=-2, keepdims=True))
    return weights / xp.sum(weights, axis=-2, keepdims=True)


@dataclass(frozen=True, eq=False)
class QueryKey(_ArrayHeads):
    """Heads given by queries and keys: softmax over keys s of (K x_s)·(Q x_t)·scale (Eq. 3).

    Parameters
    ----------
    queries, keys : array, shape (H, G, N_0)
    scale : float, optional
        Factor of the scores; by default 1 / (N_0 √G), as in the paper. Trained networks often use
        1 / √G.
    linear : bool
        Whether attention is linear: the score over the number of tokens M, without softmax.

    Notes
    -----
    If the attention of a trained network comes out almost uniform, the scale is too small by a
    factor N_0: set ``scale=G**-0.5``. Biases of queries and keys have no place here; pass
    :class:`Attention` instead.
    """

    queries: Array
    keys: Array
    scale: float | None = None
    linear: bool = False
    _arrays = ("queries", "keys")

    def __post_init__(self):
        array_namespace(queries=self.queries, keys=self.keys)
        real_floating("queries", self.queries, ("H", "G", "N_0"))
        real_floating("keys", self.keys, tuple(self.queries.shape))
        if self.scale is not None:
            object.__setattr__(self, "scale", _score_scale(self.scale, self.queries))

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        if self.scale is not None:
            return self.scale
        return 1 / (self.queries.shape[2] * math.sqrt(self.queries.shape[1]))

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) with the key token before the query token."""
        xp = array_namespace(inputs=inputs, queries=self.queries, keys=self.keys)
        _check_width(inputs, self.queries.shape[-1], "queries and keys")
        evaluate = compile_function(_attention_of_heads, xp, static=("query", "linear"))
        with np.errstate(all="ignore"):
            attention = evaluate(
                inputs, self.queries, self.keys, self.score_scale, query=query, linear=self.linear
            )
        return not_overflown("attention by queries and keys", attention, "rescale inputs or heads")


@dataclass(frozen=True, eq=False)
class AttentionProduct(_ArrayHeads):
    """Heads given by the product of keys and queries: softmax over s of x_s · W x_t · scale.

    Parameters
    ----------
    products : array, shape (H, N_0, N_0)
        W = KᵀQ, key index first.
    scale : float
        Factor of the scores.
    linear : bool
        Whether attention is linear: the score over the number of tokens M, without softmax.
    """

    products: Array
    scale: float = 1.0
    linear: bool = False
    _arrays = ("products",)

    def __post_init__(self):
        array_namespace(products=self.products)
        real_floating("products", self.products, ("H", *self.products.shape[-1:] * 2))
        object.__setattr__(self, "scale", _score_scale(self.scale, self.products))

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return self.scale

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) with the key token before the query token."""
        xp = array_namespace(inputs=inputs, products=self.products)
        _check_width(inputs, self.products.shape[-1], "products")
        evaluate = compile_function(_attention_of_products, xp, static=("query", "linear"))
        with np.errstate(all="ignore"):
            attention = evaluate(inputs, self.products, self.scale, query=query, linear=self.linear)
        return not_overflown("attention by products", attention, "rescale inputs or heads")


def _attention_of_vectors(
    inputs: Array, vectors: Array, scale: float, queries: int, linear: bool
) -> Array:
    xp = array_api_compat.array_namespace(inputs)
    scores = matmul(vectors[None, :, :], xp.matrix_transpose(inputs))  # (batch, H, M)
    attention = _weigh_keys(scale * scores[..., None], linear, xp)
    return xp.broadcast_to(attention, (*attention.shape[:3], queries))


@dataclass(frozen=True, eq=False)
class KeyVectors(_ArrayHeads):
    """Heads given by one key vector each: softmax over key tokens s of v·x_s·scale.

    All query tokens attend alike. With P labels and few heads it is the form of attention that can
    be learned without overfitting: N_0 numbers a head.

    Parameters
    ----------
    vectors : array, shape (H, N_0)
    scale : float, optional
        Factor of the scores; by default 1 / √N_0, with which vectors and inputs with entries of
        order 1 give scores of order 1.
    linear : bool
        Whether attention is linear: the score over the number of tokens M, without softmax.
    """

    vectors: Array
    scale: float | None = None
    linear: bool = False
    _arrays = ("vectors",)

    def __post_init__(self):
        array_namespace(vectors=self.vectors)
        real_floating("vectors", self.vectors, ("H", "N_0"))
        if self.scale is not None:
            object.__setattr__(self, "scale", _score_scale(self.scale, self.vectors))

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return self.vectors.shape[1] ** -0.5 if self.scale is None else self.scale

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) with the key token before the query token."""
        xp = array_namespace(inputs=inputs, vectors=self.vectors)
        _check_width(inputs, self.vectors.shape[-1], "vectors")
        evaluate = compile_function(_attention_of_vectors, xp, static=("queries", "linear"))
        queries = inputs.shape[1] if query is None else 1
        with np.errstate(all="ignore"):
            attention = evaluate(
                inputs, self.vectors, self.score_scale, queries=queries, linear=self.linear
            )
        return not_overflown("attention by key vectors", attention, "rescale inputs or heads")


def _excess_of_sums(omega: Array) -> Array:
    xp = array_api_compat.array_namespace(omega)
    return xp.max(xp.abs(xp.sum(omega, axis=-2) - 1))


@dataclass(frozen=True, eq=False)
class Attention(_ArrayHeads):
    """Heads given by their attention matrices on one set of examples.

    Parameters
    ----------
    omega : array, shape (P, H, M, M)
        Attention with the key token before the query token; each query's column sums to 1.

    Examples
    --------
    Models return attention with the query first, here for four heads and six tokens:

    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs, returned = rng.normal(size=(3, 6, 2)), rng.dirichlet(np.ones(6), size=(3, 4, 6))
    >>> layer = pk.Attention(returned.swapaxes(-1, -2))
    >>> pk.attentioned_inputs(inputs, [layer], readout="mean").shape
    (3, 4, 2)
    """

    omega: Array
    _arrays, _axis = ("omega",), 1

    def __post_init__(self):
        xp = array_namespace(omega=self.omega)
        omega = real_floating("omega", self.omega, ("P", "H", *self.omega.shape[-1:] * 2))
        # loose, for models in half precision; swapped axes are mostly off by far more
        excess = compile_function(_excess_of_sums, xp)(omega)
        if not is_true(excess < 1e-3):
            raise ValueError(
                "omega must sum to 1 over the key tokens (axis 2), but is off by "
                f"{float(excess):.3g}; if its last two axes are (query, key), swap them"
            )

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) as it was passed in."""
        array_namespace(inputs=inputs, omega=self.omega)
        expected = (inputs.shape[0], self.n_heads, inputs.shape[1], inputs.shape[1])
        if tuple(self.omega.shape) != expected:
            raise ValueError(
                f"omega must have shape {expected} to match these inputs of shape "
                f"{tuple(inputs.shape)}, but has {tuple(self.omega.shape)}"
            )
        return self.omega if query is None else self.omega[..., query : query + 1]

    def select(self, examples: slice) -> Attention:  # type: ignore[override]
        """Layer for a slice of the examples."""
        return Attention(rows_of(self.omega, examples))


def _check_width(inputs: Array, width: int, name: str) -> None:
    if inputs.shape[-1] != width:
        raise ValueError(
            f"inputs of shape {tuple(inputs.shape)} have width N_0 = {inputs.shape[-1]}, "
            f"but {name} expect N_0 = {width}"
        )
