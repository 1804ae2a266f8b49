"""Kernels of pairs of paths from a kernel of tokens: attention above a nonlinear embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    batches,
    compile_function,
    from_host,
    is_true,
    join_batches,
    not_overflown,
    not_underflown,
    real_floating,
    rows_of,
)
from pathkernel_core.arrays.products import matmul, vecdot
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.kernel_packing import check_size
from pathkernel_core.energy.token_kernels import TOKEN_KERNELS
from pathkernel_core.energy.token_kernels.token_kernel import KernelFunction
from pathkernel_core.paths.contraction import BATCH_ELEMENTS, Contraction, Readout
from pathkernel_core.paths.layers import Layer
from pathkernel_core.paths.network import Skips
from pathkernel_core.system.memory import check_memory


def path_kernels(
    inputs: Array,
    layers: Sequence[Layer],
    kernel: str | KernelFunction = "relu",
    *,
    readout: Readout = "last",
    skips: Skips = None,
    variance: float = 1.0,
    new: Array | None = None,
    new_layers: Sequence[Layer] | None = None,
) -> Any:
    """Kernels of all pairs of paths, from a kernel of tokens (Eq. 10, attention of Eq. 7).

    C_ππ'(x, x') = Σ_ss' A^π_s(x) A^π'_s'(x') k(x_s, x'_s'), where A^π is the product of attention
    along the path π, and k a kernel of two tokens. A token-wise layer of infinite width below the
    network has exactly the kernel of its activation function.

    Parameters
    ----------
    inputs : array, shape (P, M, N_0)
        Token sequences of the training examples; attention and gates see these bare inputs.
    layers : sequence of Layer
        Attention of each layer, first layer first.
    kernel : str or callable
        Kernel k. A name: "relu" or "erf" of a token-wise layer with the activation function max(0,
        u) or erf(u), "linear" of none, x·x'/N_0, as :func:`attentioned_inputs` implies. Or a
        function (k_ab, k_aa, k_bb) → k' of the linear kernel, k_ab between tokens and k_aa and k_bb
        of each token with itself, which works element by element on arrays that broadcast. It must
        be positive semidefinite; :func:`check_kernel` tests it.
    readout : {"last", "first", "mean"} or int
        Token at which the network is read out, or the mean over tokens.
    skips : optional
        Skip connections, as for :func:`attentioned_inputs`.
    variance : float
        Prior variance of the weights of the token-wise layer: a factor of the linear kernel.
    new : array, shape (P*, M, N_0), optional
        New examples x*, for predictions.
    new_layers : sequence of Layer, optional
        Attention on the new examples; by default the same layers, which serve unless they are
        :class:`Attention` matrices.

    Returns
    -------
    array, shape (n, n, P, P)
        Kernels C_ππ'(x, x') of the training examples, for :meth:`Problem.from_kernels`; paths
        in index order (first layer slowest, a skip first).
    cross, own : arrays, shape (n, n, P*, P) and (n, n, P*)
        Instead, if there are new examples: C_ππ'(x*, x) and C_ππ'(x*, x*), for
        :meth:`Solution.predict`.

    Raises
    ------
    ValueError
        If a shape does not fit, an array holds NaN or infinity, a kernel overflows, underflows or
        has another shape, a function is not symmetric in its two tokens, the name of a kernel is
        unknown, or the kernels of the training examples are more than :meth:`Problem.from_kernels`
        takes for one output.
    TypeError
        If the arrays are of different libraries or devices.
    TooLargeError
        If the kernels would take more than half of the machine's memory. They take 16 n² P² bytes
        in float64, half of that once they are returned.

    Notes
    -----
    The projection of the network, of variance σ²_0, follows the token-wise layer. Below it only the
    kernel is nonlinear: deeper token-wise blocks are functions of functions (k_ab, k_aa, k_bb). At
    finite width a token-wise layer would learn features, which this does not describe.

    Examples
    --------
    >>> import numpy as np
    >>> import pathkernel as pk
    >>> rng = np.random.default_rng(0)
    >>> layers = [pk.AttentionProduct(rng.normal(size=(2, 5, 5)))]
    >>> inputs, new = rng.normal(size=(20, 6, 5)), rng.normal(size=(3, 6, 5))
    >>> kernels = pk.path_kernels(inputs, layers, "relu")
    >>> kernels.shape
    (2, 2, 20, 20)
    >>> problem = pk.Problem.from_kernels(kernels, np.sign(inputs[:, 0, 0]))
    >>> solution = pk.minimise_action(problem, pk.Network((2,), 50), 0.1)
    >>> cross, own = pk.path_kernels(inputs, layers, "relu", new=new)
    >>> cross.shape, own.shape
    ((2, 2, 3, 20), (2, 2, 3))
    >>> solution.predict(cross, own).mean.shape
    (3,)
    """
    xp = array_namespace(inputs=inputs)
    inputs = real_floating("inputs", inputs, ("P", "M", "N_0"))
    of_tokens = _Kernel(kernel, positive("variance", variance) / inputs.shape[2])
    contraction = Contraction.of(inputs, layers, readout, skips)
    if new is None and new_layers is not None:
        raise ValueError("new_layers are those of new examples; leave them out, or give new")
    rows, of_new = inputs.shape[0], contraction
    if new is not None:
        xp = array_namespace(inputs=inputs, new=new)
        new = real_floating("new", new, ("P*", "M", inputs.shape[2]))
        names = ("new", "layers" if new_layers is None else "new_layers")
        of_new = Contraction.of(
            new, layers if new_layers is None else new_layers, readout, skips, names
        )
        rows = new.shape[0]
        if of_new.n_paths != contraction.n_paths:
            raise ValueError(
                f"new_layers have {of_new.n_paths} paths, but layers have {contraction.n_paths}; "
                "give the attention of the same heads"
            )
    paths = contraction.n_paths
    if new is None:  # the theory would not take more, either
        check_size(paths, rows, outputs=1)
    check_memory(
        f"the kernels of all pairs of {paths} paths, {rows} × {inputs.shape[0]} examples each,",
        2 * xp.finfo(inputs.dtype).bits // 8 * paths**2 * rows * inputs.shape[0],
        "take fewer examples, heads or layers",
    )
    with np.errstate(all="ignore"):
        of_tokens.check_function(inputs, *(() if new is None else (new,)))
        train = _Sequences.of(inputs, contraction)
        train.check_scale("inputs", of_tokens)
        if new is None:
            return not_overflown("the kernels", _between_all(train, of_tokens), "rescale inputs")
        tests = _Sequences.of(new, of_new)
        tests.check_scale("new", of_tokens)
        cross, own = _across(tests, train, of_tokens), _with_themselves(tests, of_tokens)
    not_overflown("the kernels", cross, "rescale inputs or new")
    return cross, not_overflown("the kernels of new examples", own, "rescale new")


def kernel_function(kernel: str | KernelFunction) -> KernelFunction:
    """Function of a kernel of tokens that is named, or given as a function.

    Raises
    ------
    ValueError
        If there is none of this name.
    """
    if callable(kernel):
        return kernel
    if kernel not in TOKEN_KERNELS:
        names = ", ".join(f'"{name}"' for name in TOKEN_KERNELS)
        raise ValueError(
            f"kernel must be {names} or a function (k_ab, k_aa, k_bb) → k', not {kernel!r}"
        )
    return TOKEN_KERNELS[kernel].function


@dataclass(frozen=True)
class _Kernel:
    """Kernel of tokens."""

    kernel: str | KernelFunction
    scale: float
    """Factor of the product of two tokens, σ²/N_0."""
    function: KernelFunction = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "function", kernel_function(self.kernel))

    def __call__(self, products: Array, squares: Array, dual_squares: Array) -> Array:
        """Kernel of tokens from their products (…, a, b), and the squares of both, (…, a or b)."""
        scaled = (self.scale * products, self.scale * squares, self.scale * dual_squares)
        if not callable(self.kernel):
            xp = array_api_compat.array_namespace(products)
            return compile_function(self.function, xp)(*scaled)
        # never compiled: a program would stay with every function that is made inside another
        values = self.function(*scaled)
        xp = array_namespace(inputs=products, values=values)
        values = real_floating("the result of kernel", values, tuple(products.shape))
        return xp.astype(values, products.dtype, copy=False)

    def check_function(self, *inputs: Array) -> None:
        """Raise a ValueError if a user's function is not symmetric, or underflows, on tokens."""
        if not callable(self.kernel):
            return
        xp = array_api_compat.array_namespace(*inputs)
        tokens = xp.concat([_some_tokens(sequences) for sequences in inputs])
        products, squares = matmul(tokens, xp.matrix_transpose(tokens)), vecdot(tokens, tokens)
        values = self(products, squares[:, None], squares[None, :])
        deviations = xp.abs(values - xp.matrix_transpose(values))
        largest, info = xp.max(xp.abs(values)), xp.finfo(values.dtype)
        if not is_true(xp.max(deviations) <= math.sqrt(float(info.eps)) * largest):
            raise ValueError(
                f"kernel {_name(self.kernel)} is not symmetric in its tokens: k(k_ab, k_aa, k_bb) "
                f"and k(k_ab, k_bb, k_aa) differ by up to {float(xp.max(deviations)):.3g} on the "
                "inputs; make it a function of both tokens alike"
            )
        smallest = float(info.smallest_normal) / float(info.eps)
        if not is_true((largest >= smallest) | (xp.max(squares) == 0)):
            raise ValueError(
                f"kernel {_name(self.kernel)} is too small for {values.dtype}: its largest value "
                f"on the inputs is {float(largest):.2g}; rescale it or the inputs"
            )


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _some_tokens(inputs: Array) -> Array:
    """At most 64 tokens, at even distances, (m, N_0)."""
    xp = array_api_compat.array_namespace(inputs)
    tokens = xp.reshape(inputs, (-1, inputs.shape[2]))
    some = np.unique(np.linspace(0, tokens.shape[0] - 1, _CHECKED_TOKENS).astype(int))
    return xp.take(tokens, from_host(some, tokens, xp.int64), axis=0)


@dataclass(frozen=True, eq=False)
class _Sequences:
    """Token sequences (P, M, N_0), and the weight of every token along every path, (P, n, M)."""

    tokens: Array
    weights: Array

    @classmethod
    def of(cls, inputs: Array, contraction: Contraction) -> _Sequences:
        size = max(1, BATCH_ELEMENTS // contraction.elements_per_example(inputs))
        in_batches = batches(inputs.shape[0], size)
        return cls(
            inputs, join_batches([contraction.weights(inputs, batch) for batch in in_batches])
        )

    def __getitem__(self, batch: slice) -> _Sequences:
        return _Sequences(rows_of(self.tokens, batch), rows_of(self.weights, batch))

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def check_scale(self, name: str, kernel: _Kernel) -> None:
        """Raise a ValueError if kernels of these sequences underflow."""
        not_underflown(
            f"the kernels of {name}",
            self.tokens,
            self.tokens,
            self.weights,
            self.weights,
            scale=kernel.scale,
            remedy=f"rescale {name}",
        )

    @property
    def squares(self) -> Array:
        """Squared length of every token, (P, M)."""
        return vecdot(self.tokens, self.tokens)

    def blocks(self, other: _Sequences) -> tuple[list[slice], list[slice]]:
        """Batches of examples, so that no array of two of them is large."""
        pairs = _BLOCK_ELEMENTS // (
            max(self.tokens.shape[1], other.tokens.shape[1])
            * max(other.tokens.shape[1], self.weights.shape[1])
        )
        size = max(1, math.isqrt(pairs))
        return batches(len(self), size), batches(len(other), size)


_CHECKED_TOKENS = 64  # on which a user's kernel must be symmetric
_BLOCK_ELEMENTS = 2**17  # elements of the kernel of the tokens of two batches: they stay in cache


def _between_all(train: _Sequences, kernel: _Kernel) -> Array:
    """Kernels (n, n, P, P), of which C_ππ'(x, x') = C_π'π(x', x) is computed once."""
    xp = array_api_compat.array_namespace(train.tokens)
    every, _ = train.blocks(train)
    rows: list[Array] = []
    for number, batch in enumerate(every):
        parts = [_transposed(rows_of(row, batch, axis=3), xp) for row in rows]
        block = _block(train[batch], train[batch], kernel)
        parts.append((block + _transposed(block, xp)) / 2)  # symmetric to the last digit
        parts += [_block(train[batch], train[other], kernel) for other in every[number + 1 :]]
        rows.append(join_batches(parts, axis=3))
    return join_batches(rows, axis=2)


def _transposed(block: Array, xp: Any) -> Array:
    return xp.permute_dims(block, (1, 0, 3, 2))


def _across(left: _Sequences, right: _Sequences, kernel: _Kernel) -> Array:
    """Kernels (n, n, P, P') of two sets of examples."""
    rows, columns = left.blocks(right)
    return join_batches(
        [
            join_batches([_block(left[row], right[column], kernel) for column in columns], axis=3)
            for row in rows
        ],
        axis=2,
    )


def _with_themselves(sequences: _Sequences, kernel: _Kernel) -> Array:
    """Kernels (n, n, P) of every example with itself."""
    xp = array_api_compat.array_namespace(sequences.tokens)
    largest = max(sequences.weights.shape[1:])
    size = max(1, _BLOCK_ELEMENTS // (sequences.tokens.shape[1] * largest))
    parts = []
    for batch in batches(len(sequences), size):
        of_batch = sequences[batch]
        products = matmul(of_batch.tokens, xp.matrix_transpose(of_batch.tokens))
        squares = of_batch.squares
        tokens = kernel(products, squares[:, :, None], squares[:, None, :])
        along = matmul(of_batch.weights, tokens)
        parts.append(matmul(along, xp.matrix_transpose(of_batch.weights)))
    return xp.permute_dims(join_batches(parts), (1, 2, 0))


def _block(left: _Sequences, right: _Sequences, kernel: _Kernel) -> Array:
    """Kernels (n, n, B, B') of two batches."""
    xp = array_api_compat.array_namespace(left.tokens)
    rows = xp.reshape(left.tokens, (-1, left.tokens.shape[2]))
    columns = xp.reshape(right.tokens, (-1, right.tokens.shape[2]))
    products = matmul(rows, xp.matrix_transpose(columns))
    squares, dual = xp.reshape(left.squares, (-1, 1)), xp.reshape(right.squares, (1, -1))
    tokens = kernel(products, squares, dual)
    return compile_function(_contracted, xp)(tokens, left.weights, right.weights)


def _contracted(tokens: Array, left: Array, right: Array) -> Array:
    """Kernels (n, n, B, B') from that of tokens (B·M, B'·M') and path weights (B, n, M)."""
    xp = array_api_compat.array_namespace(tokens)
    (batch, paths, _), (dual, _, dual_tokens) = left.shape, right.shape
    along = matmul(left, xp.reshape(tokens, (batch, -1, dual * dual_tokens)))
    along = xp.permute_dims(xp.reshape(along, (batch, paths, dual, dual_tokens)), (2, 0, 1, 3))
    along = xp.reshape(along, (dual, batch * paths, dual_tokens))
    pairs = xp.reshape(matmul(along, xp.matrix_transpose(right)), (dual, batch, paths, -1))
    return xp.permute_dims(pairs, (2, 3, 1, 0))
