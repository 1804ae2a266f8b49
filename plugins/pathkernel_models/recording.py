"""Record the attention weights, values and outputs of the heads of a module while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pathkernel_models.inputs.masks import SOFTMAX, by_sequence, hidden_keys
from pathkernel_models.precision import lowest_precision

_DROPOUT = (torch.dropout, F.dropout)
_LOG_SUMS = (torch.logsumexp, Tensor.logsumexp)
_SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, F.sigmoid)


@dataclass(frozen=True, eq=False)
class Points:
    """Places in a module where values and outputs of its heads can be observed.

    Attributes
    ----------
    values : Module
        Its output holds the values of all heads.
    readers : tuple of Module
        The input of one of them holds the outputs of all heads, one after the other: the output
        projection, or a norm before it.
    by_head : callable
        Takes the output of ``values``, (batch, key, …), and returns (batch, H, key, G), or None if
        it has another form.
    projection : Module
        Its input are the states that heads attend to.
    linear : callable, optional
        Takes states and returns the values without bias, in the form of ``values``, for a module
        that uses the weight of ``values`` without running it.
    gate : (Module, callable), optional
        A module, and a function from its output to the factors of the heads' outputs,
        (batch, query, H, 1) or (batch, query, H, G).
    """

    values: nn.Module
    readers: tuple[nn.Module, ...]
    by_head: Callable[[Tensor], Tensor | None]
    projection: nn.Module
    linear: Callable[[Tensor], Tensor] | None = None
    gate: tuple[nn.Module, Callable[[Tensor], Tensor]] | None = None


class Recording(TorchFunctionMode):
    """Attention weights, values and outputs of heads of one forward pass.

    A mode sees the functions of PyTorch that any code calls. Hooks see modules alone, and few
    models have one for the softmax; replacing their functions would need each model's code.

    Parameters
    ----------
    rows : int, optional
        Number of the last queries whose weights are computed where a fused kernel hides them; all
        by default.

    Attributes
    ----------
    weights : list of Tensor
        Attention weights that PyTorch's functions computed.
    hidden : list of Tensor or None
        Keys that each of them hides from all queries, see :func:`hidden_keys`.
    values, outputs : list of Tensor
        Output of ``Points.values``, and inputs of ``Points.readers``.
    states : Tensor or None
        Attended states in ``multi_head_attention_forward``, if it ran.
    value_states : Tensor or None
        Input of ``Points.projection``.
    gates : list of Tensor
        Output of the module of ``Points.gate``.
    random : bool
        Whether a fused kernel dropped weights at random.
    has_sinks : bool
        Whether entries behind those of the keys were cut off the weights, or would be: Granite's
        sinks leave the softmax a share, the sigmoid of its log-sum less the sink.
    """

    def __init__(self, rows: int | None = None) -> None:
        super().__init__()
        self._rows = rows
        self.weights: list[Tensor] = []
        self.hidden: list[Tensor | None] = []
        self.values: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.states: Tensor | None = None
        self.value_states: Tensor | None = None
        self.gates: list[Tensor] = []
        self.random = False
        self.has_sinks = False
        self._cut: Tensor | None = None  # first entries of the last weights
        self._log_sums: Tensor | None = None  # of scores, (batch, H, query)
        self._share: Tensor | None = None  # of the softmax that sinks leave to the keys

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # the mode is off inside a function that it sees, so that this one has to return its weights
        if function is F.multi_head_attention_forward:
            return self._multi_head(function, args, kwargs)
        output = function(*args, **kwargs)
        if function in SOFTMAX and output.ndim > 2:  # of a router or classifier it has two axes
            self._note(output, function, args, kwargs)
        elif function in _DROPOUT and self.weights and args and args[0] is self.weights[-1]:
            self.weights[-1] = output  # what multiplies the values, and is compared with them
        elif function in _DROPOUT and self._cut is not None and args and args[0] is self._cut:
            self._cut = output
        elif function in _LOG_SUMS:
            self._log_sums = output
        elif function in _SIGMOIDS and self._is_share(output):
            self._share, self.has_sinks = output, True
        elif function is Tensor.__getitem__ and self.weights and args[0] is self.weights[-1]:
            self._note_cut(output)
        elif function is F.scaled_dot_product_attention:
            # a context around this one shall not see it, nor checkpoints what it would save
            with torch._C.DisableTorchFunction(), torch.no_grad():
                weights = _fused_weights(*args, rows=self._rows, **kwargs)
            self._note(weights, function, args, kwargs)
            dropped = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            self.random = self.random or dropped > 0
        return output

    def _multi_head(self, function: Any, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor | None]:
        # weights of each head, of which the caller gets what it asked for: none, or their mean
        per_head = {"need_weights": True, "average_attn_weights": False}
        output, weights = function(*args, **kwargs | per_head)
        self._note(weights, function, args, kwargs)
        self.states = args[2].transpose(0, 1)
        if not kwargs.get("need_weights", True):
            return output, None
        return output, weights.mean(dim=1) if kwargs.get("average_attn_weights", True) else weights

    def _note(self, weights: Tensor, function: Any, args: tuple, kwargs: dict) -> None:
        self._leave_sinks()
        self._cut = None
        self.weights.append(weights)
        self.hidden.append(hidden_keys(function, args, kwargs))

    def _is_share(self, share: Tensor) -> bool:
        """Whether the first sigmoid behind log-sums is of their shape, as that of a sink is."""
        return self._share is None and (
            self._log_sums is not None and share.shape == self._log_sums.shape
        )

    def _note_cut(self, weights: Tensor) -> None:
        """Note the first entries of the last weights, which may be those of the keys."""
        whole = self.weights[-1]
        is_part = weights.shape[:-1] == whole.shape[:-1] and weights.shape[-1:] < whole.shape[-1:]
        places = [(tensor.stride(), tensor.storage_offset()) for tensor in (weights, whole)]
        if is_part and places[0] == places[1]:  # a view from the first entry on
            self._cut = weights

    def _leave_sinks(self) -> None:
        """Take the first entries of the last weights for them, if these are as many as keys."""
        if self._cut is None:
            return
        whole, cut = self.weights[-1], self._cut
        keys = {whole.shape[-2]} if not self.values else {*self.values[-1].shape[:-1]}
        if cut.shape[-1] in keys and whole.shape[-1] not in keys:
            hidden = self.hidden[-1]
            self.weights[-1], self._cut, self.has_sinks = cut, None, True
            self.hidden[-1] = None if hidden is None else hidden[..., : cut.shape[-1]]

    @contextmanager
    def observe(self, points: Points | None) -> Iterator[None]:
        """Record everything inside the context."""

        def note_states(_: nn.Module, inputs: tuple, named: dict) -> None:
            self.value_states = first_argument(inputs, named)

        def note_values(_: nn.Module, __: tuple, output: Any) -> None:
            self.values.append(first_tensor(output))

        def note_gate(_: nn.Module, __: tuple, output: Any) -> None:
            self.gates.append(first_tensor(output).detach())

        def note_outputs(_: nn.Module, inputs: tuple, named: dict) -> None:
            self.outputs.append(first_argument(inputs, named))

        with ExitStack() as stack:
            if points is not None:
                # first among the hooks, which may switch heads off
                handles = [points.values.register_forward_hook(note_values, prepend=True)]
                if points.gate is not None:
                    handles += [points.gate[0].register_forward_hook(note_gate, prepend=True)]
                for module, note in (
                    (points.projection, note_states),
                    *((reader, note_outputs) for reader in points.readers),
                ):
                    handles += [
                        module.register_forward_pre_hook(note, prepend=True, with_kwargs=True)
                    ]
                for handle in handles:
                    stack.callback(handle.remove)
            stack.enter_context(self)
            yield

    def attention(self, batch: int, heads: int) -> Tensor | None:
        """Return the weights (batch, H, query, key), or None of several; other shapes unchanged."""
        number = self._number(batch, heads)
        if number is None:
            return None
        weights = _by_head(self.weights[number], batch, heads)
        if weights is None:
            return self.weights[number]
        if self._share is not None and self._share.shape == weights.shape[:-1]:
            return weights * self._share[..., None].to(weights)
        return weights

    def precision(self, states: Tensor) -> torch.dtype:
        """Return the lowest precision of states, weights, values and outputs of the heads."""
        return lowest_precision(states, *self.weights, *self.values, *self.outputs)

    def tokens(self, batch: int, heads: int) -> Tensor | None:
        """Return the token mask (batch, key), False at hidden keys, or None if none are hidden."""
        number = self._number(batch, heads)
        hidden = None if number is None else by_sequence(self.hidden[number], batch)
        return None if hidden is None else ~hidden

    def padding(self, batch: int, heads: int) -> Tensor | None:
        """Return keys that no query may attend to, (batch, key), or None if it cannot be told."""
        number = self._number(batch, heads)
        if number is None or (weights := _by_head(self.weights[number], batch, heads)) is None:
            return None
        hidden = self.hidden[number]
        if hidden is None or not hidden.any():
            return torch.zeros(batch, weights.shape[-1], dtype=torch.bool, device=weights.device)
        return by_sequence(hidden, batch)

    def _number(self, batch: int, heads: int) -> int | None:
        """Return which of the weights are those of the heads, or None of several."""
        self._leave_sinks()
        if len(self.weights) == 1:
            return 0
        shaped = [_by_head(weights, batch, heads) for weights in self.weights]
        fitting = [number for number, weights in enumerate(shaped) if weights is not None]
        return fitting[0] if len(fitting) == 1 else None


def _by_head(weights: Tensor, batch: int, heads: int) -> Tensor | None:
    """Return weights as (batch, H, query, key), or None if they are of another shape."""
    if weights.ndim == 3 and len(weights) == batch * heads:
        return weights.unflatten(0, (batch, heads))
    if weights.ndim == 5 and weights.shape[1] * weights.shape[2] == heads:  # by groups
        return weights.flatten(1, 2)
    return weights if weights.ndim == 4 and weights.shape[:2] == (batch, heads) else None


def _fused_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    rows: int | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute the weights of ``scaled_dot_product_attention``, 0 for a fully masked query."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    # the last queries, since a causal mask leaves the first ones hardly a choice: attention to a
    # single key is 1, whatever the scores
    length = query.shape[-2]
    first = 0 if rows is None else max(0, length - rows)
    scores = query[..., first:, :] @ key.mT
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        keys = torch.arange(key.shape[-2], device=scores.device)
        attn_mask = keys <= torch.arange(first, length, device=scores.device)[:, None]
    elif attn_mask is not None and attn_mask.ndim > 1 and attn_mask.shape[-2] == length:
        attn_mask = attn_mask[..., first:, :]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1).nan_to_num(0.0)


def first_tensor(output: Any) -> Any:
    """Return the output of a module, or the first of several."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the hidden states that a block or its attention is called with."""
    return args[0] if args else next(iter(kwargs.values()))
