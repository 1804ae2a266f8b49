"""Attention of a layer (Eq. 3) and the attentioned inputs along every path (Eq. 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import array_api_compat
import numpy as np

from pathkernel_core.backend import (
    Array,
    array_namespace,
    batches,
    compiled,
    from_host,
    holds,
    joined,
    not_overflown,
    real_floating,
    rows_of,
)
from pathkernel_core.network import Skips, positive, skips_of_layers

Readout = Literal["first", "last", "mean"] | int

_BATCH_ELEMENTS = 2**21  # elements of the largest intermediate array, 16 MiB in float64


class Layer(Protocol):
    """What the core asks of an attention layer.

    One whose tokens stand for paths already, so that none is past its heads, has an attribute
    ``tokens_are_paths`` that is True; it cannot be skipped.
    """

    @property
    def n_heads(self) -> int:
        """Number of heads."""

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, key tokens, query tokens) of a batch of inputs (batch, M, N_0).

        With ``query`` only that query token's column, (batch, H, key tokens, 1).
        """

    def select(self, examples: slice) -> Layer:
        """Layer for a slice of the examples."""

    def keep_heads(self, kept: Sequence[int]) -> Layer:
        """Layer with only some of its heads, numbered from 1."""

    def convert(self, function: Callable[[Array], Array]) -> Layer:
        """Layer with each of its arrays replaced by ``function(array)``."""


def _attention_of_heads(
    inputs: Array, queries: Array, keys: Array, scale: float, query: int | None
) -> Array:
    xp = array_api_compat.array_namespace(inputs)
    asking = inputs if query is None else inputs[:, query : query + 1, :]
    keys = xp.matmul(inputs[:, None, :, :], xp.matrix_transpose(keys))
    queries = xp.matmul(asking[:, None, :, :], xp.matrix_transpose(queries))
    return _softmax_over_keys(scale * xp.matmul(keys, xp.matrix_transpose(queries)), xp)


def _attention_of_products(
    inputs: Array, products: Array, scale: float, query: int | None
) -> Array:
    xp = array_api_compat.array_namespace(inputs)
    heads, width, _ = products.shape
    asking = inputs if query is None else inputs[:, query : query + 1, :]
    # one product of matrices for all examples and heads, not a small one for each
    rows = xp.reshape(asking, (-1, width))
    directions = xp.matmul(rows, xp.matrix_transpose(xp.reshape(products, (-1, width))))
    directions = xp.reshape(directions, (inputs.shape[0], -1, heads, width))
    scores = xp.matmul(inputs[:, None, :, :], xp.permute_dims(directions, (0, 2, 3, 1)))
    return _softmax_over_keys(scale * scores, xp)


def _softmax_over_keys(scores: Array, xp: Any) -> Array:
    weights = xp.exp(scores - xp.max(scores, axis=-2, keepdims=True))
    return weights / xp.sum(weights, axis=-2, keepdims=True)


@dataclass(frozen=True, eq=False)
class QueryKey:
    """Heads given by queries and keys: softmax over keys s of (K x_s)·(Q x_t)·scale (Eq. 3).

    Parameters
    ----------
    queries, keys : array, shape (H, G, N_0)
    scale : float, optional
        Factor of the scores. By default 1 / (N_0 √G), the paper's; a network trained elsewhere
        often uses 1 / √G.
    """

    queries: Array
    keys: Array
    scale: float | None = None

    def __post_init__(self):
        array_namespace(queries=self.queries, keys=self.keys)
        real_floating("queries", self.queries, ("H", "G", "N_0"))
        real_floating("keys", self.keys, tuple(self.queries.shape))
        if self.scale is not None:
            positive("scale", self.scale)

    @property
    def n_heads(self) -> int:
        """Number of heads H."""
        return self.queries.shape[0]

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) with the key token before the query token."""
        xp = array_namespace(inputs=inputs, queries=self.queries, keys=self.keys)
        _check_width(inputs, self.queries.shape[-1], "queries and keys")
        scale = self.scale
        if scale is None:
            scale = 1 / (self.queries.shape[2] * math.sqrt(self.queries.shape[1]))
        evaluate = compiled(_attention_of_heads, xp, static=("query",))
        return evaluate(inputs, self.queries, self.keys, scale, query=query)

    def select(self, examples: slice) -> QueryKey:
        """The layer itself: queries and keys do not depend on the example."""
        return self

    def keep_heads(self, kept: Sequence[int]) -> QueryKey:
        """Layer with only the heads ``kept``, numbered from 1."""
        return QueryKey(_keep(self.queries, kept), _keep(self.keys, kept), self.scale)

    def convert(self, function: Callable[[Array], Array]) -> QueryKey:
        """Layer with its arrays replaced by ``function(array)``."""
        return QueryKey(function(self.queries), function(self.keys), self.scale)


@dataclass(frozen=True, eq=False)
class AttentionProduct:
    """Heads given by the product of keys and queries: softmax over s of x_s · W x_t · scale.

    Parameters
    ----------
    products : array, shape (H, N_0, N_0)
        W = KᵀQ, key index first.
    scale : float
        Factor of the scores.
    """

    products: Array
    scale: float = 1.0

    def __post_init__(self):
        array_namespace(products=self.products)
        real_floating("products", self.products, ("H", *self.products.shape[-1:] * 2))
        positive("scale", self.scale)

    @property
    def n_heads(self) -> int:
        """Number of heads H."""
        return self.products.shape[0]

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1) with the key token before the query token."""
        xp = array_namespace(inputs=inputs, products=self.products)
        _check_width(inputs, self.products.shape[-1], "products")
        evaluate = compiled(_attention_of_products, xp, static=("query",))
        return evaluate(inputs, self.products, self.scale, query=query)

    def select(self, examples: slice) -> AttentionProduct:
        """The layer itself: the products do not depend on the example."""
        return self

    def keep_heads(self, kept: Sequence[int]) -> AttentionProduct:
        """Layer with only the heads ``kept``, numbered from 1."""
        return AttentionProduct(_keep(self.products, kept), self.scale)

    def convert(self, function: Callable[[Array], Array]) -> AttentionProduct:
        """Layer with its arrays replaced by ``function(array)``."""
        return AttentionProduct(function(self.products), self.scale)


def _excess_of_sums(omega: Array) -> Array:
    xp = array_api_compat.array_namespace(omega)
    return xp.max(xp.abs(xp.sum(omega, axis=-2) - 1))


@dataclass(frozen=True, eq=False)
class Attention:
    """Heads given by their attention matrices, for one set of examples only.

    Parameters
    ----------
    omega : array, shape (P, H, M, M)
        Attention with the key token before the query token; each query's column sums to 1.

    Examples
    --------
    Attention that a model returns has the query first, here that of four heads on six tokens:

    >>> import numpy as np
    >>> import pathkernel_core as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs, returned = rng.normal(size=(3, 6, 2)), rng.dirichlet(np.ones(6), size=(3, 4, 6))
    >>> layer = pk.Attention(returned.swapaxes(-1, -2))
    >>> pk.attentioned_inputs(inputs, [layer], readout="mean").shape
    (3, 4, 2)
    """

    omega: Array

    def __post_init__(self):
        xp = array_namespace(omega=self.omega)
        omega = real_floating("omega", self.omega, ("P", "H", *self.omega.shape[-1:] * 2))
        excess = compiled(_excess_of_sums, xp)(omega)
        if not holds(excess < 1e-3):
            raise ValueError(
                "omega must sum to 1 over the key tokens (axis 2), but is off by "
                f"{float(excess):.3g}; if its last two axes are (query, key), swap them"
            )

    @property
    def n_heads(self) -> int:
        """Number of heads H."""
        return self.omega.shape[1]

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Attention (batch, H, M, M or 1), as given."""
        array_namespace(inputs=inputs, omega=self.omega)
        expected = (inputs.shape[0], self.n_heads, inputs.shape[1], inputs.shape[1])
        if tuple(self.omega.shape) != expected:
            raise ValueError(
                f"omega must have shape {expected} to match these inputs of shape "
                f"{tuple(inputs.shape)}, but has {tuple(self.omega.shape)}"
            )
        return self.omega if query is None else self.omega[..., query : query + 1]

    def select(self, examples: slice) -> Attention:
        """Layer for a slice of the examples."""
        return Attention(rows_of(self.omega, examples))

    def keep_heads(self, kept: Sequence[int]) -> Attention:
        """Layer with only the heads ``kept``, numbered from 1."""
        return Attention(_keep(self.omega, kept, axis=1))

    def convert(self, function: Callable[[Array], Array]) -> Attention:
        """Layer with its array replaced by ``function(array)``."""
        return Attention(function(self.omega))


def attentioned_inputs(
    inputs: Array,
    layers: Sequence[Layer],
    readout: Readout = "last",
    batch_size: int | None = None,
    skips: Skips = None,
) -> Array:
    """Inputs averaged by the attention along every path, ξ^π (Eq. 7).

    Parameters
    ----------
    inputs : array, shape (P, M, N_0)
        Token sequences. Every layer attends to these bare inputs.
    layers : sequence of Layer
        Attention of each layer, the first layer first.
    readout : {"last", "first", "mean"} or int
        Token at which the network is read out, or the mean over tokens.
    batch_size : int, optional
        Examples computed at once. The default keeps each intermediate array within 16 MiB.
    skips : optional
        Skip connections as of :class:`Network`: a path that skips a layer has the identity there
        for attention. Their strengths do not matter here.

    Returns
    -------
    array, shape (P, n, N_0)
        Attentioned inputs, unscaled, paths in index order (first layer slowest, a skip first).

    Raises
    ------
    ValueError
        If a shape does not fit, an array holds NaN or infinity, the scores or averages overflow, or
        the readout names no token.
    TypeError
        If the arrays are of different libraries or devices.
    """
    xp = array_namespace(inputs=inputs)
    inputs = real_floating("inputs", inputs, ("P", "M", "N_0"))
    examples, tokens, _ = inputs.shape
    if not isinstance(layers, Sequence) or not layers:
        raise TypeError("layers must be a list of at least one attention layer, the first first")
    for number, layer in enumerate(layers, start=1):
        if not hasattr(layer, "attention"):
            raise TypeError(
                f"layers[{number - 1}] must be a QueryKey, AttentionProduct or Attention, "
                f"not {type(layer).__name__}"
            )
        if isinstance(layer, Attention) and layer.omega.shape[0] != examples:
            raise ValueError(
                f"layers[{number - 1}].omega holds {layer.omega.shape[0]} examples, "
                f"but inputs holds {examples}"
            )
    token = _readout_token(readout, tokens)
    skipped = [skip is not None for skip in skips_of_layers(skips, len(layers))]
    for number, (layer, skip) in enumerate(zip(layers, skipped), start=1):
        if skip and getattr(layer, "tokens_are_paths", False):
            raise ValueError(
                f"layer {number} cannot be skipped: its inputs are those of paths already, and "
                "none of them is past its heads; leave skips out"
            )
    if batch_size is None:
        batch_size = max(1, _BATCH_ELEMENTS // _elements_per_example(inputs, layers, skipped))
    elif batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, but is {batch_size}")
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [
            _attentioned_batch(inputs, layers, skipped, token, batch, xp)
            for batch in batches(examples, batch_size)
        ]
    xi = joined(parts)
    return not_overflown("the attentioned inputs", xi, "rescale inputs or heads")


def _elements_per_example(inputs: Array, layers: Sequence[Layer], skipped: Sequence[bool]) -> int:
    """Size of the largest intermediate array: scores, queries and keys, or weights along paths."""
    _, tokens, width = inputs.shape
    inner = [
        width,
        tokens,
        *(layer.queries.shape[1] for layer in layers if hasattr(layer, "queries")),
    ]
    heads = [layer.n_heads + skip for layer, skip in zip(layers, skipped)]
    return tokens * max(max(heads) * max(inner), math.prod(heads))


def _attentioned_batch(
    inputs: Array,
    layers: Sequence[Layer],
    skipped: Sequence[bool],
    token: int | None,
    batch: slice,
    xp: Any,
) -> Array:
    inputs = rows_of(inputs, batch)
    omega = layers[-1].select(batch).attention(inputs, query=token)
    weights = compiled(_over_queries, xp)(omega)
    if skipped[-1]:
        tokens = inputs.shape[1]
        read = np.full(tokens, 1 / tokens) if token is None else np.eye(tokens)[token]
        read = np.tile(read, (inputs.shape[0], 1, 1))
        weights = joined([from_host(read, inputs), weights], axis=1)
    for layer, skip in reversed(list(zip(layers[:-1], skipped))):
        above, attention = weights, layer.select(batch).attention(inputs)
        weights = compiled(_continued, xp)(attention, above)
        if skip:
            weights = joined([above, weights], axis=1)
    return xp.matmul(weights, inputs)


def _over_queries(omega: Array) -> Array:
    """Mean over query tokens, of which there is one unless the mean is read out: (batch, H, M)."""
    return array_api_compat.array_namespace(omega).mean(omega, axis=-1)


def _continued(omega: Array, weights: Array) -> Array:
    """Weights of tokens along paths, (batch, paths, M), with a layer below: (batch, H·paths, M).

    v_{h, rest}(s) = sum over t of Omega_{h, s, t} v_rest(t): no M x M product is formed.
    """
    xp = array_api_compat.array_namespace(omega)
    weights = xp.matmul(weights[:, None, :, :], xp.matrix_transpose(omega))
    return xp.reshape(weights, (omega.shape[0], -1, omega.shape[2]))


def _readout_token(readout: Readout, tokens: int) -> int | None:
    if readout == "mean":
        return None
    if readout in ("first", "last"):
        return 0 if readout == "first" else tokens - 1
    if isinstance(readout, int) and not isinstance(readout, bool):
        if -tokens <= readout < tokens:
            return readout % tokens
        raise ValueError(f"readout names token {readout}, but sequences have {tokens} tokens")
    raise ValueError(f'readout must be "first", "last", "mean" or a token index, not {readout!r}')


def _check_width(inputs: Array, width: int, name: str) -> None:
    if inputs.shape[-1] != width:
        raise ValueError(
            f"inputs of shape {tuple(inputs.shape)} have width N_0 = {inputs.shape[-1]}, "
            f"but {name} expect N_0 = {width}"
        )


def _keep(array: Array, kept: Sequence[int], axis: int = 0) -> Array:
    xp = array_namespace(array=array)
    count = array.shape[axis]
    if not kept or min(kept) < 1 or max(kept) > count:
        raise ValueError(f"kept names heads {list(kept)} of a layer that has heads 1 to {count}")
    indices = xp.asarray([head - 1 for head in kept], device=array_api_compat.device(array))
    return xp.take(array, indices, axis=axis)
