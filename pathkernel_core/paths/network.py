"""The network of the theory: layers, heads, widths, prior variances, and its attention paths."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathkernel_core.arrays.scalars import positive, whole_number
from pathkernel_core.paths.heads import every_head, head_label
from pathkernel_core.system.notebook import table
from pathkernel_core.system.text import number

Skips = float | None | Sequence[float | None]


@dataclass(frozen=True)
class Network:
    """Multi-head attention network with L layers, or of B independent branches: the prior.

    Parameters
    ----------
    heads : sequence of int
        Heads H_1 … H_L of each attention layer, first layer first.
    widths : float or sequence of float
        Hidden widths N_1 … N_{L+1}, N_1 after the projection and N_{ℓ+1} after layer ℓ: one number
        for all, or L + 1 numbers. A level of width ``inf`` does not adapt: its order parameter is
        fixed at its prior mean σ²_ℓ (1 ⊗ U_{ℓ+1}).
    variances : float or sequence of float
        Prior variances σ²_0 (projection), σ²_1 … σ²_L (value weights), σ²_a (readout): one number
        for all, or L + 2 numbers.
    outputs : int
        Number C of network outputs.
    skips : float or None, or sequence of L of them, optional
        Strengths s_ℓ ≥ 0 of skip connections, x^ℓ = s_ℓ x^{ℓ-1} + (sum over heads): one for all
        layers, or one for each. A layer with a skip connection has additional paths past its heads,
        whose head number is 0. None, the default, stands for a layer without one.
    shared : bool
        Whether the heads of a layer share the weights around it. If False, the network is a sum of
        B independent branches, ``heads=(B,)``, each with a projection and a readout of its own: see
        the notes.

    Raises
    ------
    ValueError
        If a number is missing, not positive or, except for widths, not finite, or the widths
        around a skip connection differ; or if independent branches have several layers, several
        outputs or skip connections.
    TypeError
        If a value is not a number.

    Notes
    -----
    Choose widths by P/N: U adapts where there are about as many labels as hidden units or more, and
    stays at its prior where there are few. With more paths than width the log evidence is NaN, and
    predictions rest on the saddle point alone: sample to check them.

    With ``shared=False``, f = Σ_l (N_l B)^{-1/2} a_l·V_l ξ_l/√N_0 as in Zhang and Sompolinsky (ICLR
    2025): ``widths`` are N_1 … N_B, one for all or one for each branch, ``variances`` σ²_V and
    σ²_a. Outputs of different branches are independent given u_l = σ²_V |a_l|²/N_l, so that the
    order parameter is diagonal, (B,): see :mod:`pathkernel_core.action.branches`. A branch of
    infinite width keeps u_l = σ²_V σ²_a.

    Examples
    --------
    >>> import pathkernel as pk
    >>> pk.Network(heads=(2, 2), widths=10).path_labels
    ('1-1', '1-2', '2-1', '2-2')
    >>> pk.Network(heads=(2, 1), widths=10, skips=(0.7, None)).path_labels
    ('skip-1', '1-1', '2-1')
    >>> pk.Network(heads=(3,), widths=(10, 20, 20), shared=False).limit_diagonal
    array([1., 1., 1.])
    """

    heads: tuple[int, ...]
    widths: tuple[float, ...]
    variances: tuple[float, ...] = (1.0,)
    outputs: int = 1
    skips: tuple[float | None, ...] = ()
    shared: bool = True

    def __init__(
        self,
        heads: Sequence[int],
        widths: float | Sequence[float],
        variances: float | Sequence[float] = 1.0,
        outputs: int = 1,
        skips: Skips = None,
        shared: bool = True,
    ):
        single = isinstance(heads, numbers.Number) or getattr(heads, "ndim", None) == 0
        heads = _whole_numbers("heads", (heads,) if single else heads)
        if not heads:
            raise ValueError("heads must name at least one layer, for example heads=(2, 2)")
        layers = len(heads)
        levels, level_names = layers + 1, "N_1 … N_{L+1}"
        factors, factor_names = layers + 2, "σ²_0, σ²_1 … σ²_L, σ²_a"
        if not isinstance(shared, bool | np.bool_):
            raise TypeError(f"shared must be True or False, not {shared!r}")
        if not shared:
            levels, level_names = heads[0], "N_1 … N_B, one for each branch"
            factors, factor_names = 2, "σ²_V, σ²_a"
        fields: dict[str, Any] = {
            "heads": heads,
            "outputs": _whole_numbers("outputs", (outputs,))[0],
            "skips": skips_of_layers(skips, layers),
            "shared": bool(shared),
        }
        if not shared:
            _check_independent(**fields)
        fields["widths"] = _numbers("widths", widths, levels, level_names, infinite=True)
        fields["variances"] = _numbers("variances", variances, factors, factor_names)
        # their product multiplies the kernel: were it 0 or infinite, no temperature would fit
        limit = math.prod(fields["variances"])
        if not np.finfo(float).tiny <= limit < math.inf:
            raise ValueError(
                f"variances multiply to {limit:g}, beyond double precision; choose values nearer "
                "to 1"
            )
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        for layer, skip in enumerate(self.skips, start=1):
            if skip is None:
                continue
            below, above = self.widths[layer - 1 : layer + 1]
            if below != above:
                raise ValueError(
                    f"the skip connection of layer {layer} adds its input to its output, so that "
                    f"widths N_{layer} and N_{layer + 1} must be equal, but are "
                    f"{number(below)} and {number(above)}"
                )

    def __repr__(self) -> str:
        widths = f"({', '.join(map(number, self.widths))})"
        if not self.shared and len(set(self.widths)) == 1:  # there may be thousands
            widths = number(self.widths[0])
        fields = [
            f"heads={self.heads!r}",
            f"widths={widths}",
            f"variances={self.variances!r}",
            f"outputs={self.outputs!r}",
            f"skips={self.skips!r}",
        ]
        if not self.shared:
            fields[-2:] = ["shared=False"]
        return f"Network({', '.join(fields)})"

    def _repr_html_(self) -> str:
        rows: dict[str, object]
        if not self.shared:
            fewest, most = min(self.widths), max(self.widths)
            widths = number(fewest) if fewest == most else f"{number(fewest)} to {number(most)}"
            rows = {"independent branches": f"{self.n_paths}", "widths N_1 … N_B": widths}
        else:
            rows = {
                "heads of each layer": ", ".join(map(str, self.heads)),
                "attention paths": f"{self.n_paths}",
                "widths N_1 … N_{L+1}": ", ".join(map(number, self.widths)),
            }
        rows |= {
            "prior variances": ", ".join(f"{variance:g}" for variance in self.variances),
            "outputs": self.outputs,
        }
        if self.has_skips:
            rows["skip connections"] = self.skip_words
        return table("Network", rows)

    @property
    def n_layers(self) -> int:
        """Number L of attention layers."""
        return len(self.heads)

    @property
    def has_skips(self) -> bool:
        """Whether any layer has a skip connection, even of strength 0."""
        return self.steps != self.heads

    @property
    def skip_words(self) -> str:
        """Strengths of the skip connections by layer, such as ``"0.7, none"``."""
        return ", ".join("none" if skip is None else f"{skip:g}" for skip in self.skips)

    @property
    def steps(self) -> tuple[int, ...]:
        """Number of steps of each layer: its heads, and one more for a skip connection."""
        return tuple(heads + (skip is not None) for heads, skip in zip(self.heads, self.skips))

    @property
    def n_paths(self) -> int:
        """Number n of attention paths, the product of the steps of all layers."""
        return math.prod(self.steps)

    @property
    def finite_widths(self) -> tuple[float, ...]:
        """Widths that are finite, first layer first."""
        return tuple(filter(math.isfinite, self.widths))

    @property
    def width(self) -> float:
        """Largest finite width, the N by which the action is divided; 1 if all are infinite."""
        return max(self.finite_widths, default=1.0)

    @property
    def smallest_width(self) -> float:
        """Smallest finite width, to which tolerances refer; 1 if all are infinite."""
        return min(self.finite_widths, default=1.0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the order parameters U_1 … U_L, u_a: partial paths times outputs.

        Independent branches have size 1 for each u_l.
        """
        if not self.shared:
            return (1,) * self.n_paths
        partial = [math.prod(self.steps[layer:]) for layer in range(self.n_layers + 1)]
        return tuple(count * self.outputs for count in partial)

    @property
    def shared_sizes(self) -> tuple[int, ...]:
        """Sizes of the leading blocks of U_1 … U_L, u_a that a skip repeats from above, or 0."""
        if not self.shared:
            return (0,) * self.n_paths
        above = zip(self.skips, self.sizes[1:])
        return (*(0 if skip is None else size for skip, size in above), 0)

    @property
    def path_scales(self) -> np.ndarray:
        """Coefficients c_π √n of the rows of U, shape (n·C,): 1 without skip connections.

        c_π is the product of s_ℓ over the layers that a path skips and 1/√H_ℓ over the others. It
        replaces the 1/√n of the features (Eq. 10).
        """
        # relative to 1/√n, which features carry; n counts paths through skips, hence √(H + 1)
        scales = np.ones(1)
        for count, heads, skip in zip(self.steps, self.heads, self.skips):
            factors = [math.sqrt(count / heads)] * heads
            if skip is not None:
                factors.insert(0, skip * math.sqrt(count))
            scales = np.kron(scales, factors)
        return np.repeat(scales, self.outputs)

    @property
    def limit_diagonal(self) -> np.ndarray:
        """Diagonal of U in the Gaussian process limit N → ∞, shape (n·C,): variances multiplied."""
        if not self.shared:
            return np.full(self.n_paths, math.prod(self.variances))
        # from the readout down, as the prior is; a skip passes on what is above it without σ²_ℓ
        above = self.variances[-1] * np.ones(self.outputs)
        layers = list(zip(self.heads, self.order_parameter_variances, self.skips))
        for heads, variance, skip in reversed(layers):
            of_heads = np.tile(variance * above, heads)
            above = of_heads if skip is None else np.concatenate([above, of_heads])
        return above

    @property
    def kernel_variance(self) -> float:
        """Prior variance outside the order parameter, σ²_0; 1 for independent branches."""
        return self.variances[0] if self.shared else 1.0

    @property
    def order_parameter_variances(self) -> tuple[float, ...]:
        """Prior variance that enters each order parameter U_1 … U_L, u_a: σ²_1 … σ²_L, σ²_a.

        Independent branches have σ²_V σ²_a for all.
        """
        return self.variances[1:] if self.shared else (math.prod(self.variances),)

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Paths as tuples of head numbers from 1, in index order (first layer slowest).

        A skip connection is 0, and comes before the heads of its layer.
        """
        layers = zip(self.steps, self.heads)
        return tuple(itertools.product(*(range(1 + h - count, h + 1) for count, h in layers)))

    @property
    def path_labels(self) -> tuple[str, ...]:
        """Labels such as ``"1-2"``: head 1 of the first layer, head 2 of the second.

        ``"skip-2"`` bypasses the heads of the first layer.
        """
        return tuple("-".join(str(head or "skip") for head in path) for path in self.paths)

    @property
    def head_labels(self) -> tuple[str, ...]:
        """Layer and number of every head, such as ``"2-1"``, in the order of ``head_scores``."""
        return tuple(map(head_label, every_head(self.heads)))

    def keep_heads(self, heads: Sequence[Iterable[int]]) -> Network:
        """Sub-network with only some heads of each layer, and all skip connections.

        Parameters
        ----------
        heads : sequence of L iterables of int
            Head numbers of each layer, from 1; a layer cannot be empty.
        """
        numbers_of_heads = self._head_numbers(heads)
        counts, widths = [len(layer) for layer in numbers_of_heads], self.widths
        if not self.shared:
            widths = tuple(self.widths[head - 1] for head in numbers_of_heads[0])
        return Network(counts, widths, self.variances, self.outputs, self.skips, self.shared)

    def paths_through(self, heads: Sequence[Iterable[int]]) -> np.ndarray:
        """Indices of the paths that use only these heads of each layer, or skip it."""
        layers = [{0, *layer} for layer in self._head_numbers(heads)]
        inside = [all(map(set.__contains__, layers, path)) for path in self.paths]
        return np.flatnonzero(inside)

    def _head_numbers(self, heads: Sequence[Iterable[int]]) -> list[list[int]]:
        try:
            layers = [sorted(set(layer)) for layer in heads]
        except TypeError:
            raise TypeError(
                f"heads must list those of each layer, such as ((1, 2), (1,)), not {heads!r}"
            ) from None
        if len(layers) != self.n_layers:
            raise ValueError(
                f"heads must name those of each of the {self.n_layers} layers, "
                f"but has {len(layers)} entries"
            )
        for index, (layer, count) in enumerate(zip(layers, self.heads), start=1):
            if not layer or layer[0] < 1 or layer[-1] > count:
                raise ValueError(
                    f"layer {index} has heads 1 to {count}, of which at least one must be kept, "
                    f"but heads names {layer}"
                )
        return layers


def _whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    checked = []
    for value in values:
        try:
            checked.append(whole_number(name, value))
        except ValueError:
            raise ValueError(f"{name} must be positive whole numbers, but has {value!r}") from None
    return tuple(checked)


def skips_of_layers(skips: Skips, layers: int) -> tuple[float | None, ...]:
    """Strength of the skip connection of each layer, None for a layer without one.

    Raises
    ------
    ValueError, TypeError
        If a strength is not a number from 0, or their number is neither 1 nor that of the layers.
    """
    strengths: Any = skips.item() if getattr(skips, "ndim", None) == 0 else skips  # type: ignore[union-attr]
    if strengths is None or isinstance(strengths, numbers.Real | str):
        strengths = (strengths,) * layers
    strengths = tuple(strengths) if isinstance(strengths, Iterable) else (strengths,)
    for skip in strengths:
        if skip is None:
            continue
        if not isinstance(skip, numbers.Real) or isinstance(skip, bool | np.bool_):
            raise TypeError(
                "skips must be one number, or None for a layer without a skip connection, for all "
                f"layers or for each, but has {skip!r}"
            )
        if skip < 0 or not math.isfinite(skip):
            raise ValueError(f"each of skips must be a finite number from 0, but is {skip!r}")
    if len(strengths) != layers:
        raise ValueError(
            f"skips must be one for all or one for each of {layers} layers, "
            f"but has {len(strengths)}"
        )
    return tuple(None if skip is None else float(skip) for skip in strengths)


def _check_independent(
    heads: tuple[int, ...], outputs: int, skips: tuple[float | None, ...], shared: bool
) -> None:
    """Raise ValueError where independent branches are not defined."""
    remedy = "; leave shared out for heads that share their weights"
    if len(heads) > 1:
        raise ValueError(
            f"shared=False stands for one layer of independent branches, heads=(B,), but heads is "
            f"{heads}: paths through several layers share weights, so that U is not diagonal"
            + remedy
        )
    if outputs > 1:
        raise ValueError(
            f"shared=False needs outputs=1, but outputs is {outputs}: the readouts of a branch "
            "share its projection, so that u_l is a matrix over outputs" + remedy
        )
    if skips != (None,):
        raise ValueError(
            f"shared=False excludes skip connections, but skips is {skips}: a skip is a path of "
            "all branches. Give the inputs past the attention a branch of their own"
        )


def _numbers(
    name: str, values: Any, count: int, meaning: str, infinite: bool = False
) -> tuple[float, ...]:
    if isinstance(values, numbers.Real) or getattr(values, "ndim", None) == 0:
        values = (values,) * count
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be one number or {count} numbers ({meaning}), not {values!r}")
    checked = tuple(
        math.inf if infinite and _is_infinite(value) else positive(f"each of {name}", value)
        for value in values
    )
    if len(checked) != count:
        raise ValueError(
            f"{name} must be one number or {count} numbers ({meaning}), but has {len(checked)}"
        )
    return checked


def _is_infinite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and value == math.inf
