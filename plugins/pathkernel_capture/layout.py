"""Where an attention module has its heads, in the rows and columns of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pathkernel_capture.errors import CaptureError


@dataclass(frozen=True, eq=False)
class AttentionHeads:
    """Heads of a self-attention module of your own.

    A module whose method ``pathkernel_heads()`` returns this is captured, switched off, scored and
    made smaller as those of the libraries are. Its attention weights are those that it computes by
    ``softmax`` or ``scaled_dot_product_attention``. Capture compares their product with the values
    with the input of ``output``.

    Parameters
    ----------
    count : int
        Number of heads H.
    output : Linear
        Takes the outputs of all heads, G numbers of each, one head after the other.
    projections : sequence of Linear
        Of queries, keys and values, whose rows lie head by head. Keys and values may have fewer
        heads, each shared by as many consecutive ones. Projections of positions may follow. Or a
        single one for all three, with rows (3, H, G). Without any, attention is not compared with
        the model's own, and no head can be taken out of the weights.
    by_head : bool
        Whether the rows of a single one are (H, 3, G), each head's three together.
    score_bias : Embedding, optional
        Bias of the scores, with a column for each head.
    batch_first : bool
        Whether the module takes (batch, token, N_0), not (token, batch, N_0).

    Raises
    ------
    CaptureError
        If weights do not divide into so many heads.
    """

    count: int
    output: nn.Module
    projections: tuple[nn.Module, ...] = ()
    by_head: bool = False
    score_bias: nn.Module | None = None
    batch_first: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "projections", tuple(self.projections))
        width = self.output.weight.shape[self.output_axis]
        rows = [len(_rows(projection)) for projection in self.projections]
        if not 0 < self.count <= width or width % self.count or len(rows) == 2:
            raise CaptureError(
                f"{self.count} heads do not share the {width} inputs of output evenly, or "
                f"projections, {len(rows)}, are not those of queries, keys and values, or one"
            )
        if not rows:
            return
        groups = self.groups
        parts = [self.count + 2 * groups] if self.fused else [self.count, groups, groups]
        parts += [self.count] * (len(rows) - len(parts))
        if (
            groups < 1
            or self.count % groups
            or any(count % part for count, part in zip(rows, parts))
            or (self.fused and rows[0] != parts[0] * self.size)
        ):
            raise CaptureError(
                f"projections of {', '.join(map(str, rows))} rows are not those of queries, keys "
                f"and values of {self.count} heads, of which each passes on {self.size} numbers"
            )

    @property
    def output_axis(self) -> int:
        """Axis of the output's weight on which heads lie."""
        return 1 - _row_axis(self.output)

    @property
    def size(self) -> int:
        """Numbers that a head passes on, G."""
        return self.output.weight.shape[self.output_axis] // self.count

    @property
    def fused(self) -> bool:
        """Whether one projection gives queries, keys and values."""
        return len(self.projections) == 1

    @property
    def groups(self) -> int:
        """Number of heads of keys and values."""
        if self.fused:
            return (len(_rows(self.projections[0])) // self.size - self.count) // 2
        return len(_rows(self.value_projection)) // self.size

    @property
    def value_projection(self) -> nn.Module:
        """Projection of the values, or the one for all three."""
        return self.projections[0 if self.fused else 2]

    def values(self, rows: Tensor) -> Tensor:
        """Values of each head, (H, G, …), among the rows (R, …) of their projection."""
        if self.by_head and self.fused:
            values = rows.unflatten(0, (self.groups, -1, self.size))[:, -1]
        else:
            values = rows[-self.groups * self.size :].unflatten(0, (self.groups, self.size))
        return values.repeat_interleave(self.count // self.groups, dim=0)

    def value_weights(self) -> Tensor:
        """Weights of each head's values, (H, G, N_0)."""
        return self.values(_rows(self.value_projection))

    def slices(self) -> Iterator[tuple[nn.Module, int, Tensor]]:
        """Modules, the axis of their weight on which heads lie, and which heads use an entry.

        The last is of booleans, (entries, H).
        """
        single = torch.eye(self.count, dtype=torch.bool)
        group = torch.eye(self.groups, dtype=torch.bool)
        group = group.repeat_interleave(self.count // self.groups, dim=1)
        for index, projection in enumerate(self.projections):
            if self.fused and self.by_head:
                queries = single.unflatten(0, (self.groups, -1))
                blocks = torch.cat([queries, group[:, None], group[:, None]], dim=1).flatten(0, 1)
            elif self.fused:
                blocks = torch.cat([single, group, group])
            else:
                blocks = group if index in (1, 2) else single
            rows = len(_rows(projection))
            yield (
                projection,
                _row_axis(projection),
                blocks.repeat_interleave(rows // len(blocks), 0),
            )
        yield self.output, self.output_axis, single.repeat_interleave(self.size, dim=0)
        if self.score_bias is not None:
            yield self.score_bias, 1, single


def _row_axis(projection: nn.Module) -> int:
    """Axis of a projection's weight on which its outputs lie; GPT-2's is transposed."""
    return 1 if type(projection).__name__ == "Conv1D" else 0


def _rows(projection: nn.Module) -> Tensor:
    """Weight of a projection, outputs first."""
    weight: Tensor = projection.weight
    return weight.T if _row_axis(projection) else weight
