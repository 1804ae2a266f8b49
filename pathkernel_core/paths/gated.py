"""Layers whose heads are multiplied by fixed gates of their key tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    from_host,
    identity,
    not_overflown,
    real_floating,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.arrays.scalars import whole_number
from pathkernel_core.paths.layers import Layer


@dataclass(frozen=True, eq=False)
class Gated:
    """Heads of a layer, each multiplied by fixed gates of the key token, g^m(x_s) Ω^h_st.

    Value weights V^hm behind gates, Σ_hm Σ_s V^hm x_s g^m(x_s) Ω^h_st, are the H·G heads (h, m) of
    one layer. With gates that do not learn the theory is exact for such networks: they are the
    globally gated deep linear networks of Li and Sompolinsky (NeurIPS 2022), here with attention.

    Parameters
    ----------
    layer : Layer or None
        Layer of H heads. None stands for a layer without attention, a single head with which every
        token attends to itself.
    gates : array, shape (G, N_0), or callable
        Normal vectors v of hyperplanes, for the gates 1[x·v > 0]; or a function of the inputs
        (batch, M, N_0) that returns the gates of every token, (batch, M, G).
    n_gates : int, optional
        Number G of gates, where they are a function.

    Raises
    ------
    TypeError
        If the layer is none, or the gates are neither an array nor a function.
    ValueError
        If a shape does not fit, n_gates is missing or superfluous, or gates are NaN or infinite.

    Notes
    -----
    Heads are in the order (1, 1), (1, 2) … (1, G), (2, 1) …: head (h, m) has the number
    (h − 1)·G + m, and a path goes through a head and one of its gates in every layer.

    A gated linear network without attention is ``Gated(None, gates)`` on sequences of one token,
    ``inputs[:, None, :]``. There the gates multiply the value weights below the readout; an
    infinite last width, ``Network(heads=(G,), widths=(N, math.inf))``, makes them gates of the
    readout itself. Hyperplanes pass through the origin: append a constant to the tokens for
    others. Gates see the bare input tokens in every layer, as attention does.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> inputs, hyperplanes = rng.normal(size=(20, 5)), rng.normal(size=(3, 5))
    >>> xi = pk.attentioned_inputs(inputs[:, None, :], [pk.Gated(None, hyperplanes)])
    >>> xi.shape
    (20, 3, 5)
    >>> bool((xi[:, 0] == inputs * (inputs @ hyperplanes[:1].T > 0)).all())
    True
    """

    layer: Layer | None
    gates: Array | Callable[[Array], Array]
    n_gates: int | None = None
    _kept: tuple[int, ...] | None = field(default=None, repr=False)  # of all H·G heads, from 0

    def __post_init__(self):
        if self.layer is not None and not hasattr(self.layer, "attention"):
            raise TypeError(f"layer must be a layer or None, not {type(self.layer).__name__}")
        if callable(self.gates):
            if self.n_gates is None:
                raise ValueError("n_gates must give the number of gates, where they are a function")
            object.__setattr__(self, "n_gates", whole_number("n_gates", self.n_gates))
            return
        array_namespace(gates=self.gates)
        count = real_floating("gates", self.gates, ("G", "N_0")).shape[0]
        if self.n_gates not in (None, count):
            raise ValueError(
                f"n_gates is {self.n_gates}, but gates of shape {tuple(self.gates.shape)} are "
                f"{count} hyperplanes; leave n_gates out"
            )
        object.__setattr__(self, "n_gates", count)

    @property
    def tokens_are_paths(self) -> bool:
        """Whether the layer's tokens already stand for paths."""
        return getattr(self.layer, "tokens_are_paths", False)

    @property
    def n_heads(self) -> int:
        """Number H·G of pairs of a head and a gate."""
        return len(self._heads)

    @property
    def _heads(self) -> tuple[int, ...]:
        assert self.n_gates is not None
        heads = 1 if self.layer is None else self.layer.n_heads
        return tuple(range(heads * self.n_gates)) if self._kept is None else self._kept

    def attention(self, inputs: Array, query: int | None = None) -> Array:
        """Gated attention (batch, H·G, M, M or 1) with the key token before the query token.

        Unlike that of other layers, its columns do not sum to 1.
        """
        xp = array_namespace(inputs=inputs)
        if self.layer is None:
            omega = identity(inputs.shape[1], inputs, xp)[None, None, ...]
            omega = omega if query is None else omega[..., query : query + 1]
        else:
            omega = self.layer.attention(inputs, query)
        with np.errstate(all="ignore"):
            gated = compile_function(_multiply_gates, xp)(omega, self._gates(inputs))
        if self._kept is not None:
            gated = xp.take(gated, from_host(np.array(self._kept), gated, xp.int64), axis=1)
        return not_overflown("gated attention", gated, "rescale the gates")

    def _gates(self, inputs: Array) -> Array:
        """Gates of every token, (batch, M, G)."""
        if callable(self.gates):
            gates = self.gates(inputs)
            xp = array_namespace(inputs=inputs, gates=gates)
            expected = (*inputs.shape[:2], self.n_gates)
            gates = real_floating("the result of gates", gates, expected)
            return xp.astype(gates, inputs.dtype, copy=False)
        xp = array_namespace(inputs=inputs, gates=self.gates)
        if self.gates.shape[1] != inputs.shape[2]:
            raise ValueError(
                f"gates of shape {tuple(self.gates.shape)} are hyperplanes of inputs of width "
                f"{self.gates.shape[1]}, but inputs of shape {tuple(inputs.shape)} have width "
                f"{inputs.shape[2]}"
            )
        return compile_function(_steps, xp)(inputs, self.gates)

    def select(self, examples: slice) -> Gated:
        """Layer for a slice of the examples; gates are of the tokens that it is given."""
        return self if self.layer is None else replace(self, layer=self.layer.select(examples))

    def keep_heads(self, heads: Sequence[int]) -> Gated:
        """Layer with only these pairs of a head and a gate, numbered from 1 to H·G."""
        if not heads or min(heads) < 1 or max(heads) > self.n_heads:
            raise ValueError(
                f"heads are numbered from 1 to {self.n_heads} in this layer, but are {list(heads)}"
            )
        return replace(self, _kept=tuple(self._heads[head - 1] for head in heads))

    def convert(self, function: Callable[[Array], Array]) -> Gated:
        """Layer with ``function(array)`` in place of each array; a function of gates stays."""
        layer = None if self.layer is None else self.layer.convert(function)
        gates = self.gates if callable(self.gates) else function(self.gates)
        return replace(self, layer=layer, gates=gates)


def _steps(inputs: Array, hyperplanes: Array) -> Array:
    xp = array_api_compat.array_namespace(inputs)
    sides = matmul(inputs, xp.matrix_transpose(hyperplanes))
    return xp.astype(sides > 0, inputs.dtype)


def _multiply_gates(omega: Array, gates: Array) -> Array:
    """Product of attention (batch or 1, H, M, queries) and gates (batch, M, G), the gate faster."""
    xp = array_api_compat.array_namespace(omega)
    gates = xp.matrix_transpose(gates)  # (batch, G, M)
    gated = omega[:, :, None, :, :] * gates[:, None, :, :, None]
    return xp.reshape(gated, (gated.shape[0], -1, *gated.shape[3:]))
