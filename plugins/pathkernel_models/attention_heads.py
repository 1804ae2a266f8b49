"""Describe the position of an attention module's heads in its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.arguments import described
from pathkernel_models.errors import CaptureError
from pathkernel_models.linear_maps import projection_matrix


@dataclass(frozen=True, eq=False)
class AttentionHeads:
    """Heads of your own attention module, the result of its method ``pathkernel_heads()``.

    Its attention weights are the results of ``softmax`` or ``scaled_dot_product_attention``.
    Capture compares attention times values with the input of ``output``.

    Parameters
    ----------
    count : int
        Number of heads H.
    output : Linear
        Projection of the outputs of all heads, G numbers of each, one head after the other.
    projections : sequence of Linear
        Projections to queries, keys and values, with rows head by head, and then others, such as
        of positions or gates; or a single one for all three, with rows (3, H, G); or two, one of
        queries, and one of keys and values with rows (2, H, G). Keys and values may have fewer
        heads, each shared by equally many consecutive ones. Without projections attention is not
        compared, and heads cannot be taken out of the weights.
    by_head : bool
        Whether a single projection has rows (H, 3, G), or of two the second (H, keys, G), with
        keys and values of any sizes for every head.
    score_bias : Embedding or Parameter, optional
        Bias of the attention scores, or a table of it, with a column for each head.
    batch_first : bool
        Whether inputs are (batch, token, N_0), not (token, batch, N_0).
    gate : (Module, callable), optional
        A module, and a function from its output (batch, token, …) to the factors of the outputs of
        the heads, (batch, token, H), or of the numbers that they pass on, (batch, token, H·G). A
        linear map with as many rows loses those of heads that are taken out.
    value_norm : Module, optional
        Norm of the values within every head; its output (batch, token, H, G) holds them.
    value_scale : float
        Constant factor of the values.
    query_norm, key_norm : Module, optional
        Norm of the queries, or keys, of all heads at once, with a weight of as many numbers.
    parameters : sequence of Parameter
        The module's own with an entry on the first axis for every head, such as sinks, whose scores
        are in the softmax behind those of the keys.

    Raises
    ------
    CaptureError
        If shapes of the weights do not fit the number of heads.
    TypeError
        If ``count`` is no whole number, or a part is no module.
    """

    count: int
    output: nn.Module
    projections: tuple[nn.Module, ...] = ()
    by_head: bool = False
    score_bias: nn.Module | nn.Parameter | None = None
    batch_first: bool = True
    gate: tuple[nn.Module, Callable[[Tensor], Tensor]] | None = None
    value_norm: nn.Module | None = None
    value_scale: float = 1.0
    query_norm: nn.Module | None = None
    key_norm: nn.Module | None = None
    parameters: Sequence[nn.Parameter] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.count, Integral) or isinstance(self.count, bool):
            raise TypeError(f"count must be a whole number of heads, but is {self.count!r}")
        is_module = isinstance(self.projections, nn.Module)
        if (is_module and not isinstance(self.projections, nn.ModuleList)) or not hasattr(
            self.projections, "__iter__"
        ):
            raise TypeError(
                f"projections must be a list of modules, but is {described(self.projections)}; put "
                "a single one into a list"
            )
        object.__setattr__(self, "projections", tuple(self.projections))
        tables = (nn.Parameter, type(None))  # others are modules
        biases = () if isinstance(self.score_bias, tables) else (self.score_bias,)
        for part in (self.output, *self.projections, *biases):
            if not isinstance(part, nn.Module):
                raise TypeError(
                    "output, projections and score_bias must be modules, such as nn.Linear, but "
                    f"one is {described(part)}"
                )
            weight = getattr(part, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim != 2:
                raise CaptureError(
                    f"output, projections or score_bias hold a {type(part).__name__}, whose weight "
                    f"has shape {tuple(weight.shape)}; give linear maps, of matrices"
                )
            if not isinstance(getattr(part, "weight", None), Tensor):
                raise CaptureError(
                    f"output or projections hold a {type(part).__name__} whose weight is no "
                    "tensor, as of quantised ones; take the model as it was before quantisation"
                )
        self._check_steps()
        width = self.output.weight.shape[self.output_axis]
        rows = [len(_rows(projection)) for projection in self.projections]
        if not 0 < self.count <= width or width % self.count:
            raise CaptureError(
                f"{self.count} heads do not share the {width} inputs of output evenly"
            )
        if not rows:
            return
        groups = self.groups
        parts = [self.count, groups, groups]
        if len(rows) < len(parts):  # fused ones are the last
            parts = [*parts[: len(rows) - 1], sum(parts[len(rows) - 1 :])]
        if self._joins_by_head:
            parts = [self.count, self.count]
        parts += [self.count] * (len(rows) - len(parts))
        # of norms of all heads at once, queries of heads that are gone are still computed
        norms = (self.query_norm, self.key_norm)
        even = [
            count % part == 0 or (index < 2 and norms[index] is not None)
            for index, (count, part) in enumerate(zip(rows, parts))
        ]
        if (
            groups < 1
            or self.count % groups
            or not all(even)
            or (len(rows) < 3 and not self._joins_by_head and rows[-1] != parts[-1] * self.size)
            or (self._joins_by_head and rows[1] <= self.count * self.size)
        ):
            raise CaptureError(
                f"projections of {', '.join(map(str, rows))} rows are not those of queries, keys "
                f"and values of {self.count} heads, of which each passes on {self.size} numbers"
            )
        for name, norm, part in zip(("query_norm", "key_norm"), norms, (self.count, groups)):
            weight = getattr(norm, "weight", None)
            if norm is not None and not (
                isinstance(weight, Tensor) and weight.ndim == 1 and len(weight) % part == 0
            ):
                shape = tuple(weight.shape) if isinstance(weight, Tensor) else "none"
                raise CaptureError(
                    f"{name} must have a weight of {part} equal parts, one for every head, but its "
                    f"shape is {shape}; leave out a norm within every head"
                )

    def _check_steps(self) -> None:
        """Raise a CaptureError or TypeError unless steps within the heads are of their kinds."""
        is_pair = isinstance(self.gate, tuple | list) and len(self.gate) == 2
        if self.gate is not None and not (
            is_pair and isinstance(self.gate[0], nn.Module) and callable(self.gate[1])
        ):
            raise TypeError(
                "gate must be a pair, a module and a function from its output to the factors, such "
                f"as (self.gate, torch.sigmoid), but is {described(self.gate)}"
            )
        for name in ("value_norm", "query_norm", "key_norm"):
            if not isinstance(getattr(self, name), nn.Module | None):
                raise TypeError(f"{name} must be a module, not {described(getattr(self, name))}")
        if not isinstance(self.value_scale, Real) or isinstance(self.value_scale, bool):
            raise TypeError(f"value_scale must be a number, not {described(self.value_scale)}")
        object.__setattr__(self, "parameters", tuple(self.parameters))
        if isinstance(self.score_bias, nn.Parameter) and self.score_bias.shape[1:] != (self.count,):
            raise CaptureError(
                f"score_bias must have {self.count} columns, one for every head, but has shape "
                f"{tuple(self.score_bias.shape)}"
            )
        for parameter in self.parameters:
            if not isinstance(parameter, Tensor) or parameter.shape[:1] != (self.count,):
                shape = tuple(parameter.shape) if isinstance(parameter, Tensor) else ""
                raise CaptureError(
                    f"parameters must be tensors with {self.count} entries on the first axis, one "
                    f"for every head, but one is {described(parameter)} {shape}".rstrip()
                )

    @property
    def output_axis(self) -> int:
        """Axis of the heads in the weight of ``output``."""
        return input_axis(self.output)

    @property
    def size(self) -> int:
        """Size G of a head's output."""
        return self.output.weight.shape[self.output_axis] // self.count

    @property
    def is_fused(self) -> bool:
        """Whether queries, keys and values share one projection."""
        return len(self.projections) == 1

    @property
    def groups(self) -> int:
        """Number of heads of keys and values."""
        if self._joins_by_head:
            return self.count
        if self.is_fused:
            return (len(_rows(self.projections[0])) // self.size - self.count) // 2
        return len(_rows(self.value_projection)) // self.size // (2 if self._joins_keys else 1)

    @property
    def _joins_keys(self) -> bool:
        """Whether keys and values share a projection that is not of the queries."""
        return len(self.projections) == 2

    @property
    def _joins_by_head(self) -> bool:
        """Whether they share it head by head, so that keys may have another size than values."""
        return self._joins_keys and self.by_head

    @property
    def value_projection(self) -> nn.Module:
        """Projection of the values, or one that they share."""
        return self.projections[min(len(self.projections), 3) - 1]

    @property
    def value_source(self) -> nn.Module:
        """Module whose output holds the values of all heads."""
        return self.value_projection if self.value_norm is None else self.value_norm

    def values(self, rows: Tensor) -> Tensor:
        """Select the values of each head, (H, G, …), from rows (R, …) of their projection."""
        if self._joins_by_head:
            values = rows.unflatten(0, (self.groups, -1))[:, -self.size :]
        elif self.by_head and self.is_fused:
            values = rows.unflatten(0, (self.groups, -1, self.size))[:, -1]
        else:
            values = rows[-self.groups * self.size :].unflatten(0, (self.groups, self.size))
        return values.repeat_interleave(self.count // self.groups, dim=0)

    def values_by_head(self, values: Tensor) -> Tensor | None:
        """Return values (batch, token, …, R) of their source as (batch, H, token, …, G).

        None if they have another form.
        """
        if self.value_norm is not None and self.groups > 1:
            is_split = values.shape[-2:] == (self.groups, self.size)
            values = values.flatten(-2) if is_split else values
        if values.shape[-1] != len(_rows(self.value_projection)):
            return None
        heads = self.values(values.movedim(-1, 0)).movedim(2, 0).movedim(2, -1)
        return heads if self.value_scale == 1 else heads * self.value_scale

    def factors(self, output: Tensor) -> Tensor:
        """Return the factors of the heads, (batch, token, H, 1 or G), of the output of the gate.

        Raises a CaptureError if they have another shape.
        """
        assert self.gate is not None
        try:
            factors: Any = self.gate[1](output)
        except Exception as error:  # whatever a function of the user's raises
            raise CaptureError(
                f"the function of gate raised {type(error).__name__}: {error}; its argument is the "
                f"output of {type(self.gate[0]).__name__}, {tuple(output.shape)}"
            ) from error
        sizes = (self.count, self.count * self.size)
        shape = tuple(factors.shape) if isinstance(factors, Tensor) else described(factors)
        if not isinstance(factors, Tensor) or factors.ndim != 3 or factors.shape[-1] not in sizes:
            raise CaptureError(
                f"the function of gate must return (batch, token, {sizes[0]}), or (batch, token, "
                f"{sizes[1]}), but returned {shape}"
            )
        return factors.unflatten(-1, (self.count, -1))

    def linear(self, states: Tensor) -> Tensor:
        """Return the values of states (batch, token, N_0), without bias."""
        return nn.functional.linear(states, _rows(self.value_projection).detach().to(states))

    def value_weights(self, where: str) -> Tensor:
        """Return the matrix that gives each head's values, (H, G, N_0), of a layer."""
        projection = self.value_projection
        weights = self.values(projection_matrix(projection, _rows(projection), where))
        return weights if self.value_scale == 1 else weights * self.value_scale

    def slices(self) -> Iterator[tuple[nn.Module, int, Tensor]]:
        """Yield modules, the axis of the heads in their weight, and the users of every entry.

        The last is a bool tensor (entries, H).
        """
        single = torch.eye(self.count, dtype=torch.bool)
        group = torch.eye(self.groups, dtype=torch.bool)
        group = group.repeat_interleave(self.count // self.groups, dim=1)
        for index, projection in enumerate(self.projections):
            norm = (self.query_norm, self.key_norm, None)[min(index, 2)]
            if norm is not None:  # of all heads: those that are gone count in it
                continue
            if self.is_fused and self.by_head:
                queries = single.unflatten(0, (self.groups, -1))
                blocks = torch.cat([queries, group[:, None], group[:, None]], dim=1).flatten(0, 1)
            elif self.is_fused:
                blocks = torch.cat([single, group, group])
            elif self._joins_keys and index == 1:
                blocks = group if self._joins_by_head else torch.cat([group, group])
            else:
                blocks = group if index in (1, 2) else single
            rows = len(_rows(projection))
            yield (
                projection,
                _row_axis(projection),
                blocks.repeat_interleave(rows // len(blocks), 0),
            )
        gate = None if self.gate is None else self.gate[0]
        if gate is not None and all(gate is not part for part in self.projections):
            weight = getattr(gate, "weight", None)
            if isinstance(weight, Tensor) and len(_rows(gate)) % self.count == 0:
                yield (
                    gate,
                    _row_axis(gate),
                    single.repeat_interleave(len(_rows(gate)) // self.count, dim=0),
                )
        yield self.output, self.output_axis, single.repeat_interleave(self.size, dim=0)
        if isinstance(self.score_bias, nn.Module):
            yield self.score_bias, 1, single

    def parameters_by_head(self) -> Iterator[tuple[nn.Parameter, int]]:
        """Yield parameters beside the linear maps, and the axis of the heads in each."""
        for parameter in self.parameters:
            yield parameter, 0
        if isinstance(self.score_bias, nn.Parameter):
            yield self.score_bias, 1

    def joint_norms(self) -> Iterator[tuple[nn.Module, Tensor]]:
        """Yield the norms of queries or keys of all heads, and the users of every entry.

        The last is a bool tensor (entries, H).
        """
        for norm, count in ((self.query_norm, self.count), (self.key_norm, self.groups)):
            if norm is not None:
                users = torch.eye(count, dtype=torch.bool)
                users = users.repeat_interleave(self.count // count, dim=1)
                yield norm, users.repeat_interleave(len(norm.weight) // count, dim=0)


def _row_axis(projection: nn.Module) -> int:
    """Axis of the outputs in a projection's weight; GPT-2's is transposed."""
    return 1 if type(projection).__name__ == "Conv1D" else 0


def input_axis(projection: nn.Module) -> int:
    """Axis of the inputs in a projection's weight."""
    return 1 - _row_axis(projection)


def _rows(projection: nn.Module) -> Tensor:
    """Return the weight of a projection, outputs first."""
    weight: Tensor = projection.weight
    return weight.T if _row_axis(projection) else weight
