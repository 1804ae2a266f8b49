"""Contraction of attention along every path, and the attentioned inputs that it gives (Eq. 7)."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    compile_function,
    from_host,
    join_batches,
    not_overflown,
    real_floating,
    rows_of,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.arrays.scalars import whole_number
from pathkernel_core.paths.gated import Gated
from pathkernel_core.paths.layers import Attention, Layer, QueryKey
from pathkernel_core.paths.network import Skips, skips_of_layers

Readout = Literal["first", "last", "mean"] | int

BATCH_ELEMENTS = 2**21  # elements of the largest intermediate array, 16 MiB in float64


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
        Token sequences; every layer attends to these bare inputs.
    layers : sequence of Layer
        Attention of each layer, first layer first.
    readout : {"last", "first", "mean"} or int
        Token at which the network is read out, or the mean over tokens.
    batch_size : int, optional
        Examples computed at once; by default as many as keep each intermediate array in 16 MiB.
    skips : optional
        Skip connections, as for :class:`Network`: a path that skips a layer has the identity there
        instead of attention. Strengths have no effect here.

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

    Notes
    -----
    Pass new examples through the same layers, readout and skips as the training examples. If all
    paths come out nearly alike, look at the attention: heads that attend uniformly average the same
    tokens. Bring inputs to entries of order 1; :func:`minimise_action` warns where they are far.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> layers = [pk.AttentionProduct(rng.normal(size=(2, 5, 5))) for _ in range(2)]
    >>> pk.attentioned_inputs(rng.normal(size=(20, 6, 5)), layers).shape
    (20, 4, 5)
    """
    array_namespace(inputs=inputs)
    inputs = real_floating("inputs", inputs, ("P", "M", "N_0"))
    contraction = Contraction.of(inputs, layers, readout, skips)
    if batch_size is None:
        batch_size = max(1, BATCH_ELEMENTS // contraction.elements_per_example(inputs))
    else:
        batch_size = whole_number("batch_size", batch_size)
    with np.errstate(all="ignore"):
        xi_of_batches = [
            matmul(contraction.weights(inputs, batch), rows_of(inputs, batch))
            for batch in batches(inputs.shape[0], batch_size)
        ]
    xi = join_batches(xi_of_batches)
    return not_overflown("the attentioned inputs", xi, "rescale inputs or heads")


@dataclass(frozen=True, eq=False)
class Contraction:
    """Attention of all layers, multiplied along every path up to the readout.

    Attributes
    ----------
    layers : sequence of Layer
    skipped : sequence of bool
        Whether a path may skip each layer.
    token : int or None
        Token that is read out, or None for the mean.
    """

    layers: Sequence[Layer]
    skipped: Sequence[bool]
    token: int | None

    @classmethod
    def of(
        cls,
        inputs: Array,
        layers: Sequence[Layer],
        readout: Readout,
        skips: Skips,
        names: tuple[str, str] = ("inputs", "layers"),
    ) -> Contraction:
        """Check that layers, readout and skips fit these inputs (P, M, N_0); errors use the names.

        Raises
        ------
        ValueError, TypeError
            If they do not.
        """
        of_inputs, of_layers = names
        if not isinstance(layers, Sequence) or not layers:
            raise TypeError(
                f"{of_layers} must be a list of at least one attention layer, the first layer first"
            )
        for index, layer in enumerate(layers):
            if not hasattr(layer, "attention"):
                raise TypeError(
                    f"{of_layers}[{index}] must be a QueryKey, AttentionProduct, KeyVectors, "
                    f"Attention or Gated, not {type(layer).__name__}"
                )
            ungated = _strip_gate(layer)
            if isinstance(ungated, Attention) and ungated.omega.shape[0] != inputs.shape[0]:
                raise ValueError(
                    f"{of_layers}[{index}].omega holds {ungated.omega.shape[0]} examples, "
                    f"but {of_inputs} holds {inputs.shape[0]}; give the attention of these examples"
                )
        skipped = [skip is not None for skip in skips_of_layers(skips, len(layers))]
        for number, (layer, skip) in enumerate(zip(layers, skipped), start=1):
            if skip and getattr(layer, "tokens_are_paths", False):
                raise ValueError(
                    f"layer {number} cannot be skipped: its inputs already stand for paths through "
                    "its heads; leave skips out"
                )
        return cls(layers, skipped, _readout_token(readout, inputs.shape[1]))

    @property
    def n_paths(self) -> int:
        """Number of paths n."""
        return math.prod(self._branches)

    @property
    def _branches(self) -> list[int]:
        """Heads of each layer, and its skip connection."""
        return [layer.n_heads + skip for layer, skip in zip(self.layers, self.skipped)]

    def elements_per_example(self, inputs: Array) -> int:
        """Size of the largest intermediate array: scores, queries and keys, or path weights."""
        _, tokens, width = inputs.shape
        ranks = [
            layer.queries.shape[1]
            for layer in map(_strip_gate, self.layers)
            if isinstance(layer, QueryKey)
        ]
        return tokens * max(max(self._branches) * max(width, tokens, *ranks), self.n_paths)

    def weights(self, inputs: Array, batch: slice) -> Array:
        """Weight A^π_s of each token along every path, of a batch of examples: (batch, n, M).

        ξ^π = Σ_s A^π_s x_s. Paths are in index order (first layer slowest, a skip first).
        """
        ((_, _, weights),) = deque(self.stages(inputs, batch), maxlen=1)
        return weights

    def stages(self, inputs: Array, batch: slice) -> Iterator[tuple[Array, Array | None, Array]]:
        """From the last layer to the first: its attention, and path weights above and with it.

        There are none above the last layer, whose attention has the readout's query tokens alone.
        """
        inputs = rows_of(inputs, batch)
        xp = array_api_compat.array_namespace(inputs)
        *below, last = self.layers
        # from the last layer, where a readout token leaves one column of M × M; every layer below
        # then takes M² per path and head, where a product of two attentions takes M³
        omega = last.select(batch).attention(inputs, query=self.token)
        weights = compile_function(_over_queries, xp)(omega)
        if self.skipped[-1]:  # the identity as attention: the readout itself
            tokens = inputs.shape[1]
            token = self.token
            readout = np.full(tokens, 1 / tokens) if token is None else np.eye(tokens)[token]
            readout = np.tile(readout, (inputs.shape[0], 1, 1))
            weights = join_batches([from_host(readout, inputs), weights], axis=1)
        yield omega, None, weights
        for layer, skip in reversed(list(zip(below, self.skipped))):
            above = weights
            omega = layer.select(batch).attention(inputs)
            weights = compile_function(_continue_paths, xp)(omega, above)
            if skip:
                weights = join_batches([above, weights], axis=1)
            yield omega, above, weights


def _strip_gate(layer: Any) -> Any:
    """Layer whose attention is gated, or the layer itself."""
    return _strip_gate(layer.layer) if isinstance(layer, Gated) else layer


def _over_queries(omega: Array) -> Array:
    """Mean over query tokens, a single one unless the mean is read out: (batch, H, M)."""
    return array_api_compat.array_namespace(omega).mean(omega, axis=-1)


def _continue_paths(omega: Array, weights: Array) -> Array:
    """Weights of tokens along paths, (batch, paths, M) → (batch, H·paths, M) with a layer below.

    v_hπ(s) = Σ_t Ω_hst v_π(t): no product of two M × M matrices is formed.
    """
    xp = array_api_compat.array_namespace(omega)
    weights = matmul(weights[:, None, :, :], xp.matrix_transpose(omega))
    return xp.reshape(weights, (omega.shape[0], -1, omega.shape[2]))


def _readout_token(readout: Readout, tokens: int) -> int | None:
    if isinstance(readout, str) and readout == "mean":
        return None
    if isinstance(readout, str) and readout in ("first", "last"):
        return 0 if readout == "first" else tokens - 1
    try:
        token = operator.index(readout)  # type: ignore[arg-type]
    except TypeError:
        token = None
    if token is None or isinstance(readout, bool | np.bool_):
        raise ValueError(
            f'readout must be "first", "last", "mean" or a token index, not {readout!r}'
        )
    if not -tokens <= token < tokens:
        raise ValueError(f"readout names token {token}, but sequences have {tokens} tokens")
    return token % tokens
