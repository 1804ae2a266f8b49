"""Which heads can be taken out of the weights of a network together.

Heads of a layer that share a head of keys and values are a group (grouped-query attention). The
attention repeats every head of keys and values equally often, so that whole groups can go, and of
the groups that stay as many heads each. A set of heads is a row of bool along the axis of
:func:`pathkernel_core.paths.heads.every_head`, as in :mod:`pathkernel_pruning.heads.heads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, islice, product
from operator import or_

import numpy as np

Unit = tuple[int, ...]
"""Heads that go or come together, as positions on the axis of heads."""

_MOST_UNITS = 64  # of one kind in a layer that exchanges go through


@dataclass(frozen=True)
class HeadGroups:
    """Sets of heads that the weights of a network can lose.

    A search removes heads in *units*, sets that can go together: a single head, a whole group, or
    one head of each group that stays. Every set that is allowed can be reached in such steps.

    Attributes
    ----------
    heads : tuple of int
        Heads H_1 … H_L of each layer.
    groups : tuple of int
        Groups of each layer, of equally many consecutive heads. With one group, or as many as
        heads, every head can go alone.
    keeps_layers : bool
        Whether every layer keeps a head.
    """

    heads: tuple[int, ...]
    groups: tuple[int, ...]
    keeps_layers: bool = False

    def allows(self, present: np.ndarray) -> bool:
        """Whether the heads of a set, bool (ΣH_ℓ,), can be those that are left."""
        for of_layer in self._by_group(present):
            left = of_layer.sum(axis=1)
            if len({*left.tolist()} - {0}) > 1 or (self.keeps_layers and not left.any()):
                return False
        return True

    def single_heads(self, present: np.ndarray) -> np.ndarray:
        """Heads that can go alone from an allowed set, bool (ΣH_ℓ,) both."""
        free = []
        for of_layer in self._by_group(present):
            staying, each = _shape(of_layer)
            is_free = 1 in (staying, each) and staying * each > self.keeps_layers
            free.append(of_layer.ravel() & is_free)
        return np.concatenate(free)

    def blocks(self, present: np.ndarray) -> Iterator[list[list[int]]]:
        """Yield the units of several heads that can go from an allowed set, bool (ΣH_ℓ,).

        As slots: a unit takes one head of each, given by its position on the axis of heads. The
        slots of a whole group have one head each; those of one head of every group are the groups.
        """
        start = 0
        for of_layer in self._by_group(present):
            staying, each = _shape(of_layer)
            if staying > 1 and each > 1:
                size = of_layer.shape[1]
                rows = [
                    (start + number * size + np.flatnonzero(group)).tolist()
                    for number, group in enumerate(of_layer)
                    if group.any()
                ]
                yield from ([[head] for head in row] for row in rows)
                yield rows
            start += of_layer.size

    def exchanges(self, present: np.ndarray) -> Iterator[tuple[Unit, np.ndarray, list[Unit]]]:
        """Yield units that can come to an allowed set, bool (ΣH_ℓ,), and what can go for each.

        The last two are the single heads, bool (ΣH_ℓ,), and the units of several heads.
        """
        for coming, slots in self._additions(present):
            larger = present.copy()
            larger[list(coming)] = True
            if slots is not None:  # of the group that it comes to
                yield coming, slots, []
                continue
            singles, units = np.zeros(len(present), dtype=bool), list[Unit]()
            if len(coming) == 1:
                singles = self.single_heads(larger) & present
            else:
                for block in self.blocks(larger):
                    for unit in islice(product(*block), _MOST_UNITS):
                        after = larger.copy()
                        after[list(unit)] = False
                        is_equal = len(unit) == len(coming) and not {*unit} & {*coming}
                        if is_equal and self.allows(after):
                            units.append(unit)
            if singles.any() or units:
                yield coming, singles, units

    def _additions(self, present: np.ndarray) -> Iterator[tuple[Unit, np.ndarray | None]]:
        """Yield units that can come; with the heads that can go for one of the same group."""
        start = 0
        for of_layer in self._by_group(present):
            staying, each = _shape(of_layer)
            count, size = of_layer.shape
            positions = start + np.arange(of_layer.size).reshape(count, size)
            gone = [row[~left] for row, left in zip(positions, of_layer)]
            stays = [bool(group.any()) for group in of_layer]
            start += of_layer.size
            if count == 1 or size == 1:  # every head by itself
                yield from (((int(head),), None) for head in np.concatenate(gone))
                continue
            for row, absent, is_there in zip(positions, gone, stays):
                if is_there and each < size:
                    slots = np.zeros(len(present), dtype=bool)
                    slots[row] = present[row]
                    yield from (((int(head),), slots if staying > 1 else None) for head in absent)
                elif not is_there:
                    chosen = combinations(row.tolist(), each or 1)
                    yield from ((unit, None) for unit in islice(chosen, _MOST_UNITS))
            if staying > 1 and each < size:
                absent = [heads.tolist() for heads, is_there in zip(gone, stays) if is_there]
                yield from ((unit, None) for unit in islice(product(*absent), _MOST_UNITS))

    def counts(self, present: np.ndarray) -> list[int]:
        """Numbers of heads that can go from an allowed set, bool (ΣH_ℓ,), in order, with 0."""
        bits = self._counts(present)
        return [count for count in range(bits.bit_length()) if bits >> count & 1]

    def can_lose(self, present: np.ndarray, count: int) -> bool:
        """Whether some ``count`` heads can go from an allowed set, bool (ΣH_ℓ,)."""
        return count >= 0 and bool(self._counts(present) >> count & 1)

    def _counts(self, present: np.ndarray) -> int:
        """Numbers of heads that can go, as bits: a layer adds any of its own to those before."""
        bits = 1
        for of_layer in self._by_group(present):
            staying, each = _shape(of_layer)
            left = {n * m for n in range(1, staying + 1) for m in range(1, each + 1)}
            if not (left and self.keeps_layers):
                left.add(0)
            sums = [bits << (staying * each - number) for number in left]
            bits = reduce(or_, sums)
        return bits

    def _by_group(self, present: np.ndarray) -> list[np.ndarray]:
        """Heads of every layer by group, bool (groups, heads of a group)."""
        layers = np.split(present, np.cumsum(self.heads)[:-1])
        return [layer.reshape(groups, -1) for layer, groups in zip(layers, self.groups)]


def _shape(of_layer: np.ndarray) -> tuple[int, int]:
    """Number of groups that stay, and of the heads that each has left."""
    left = of_layer.sum(axis=1)
    return int(np.count_nonzero(left)), int(left.max())
