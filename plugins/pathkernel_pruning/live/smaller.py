"""Take heads out of the weights of a model, if it then computes the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pathkernel_models.attention_heads import AttentionHeads, input_axis
from pathkernel_models.attention_module import AttentionModule, block_name
from pathkernel_models.batches import call_model, split_batch, tensors_of
from pathkernel_models.cross_attention import exclude, include_named
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import INCLUDED, is_included
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.linear_maps import check_stored
from pathkernel_models.state import set_evaluation, without_fused_layers

Remaining = Sequence[tuple[AttentionModule, list[int]]]
"""Layers and their remaining heads, numbered from 0."""

_ROUNDING = 1e-4  # of outputs, relative to the largest; parts of many models compute in float32
_HALF_ROUNDINGS = 6  # of half precision, in a model of dozens of layers
_LENGTHS = (("out_features", "nx", "num_embeddings"), ("in_features", "nf", "embedding_dim"))
_KINDS = (("count",), ("count", "width"))
_TABLE = re.compile("rel(ative)?_pos|position_bias")  # of relative positions, wherever it lies
_RECORD = "pathkernel_removals"  # attribute of an attention module


@dataclass(frozen=True)
class Removals:
    """Heads that were taken out of a layer, one removal after the other.

    Attributes
    ----------
    count : int
        Number of heads before the first removal.
    left : tuple of tuple of int
        Remaining heads after every removal, in the numbering before the first, from 1.
    widths : tuple of bool
        Whether a removal changed the joint width of the heads, too, where the module stores it.
    """

    count: int
    left: tuple[tuple[int, ...], ...] = ()
    widths: tuple[bool, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Original numbers of the remaining heads, from 1."""
        return self.left[-1] if self.left else tuple(range(1, self.count + 1))

    def further(self, heads: Sequence[int], width: bool) -> Removals:
        """Add a removal, after which ``heads`` of the remaining ones are left, from 0."""
        left = tuple(self.numbers[head] for head in heads)
        if self.left and left == self.numbers:  # a layer of one head keeps it
            return self
        return Removals(self.count, (*self.left, left), (*self.widths, width))


def removals_of(attention: AttentionModule) -> Removals:
    """Return the removals of a layer."""
    return getattr(attention.module, _RECORD, Removals(attention.heads))


def check_divisible(attention: AttentionModule) -> None:
    """Raise a CaptureError if heads cannot be taken out of the weights of a layer."""
    module, description = attention.module, attention.description
    if isinstance(module, nn.MultiheadAttention):
        extra = module.bias_k is not None or module.add_zero_attn
        stored = isinstance(module._parameters.get("in_proj_weight"), nn.Parameter)
        divisible = bool(attention.name) and module._qkv_same_embed_dim and not extra and stored
    else:
        divisible = description is not None and bool(description.projections)
    if not divisible:
        raise CaptureError(
            f"{attention.where} keeps its shape; leave smaller out, and the weights of the heads "
            "are set to zero"
        )
    for projection in description.projections if description is not None else ():
        weight = projection.weight.movedim(input_axis(projection), -1)
        check_stored(projection, weight, attention.where)


def take_out(
    model: nn.Module,
    remaining: Remaining,
    batch: Any,
    expected: list[Tensor],
    layers: Sequence[AttentionModule],
) -> None:
    """Take all but the remaining heads, whose weights in the output may be zero, out of a model.

    ``expected`` are outputs of :func:`outputs_of` with these ``layers``.

    Raises
    ------
    CaptureError
        If the smaller model does not run on the batch, or its outputs are not, to rounding, those
        expected. The model is then as it was.
    """
    reasons = []
    # whether forward passes reshape by a number of heads alone, or by their joint width too, is in
    # the model's code: the second is tried if the first gives other outputs
    for kinds in _KINDS:
        with _Changes() as changes:
            try:
                for attention, heads in remaining:
                    _shrink(model, attention, heads, kinds, changes)
                check_same(outputs_of(model, batch, layers), expected)
            except Exception as error:  # whatever a model raises whose shapes do not fit
                reasons.append(error.__cause__ or error)
                continue
            changes.pop_all()
            return
    reason = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in reasons))
    reason = " ".join(reason.split())
    cause = _likely_cause(model, [attention for attention, _ in remaining])
    raise CaptureError(
        f"{type(model).__name__} with heads taken out does not compute what it does with them off "
        f"({reason}); it is left as it was. {cause}Leave smaller out, and their weights are set to "
        "zero"
    ) from reasons[0]


def _likely_cause(model: nn.Module, layers: Sequence[AttentionModule]) -> str:
    """Return a sentence on what heads of some layers share, or have beside their projections."""
    for attention in layers:
        if names := _parameters_beside(model, attention):
            return (
                f"Heads of {attention.where} have parameters beside their projections, which are "
                f"not taken out: {', '.join(names[:4])}. "
            )
    if any(attention.groups < attention.heads for attention in layers):
        return "Of heads that share keys and values take whole groups, or as many of each. "
    return ""


def _parameters_beside(model: nn.Module, attention: AttentionModule) -> list[str]:
    """Return names of parameters that no projection of a layer has, but of its heads' sizes."""
    description = attention.description
    if description is None:
        return []
    known = {parameter for part, _, _ in description.slices() for parameter in part.parameters()}
    heads, width = attention.heads, attention.heads * description.size
    block, names = block_name(attention), []
    for name, parameter in model.named_parameters():
        sizes = set(parameter.shape)
        # a bias of a fused projection, apart from its module, has entries of all three
        is_inside = name.startswith(f"{attention.name}.") and sizes & {heads, width, 3 * width}
        # of this block, or of all
        is_table = _TABLE.search(name) and heads in sizes
        is_table = is_table and (name.startswith(f"{block}.") or not re.search("[0-9]", name))
        if parameter not in known and (is_inside or is_table):
            names.append(name)
    return names


@contextmanager
def removed_again(model: nn.Module, removals: Mapping[str, Removals]) -> Iterator[None]:
    """Take heads out of a whole model as before, by names of layers; undone if an error is raised.

    Weights are selected, but outputs are not compared: the state of the smaller model replaces
    them. Cross-attention among the names is included. Raises a CaptureError if the model has no
    such layers or heads.
    """
    with _Changes() as changes:
        changes.callback(exclude, include_named(model, removals))
        layers = {attention.name: attention for attention in attention_modules(model)}
        for name, entry in removals.items():
            if name not in layers or removals_of(layers[name]) != Removals(entry.count):
                raise CaptureError(
                    f"{type(model).__name__} has no layer {name!r} of {entry.count} heads; "
                    "give the model as it was before heads were taken out"
                )
        for step in range(max((len(entry.left) for entry in removals.values()), default=0)):
            layers = {attention.name: attention for attention in attention_modules(model)}
            for name, entry in removals.items():
                if step >= len(entry.left):
                    continue
                numbers = removals_of(layers[name]).numbers
                heads = [numbers.index(head) for head in entry.left[step]]
                _shrink(model, layers[name], heads, _KINDS[entry.widths[step]], changes)
        yield
        changes.pop_all()


class _Changes(ExitStack):
    """Attributes that are restored at the end of the context."""

    def set(self, module: nn.Module, name: str, value: Any) -> None:
        registries = (module._parameters, module._modules, vars(module))
        registry = next((entries for entries in registries if name in entries), None)
        if registry is not None:  # an assignment would run code that may raise
            self.callback(registry.__setitem__, name, registry[name])
        else:
            self.callback(vars(module).pop, name, None)
        setattr(module, name, value)


def _with_output(attention: AttentionModule) -> str:
    """Return the name of the module around attention and its output projection."""
    description, modules = attention.description, attention.module.modules()
    inside = description is None or any(module is description.output for module in modules)
    return attention.name if inside else attention.name.rpartition(".")[0]  # of BERT the parent


def outputs_of(model: nn.Module, batch: Any, layers: Sequence[AttentionModule]) -> list[Tensor]:
    """Run a model without fused encoder layers; return outputs of some layers and its own."""
    blocks = sorted({block_name(attention) for attention in layers})
    # and attention, whose differences large entries of its block's outputs would hide
    blocks += sorted({_with_output(attention) for attention in layers} - {*blocks})
    states: dict[str, Tensor] = {}
    # fused encoder layers read the weights of attention, and would run past what replaces it; some
    # models draw at random even in evaluation mode, hence the seed
    with (
        set_evaluation(model),
        _repeat_random_numbers(model),
        without_fused_layers(),
        ExitStack() as restored,
    ):
        for name in blocks:
            block = model.get_submodule(name)
            handle = block.register_forward_hook(
                lambda _, inputs, output, name=name: states.update({name: next(tensors_of(output))})
            )
            restored.callback(handle.remove)
        outputs = list(tensors_of(call_model(model, split_batch(batch)[0])))
    missing = [name for name in blocks if name not in states]
    if missing:
        raise CaptureError(f"{missing[0]} does not run on the batch; give one that it runs on")
    return [*states.values(), *outputs]


def repeatable_outputs(
    model: nn.Module, batch: Any, layers: Sequence[AttentionModule]
) -> list[Tensor]:
    """Return the outputs of :func:`outputs_of`, if a second pass gives the same.

    Raises a CaptureError if a model draws at random in every pass.
    """
    outputs = outputs_of(model, batch, layers)
    try:
        check_same(outputs_of(model, batch, layers), outputs)
    except ValueError as error:
        raise CaptureError(
            f"{type(model).__name__} gives other outputs in a second pass on the same batch "
            f"({error}), as a model that draws at random in every pass; fix what it draws, such as "
            "by an argument in the batch"
        ) from error
    return outputs


@contextmanager
def _repeat_random_numbers(model: nn.Module) -> Iterator[None]:
    """Draw the same random numbers in every pass inside the context, and restore their state."""
    devices = sorted({weight.device.index for weight in model.parameters() if weight.is_cuda})
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(0)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(0)
        yield


def check_same(outputs: list[Tensor], expected: list[Tensor]) -> None:
    """Raise a ValueError unless outputs are the expected ones to rounding."""
    if [output.shape for output in outputs] != [output.shape for output in expected]:
        raise ValueError("outputs have other shapes")
    pairs = [pair for pair in zip(outputs, expected) if pair[0].is_floating_point()]
    # logits of a model in half precision may be float32: the coarsest of all counts
    coarsest = max((torch.finfo(output.dtype).eps for output, _ in pairs), default=0.0)
    is_half = coarsest > torch.finfo(torch.float32).eps
    relative = _HALF_ROUNDINGS * coarsest if is_half else _ROUNDING
    for output, target in pairs:
        output, target = output.double(), target.double()
        largest = float(target.nan_to_num(0.0, 0.0, 0.0).abs().max()) if target.numel() else 0.0
        if not torch.allclose(output, target, rtol=0, atol=relative * largest, equal_nan=True):
            error = float((output - target).nan_to_num(0.0).abs().max())
            raise ValueError(
                f"outputs differ by {error:.2g}, the largest of which is {largest:.2g}"
            )


def _shrink(
    model: nn.Module,
    attention: AttentionModule,
    heads: list[int],
    kinds: Sequence[str],
    changes: _Changes,
) -> None:
    module, description = attention.module, attention.description
    removals = removals_of(attention).further(heads, "width" in kinds)
    if isinstance(module, nn.MultiheadAttention):
        parent, _, name = attention.name.rpartition(".")
        fewer = FewerHeads(module, heads)
        setattr(fewer, _RECORD, removals)
        if is_included(module):
            setattr(fewer, INCLUDED, True)
        changes.set(model.get_submodule(parent), name, fewer)
        for encoder in model.modules():
            if isinstance(encoder, nn.TransformerEncoder):  # nested tensors: of fused layers only
                changes.set(encoder, "use_nested_tensor", False)
        return
    assert description is not None
    numbers = {
        name: _renumber(description, heads, kinds, name, number)
        for name, number in vars(module).items()
        if isinstance(number, int) and not isinstance(number, bool) and name != "heads_before"
    }
    if isinstance(module, FewerHeads):  # of a model that has lost heads before
        changes.set(module, "heads", [module.heads[head] for head in heads])
    # an entry stays if any head that stays uses it: heads share keys and values in groups
    for projection, axis, users in list(description.slices()):
        entries = users[:, heads].any(dim=1).nonzero()[:, 0]
        if projection.weight.shape[axis] == len(users):  # else layers share it, and it is done
            changes.set(projection, "weight", _select_entries(projection.weight, entries, axis))
            if (
                projection is not description.output
                and getattr(projection, "bias", None) is not None
            ):
                changes.set(projection, "bias", _select_entries(projection.bias, entries))
        for name in _LENGTHS[axis]:
            if hasattr(projection, name):
                changes.set(projection, name, len(entries))
    for name, number in numbers.items():
        changes.set(module, name, number)
    changes.set(module, _RECORD, removals)


def _renumber(
    description: AttentionHeads, heads: list[int], kinds: Sequence[str], name: str, number: int
) -> int:
    """Return the value with fewer heads of a module's number, recognised by name and value."""
    # by both, since another number may equal that of the heads by chance, and names differ from
    # model to model; outputs are compared afterwards, so that a wrong guess does no harm
    counts = description.count, len(heads)
    groups = (
        description.groups,
        len({head * description.groups // description.count for head in heads}),
    )
    shared, kind = groups if re.search("kv|key_value", name) else counts, "count"
    if "group" in name:
        shared = counts[0] // groups[0], counts[1] // groups[1]
    elif re.search("dim|size|width|embed", name):
        shared, kind = (description.size * shared[0], description.size * shared[1]), "width"
    elif not re.search("head|attn|^h$", name):
        return number
    return shared[1] if kind in kinds and number == shared[0] else number


def _select_entries(weight: Tensor, entries: Tensor, axis: int = 0) -> nn.Parameter:
    """Select entries of a weight on an axis."""
    selected = weight.detach().index_select(axis, entries.to(weight.device))
    return nn.Parameter(selected, requires_grad=weight.requires_grad)


class FewerHeads(nn.Module):
    """``nn.MultiheadAttention`` with some of its heads; same arguments and outputs.

    Parameters
    ----------
    original : nn.MultiheadAttention
    heads : list of int
        Numbered from 0.
    """

    _qkv_same_embed_dim = False  # so that PyTorch's encoder layers do without their fused kernel

    def __init__(self, original: nn.MultiheadAttention, heads: list[int]):
        super().__init__()
        self.num_heads, self.heads_before, self.heads = len(heads), original.num_heads, heads
        self.batch_first, self.dropout = original.batch_first, original.dropout
        entries = (
            torch.arange(original.embed_dim).unflatten(0, (original.num_heads, -1))[heads].flatten()
        )
        weights = original.in_proj_weight.chunk(3)
        biases = [None] * 3 if original.in_proj_bias is None else original.in_proj_bias.chunk(3)
        self.queries, self.keys, self.values = (
            _linear(
                _select_entries(weight, entries),
                None if bias is None else _select_entries(bias, entries),
            )
            for weight, bias in zip(weights, biases)
        )
        self.out_proj = _linear(
            _select_entries(original.out_proj.weight, entries, 1), original.out_proj.bias
        )
        self.train(original.training)

    @property
    def in_proj_bias(self) -> nn.Parameter | None:
        """Read by PyTorch's encoder layers."""
        return self.queries.bias

    def pathkernel_heads(self) -> AttentionHeads:
        """Describe the heads for capture."""
        projections = (self.queries, self.keys, self.values)
        return AttentionHeads(
            self.num_heads, self.out_proj, projections, batch_first=self.batch_first
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute as ``nn.MultiheadAttention``; sequences must be batched, else a ValueError."""
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask; give attn_mask, too")
        if query.ndim != 3:
            raise ValueError(
                f"query must be of sequences in a batch, three axes, but has {query.ndim}; give a "
                "single sequence one more axis"
            )
        projected = (self.queries(query), self.keys(key), self.values(value))
        if not self.batch_first:
            projected = tuple(states.transpose(0, 1) for states in projected)
        q, k, v = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for states in projected
        )
        mask = None
        if attn_mask is not None:
            mask = _to_additive(attn_mask, q.dtype)
            if mask.ndim == 3:  # one of every sequence and head
                mask = mask.unflatten(0, (-1, self.heads_before))[:, self.heads]
        if key_padding_mask is not None:
            padding = _to_additive(key_padding_mask, q.dtype)[:, None, None, :]
            mask = padding if mask is None else mask + padding
        dropped = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropped)
            heads = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropped)
        joined = heads.transpose(1, 2).flatten(2)
        return self.out_proj(joined if self.batch_first else joined.transpose(0, 1)), weights


def _to_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to numbers to add to scores, −∞ where a boolean one is True."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    # on meta: its own weights would be drawn at random, and move PyTorch's generator
    linear = nn.Linear(*weight.T.shape, bias=bias is not None, device="meta")
    linear.weight = weight
    if bias is not None:
        linear.bias = bias
    return linear
