"""Example space with the kernels of all pairs of paths in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from pathkernel_core.arrays.backend import (
    Array,
    array_namespace,
    compile_function,
    fill_rows,
    from_host,
    packed_order,
)
from pathkernel_core.arrays.products import matmul
from pathkernel_core.energy.examples import ExampleSpace
from pathkernel_core.energy.kernel_batches import SharedKernels
from pathkernel_core.energy.kernel_energy import kernel_energy


@dataclass(frozen=True, eq=False)
class KernelSpace(ExampleSpace, SharedKernels):
    """Example space with the kernels of all pairs of paths in memory; for few paths and examples.

    One product mixes them into K, another reads M − R off (K + T1)⁻¹, neither larger for more
    inputs per path.
    """

    name = "kernels"

    @property
    def n_paths(self) -> int:
        """Number n of paths."""
        return self.features.shape[1]

    @cached_property
    def kernels(self) -> Array:
        """Kernels Φ_π Φ_π'ᵀ of pairs of paths, (n(n+1)/2, P(P+1)/2) for one output.

        U_ππ' = U_π'π then multiplies both orders of a pair, so that their sum is stored, a packed
        symmetric matrix. With several outputs, all pairs in full, (n², P²).
        """
        evaluate = compile_function(
            _kernels, array_namespace(features=self.features), static=("outputs",)
        )
        return evaluate(self.features, outputs=self.labels.shape[1])

    @property
    def _evaluation(self) -> tuple[Callable, tuple[Array, Array]]:
        return kernel_energy, (self.kernels, self.labels)


def _kernels(features: Array, *, outputs: int) -> Array:
    paths = features.shape[1]
    rows = paths * (paths + 1) // 2 if outputs == 1 else paths**2
    return fill_rows(_by_path(features, outputs), rows)


def _by_path(features: Array, outputs: int) -> Iterator[Array]:
    """Kernels of every path with those up to it, or with all for several outputs."""
    xp = array_namespace(features=features)
    by_path = xp.permute_dims(features, (1, 0, 2))
    paths, examples, _ = by_path.shape
    entries = from_host(packed_order(examples)[0], features, xp.int64)
    for path in range(paths):  # packed path by path: all pairs in full would be four times as many
        duals = by_path[: path + 1, ...] if outputs == 1 else by_path
        kernel = matmul(by_path[path, ...], xp.matrix_transpose(duals))
        if outputs == 1:
            # a pair is C + Cᵀ, which would count a path with itself twice
            share = from_host([1.0] * path + [0.5], features)[:, None, None]
            kernel = share * (kernel + xp.matrix_transpose(kernel))
        kernel = xp.reshape(kernel, (kernel.shape[0], -1))
        yield xp.take(kernel, entries, axis=1) if outputs == 1 else kernel
