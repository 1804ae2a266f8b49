"""Examples that the rows of a model's outputs depend on.

The derivative of a sum over examples by a gain of each example is that of the example, if none
depends on the gains of others. In contrastive losses, in-batch softmax or outputs less their mean
over the batch every row depends on all examples. Shapes do not show which case holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from pathkernel_models.derivatives import derivatives

Relation = Literal["examples", "sequences", "batch"]
"""Rows of outputs in the order of the examples, each of one or several consecutive sequences of
the batch; rows of one sequence each, such as tokens, in any order; or any other."""

_ROUNDING = 5e-3  # of kernels of half precision that sum in another order at every run
_SCALES = (1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 0.125, -0.125)


def likely_relation(rows: int, sequences: Sequence[int]) -> Relation:
    """Return the relation that the numbers of rows and of every layer's sequences let expect."""
    if not any(count % rows for count in sequences):
        return "examples"
    return "sequences" if len(set(sequences)) == 1 and sequences[0] <= rows else "batch"


def relation(outputs: Tensor, leaves: Sequence[Tensor]) -> tuple[Relation, int]:
    """Return the relation of outputs (B, C) to leaves (S, …), and the passes that it took.

    Two or four backward passes, which retain the graph.
    """
    rows, sequences = len(outputs), [len(leaf) for leaf in leaves]
    likely = likely_relation(rows, sequences)
    if likely == "batch":
        return likely, 0
    if likely == "examples":
        return ("batch" if examples_interact(outputs, leaves, name="outputs") else likely), 2
    tested = sorted({rows // 2, rows - 1})
    are_apart = all(_is_of_one_sequence(outputs, row, leaves) for row in tested)
    return "sequences" if are_apart else "batch", len(tested)


def examples_interact(
    values: Tensor,
    leaves: Sequence[Tensor],
    *,
    name: str,
    by_example: Callable[[list[Tensor]], Sequence[Tensor]] = list,
    slopes: Sequence[Tensor] | None = None,
) -> bool:
    """Whether values (P, …) of an example depend on the leaves of others.

    Parameters
    ----------
    values : Tensor
    leaves : sequence of Tensor
        Leaves of several consecutive sequences for each example, on the first axis.
    name : str
        Function that gives the values, for messages.
    by_example : callable
        Takes derivatives by all leaves, and gives them with examples on the first axis.
    slopes : sequence of Tensor, optional
        Derivatives of the sum of all values by the leaves, if they are known: one backward pass
        for two.
    """
    # A sum with a factor for each example multiplies the derivatives by the leaves of the example
    # by it, and by no other. Powers of 2 do not change the rounding
    rows, columns = len(values), values.shape[1:]
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor(_SCALES).repeat(-(-rows // len(_SCALES)))[:rows]
    scales = scales[torch.randperm(rows, generator=generator)]
    directions = torch.ones(columns)
    if slopes is None:  # rows may sum to a constant, such as those of a softmax
        directions = torch.randn(columns, generator=generator)
        slopes = derivatives(values, leaves, directions.to(values).expand_as(values), name=name)
    by_row = scales.reshape(-1, *[1] * len(columns)) * directions
    scaled = derivatives(values, leaves, by_row.to(values), name=name)
    for plain, changed in zip(by_example(list(slopes)), by_example(scaled)):
        factors = scales.to(plain).repeat_interleave(len(plain) // rows)
        expected = plain * factors.reshape(-1, *[1] * (plain.ndim - 1))
        size = torch.maximum(expected.abs().max(), changed.abs().max())
        if (changed - expected).abs().max() > _ROUNDING * size:
            return True
    return False


def _is_of_one_sequence(outputs: Tensor, row: int, leaves: Sequence[Tensor]) -> bool:
    """Whether a row of outputs depends on the leaves of one sequence at most."""
    directions = torch.zeros_like(outputs)
    directions[row] = torch.randn(outputs.shape[1], generator=torch.Generator().manual_seed(0))
    slopes = torch.autograd.grad(outputs, leaves, directions, retain_graph=True, allow_unused=True)
    sizes = [slope.abs().flatten(1).amax(dim=1) for slope in slopes if slope is not None]
    # what a row does not depend on has derivatives of 0 exactly, in half precision, too
    touched = [size > 0 for size in sizes]
    return not touched or int(torch.stack(touched).any(dim=0).sum()) <= 1
