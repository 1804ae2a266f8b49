"""Take heads out of the weights of a model, if it then computes the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.attention_heads import AttentionHeads, input_axis
from pathkernel_models.attention_module import AttentionModule, block_name
from pathkernel_models.cross_attention import exclude, include_named
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.parts import INCLUDED, is_included
from pathkernel_models.families.recognition import attention_modules
from pathkernel_models.inputs.batches import call_model, split_batch, tensors_of
from pathkernel_models.linear_maps import check_stored
from pathkernel_models.state import set_evaluation, without_fused_layers
from pathkernel_pruning.heads.group_faults import list_groups
from pathkernel_pruning.live.fewer_heads import (
    FewerHeads,
    LayerConfiguration,
    NormOfHeads,
    select_entries,
)

Remaining = Sequence[tuple[AttentionModule, list[int]]]
"""Layers and their remaining heads, numbered from 0."""

_ROUNDING = 1e-4  # of outputs, relative to the largest; parts of many models compute in float32
_HALF_ROUNDINGS = 6  # of half precision, in a model of dozens of layers
_LENGTHS = (("out_features", "nx", "num_embeddings"), ("in_features", "nf", "embedding_dim"))
KINDS = ("count", "width", "configuration")
"""Numbers that forward passes reshape by: of heads in the module, or their joint width, too, or
those that the module reads in its configuration."""

_BIASES = ("alibi", "position_bias")  # arguments of attention, made for all heads
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
    kinds : tuple of str
        What numbers a removal changed, see :data:`KINDS`.
    """

    count: int
    left: tuple[tuple[int, ...], ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Original numbers of the remaining heads, from 1."""
        return self.left[-1] if self.left else tuple(range(1, self.count + 1))

    def further(self, heads: Sequence[int], kind: str) -> Removals:
        """Add a removal, after which ``heads`` of the remaining ones are left, from 0."""
        left = tuple(self.numbers[head] for head in heads)
        if self.left and left == self.numbers:  # a layer of one head keeps it
            return self
        return Removals(self.count, (*self.left, left), (*self.kinds, kind))


def removals_of(attention: AttentionModule) -> Removals:
    """Return the removals of a layer."""
    return getattr(attention.module, _RECORD, Removals(attention.heads))


def check_divisible(attention: AttentionModule) -> None:
    """Raise a CaptureError if heads cannot be taken out of the weights of a layer."""
    if cause := fixed_by(attention):
        raise CaptureError(
            f"{attention.where} keeps its shape, since {cause}; leave smaller out, and the weights "
            "of the heads are set to zero"
        )
    description = attention.description
    for projection in description.projections if description is not None else ():
        weight = projection.weight.movedim(input_axis(projection), -1)
        check_stored(projection, weight, attention.where)


def fixed_by(attention: AttentionModule) -> str:
    """Return why heads cannot be taken out of the weights of a layer, or nothing if they can."""
    module = attention.module
    if isinstance(module, nn.MultiheadAttention):
        if not attention.name:
            return "the model itself is the attention"
        if module.bias_k is not None or module.add_zero_attn:
            return "it attends to a key of its own (bias_k, add_zero_attn)"
        if not module._qkv_same_embed_dim:
            return "its keys or values have another width than its queries"
        stored = isinstance(module._parameters.get("in_proj_weight"), nn.Parameter)
        return "" if stored else "its weights are computed"
    if attention.description is None:
        return "other parts of the bridge read the shapes of its weights"
    if not attention.description.projections:
        return "the order of the rows in its projections is not known"
    return ""


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
    # which numbers forward passes reshape by is in the model's code: the next kind is tried if one
    # gives other outputs
    is_configured = all(hasattr(attention.module, "config") for attention, _ in remaining)
    for kind in KINDS if is_configured else KINDS[:-1]:
        with _Changes() as changes:
            try:
                for attention, heads in remaining:
                    _shrink(model, attention, heads, kind, changes)
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
            is_own = hasattr(attention.module, "pathkernel_heads")
            return (
                f"Heads of {attention.where} have parameters beside their projections, which are "
                f"not taken out: {', '.join(names[:4])}. "
                + "Name them in AttentionHeads, in projections= or parameters=. "
                * is_own
            )
    for attention in layers:
        arguments = inspect.signature(attention.module.forward).parameters
        if biases := [name for name in _BIASES if name in arguments]:
            return (
                f"The bias of the scores of {attention.where}, its argument {biases[0]}, comes "
                "from outside, for as many heads as before. "
            )
        if attention.groups < attention.heads:
            groups = list_groups(attention.heads, attention.groups)
            return (
                f"Heads {groups} of {attention.where} share keys and values, and its code may "
                "count on all of them. "
            )
        if hasattr(attention.module, "pathkernel_heads"):
            return (
                "Its forward pass has to take numbers of heads and sizes from attributes whose "
                "names tell them, such as num_heads, num_kv_heads, head_dim and embed_dim, or from "
                "the tensors (-1). "
            )
    return ""


def _parameters_beside(model: nn.Module, attention: AttentionModule) -> list[str]:
    """Return names of parameters that no projection of a layer has, but of its heads' sizes."""
    description = attention.description
    if description is None:
        return []
    parts = (*description.projections, *(part for part, _, _ in description.slices()))
    known = {parameter for part in parts for parameter in part.parameters()}
    known |= {parameter for norm, _ in description.joint_norms() for parameter in norm.parameters()}
    known |= {parameter for parameter, _ in description.parameters_by_head()}
    heads, width = attention.heads, attention.heads * description.size
    block, names = block_name(attention), []
    for name, parameter in model.named_parameters():
        sizes = set(parameter.shape)
        # a bias of a fused projection, apart from its module, has entries of all three
        of_heads = {heads, attention.groups, width, 3 * width}
        is_inside = name.startswith(f"{attention.name}.") and sizes & of_heads
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
                _shrink(model, layers[name], heads, entry.kinds[step], changes)
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
    kind: str,
    changes: _Changes,
) -> None:
    module, description = attention.module, attention.description
    removals = removals_of(attention).further(heads, kind)
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
    renumber = partial(_renumber, description, heads, kind)
    numbers = {name: renumber(name, number) for name, number in _numbers(module).items()}
    if kind == "configuration":
        configuration = module.config
        before = _numbers(configuration)
        after = {name: renumber(name, number) for name, number in before.items()}
        changed = {name: number for name, number in after.items() if number != before[name]}
        changes.set(module, "config", LayerConfiguration(configuration, changed))
    if isinstance(module, FewerHeads):  # of a model that has lost heads before
        changes.set(module, "heads", [module.heads[head] for head in heads])
    # before the projections change, by whose rows groups are counted
    entries_of_norms = {
        id(norm): users[:, heads].any(dim=1).nonzero()[:, 0]
        for norm, users in description.joint_norms()
    }
    _select_parameters(model, description, heads, changes)
    # an entry stays if any head that stays uses it: heads share keys and values in groups
    for projection, axis, users in list(description.slices()):
        entries = users[:, heads].any(dim=1).nonzero()[:, 0]
        if projection.weight.shape[axis] == len(users):  # else layers share it, and it is done
            changes.set(projection, "weight", select_entries(projection.weight, entries, axis))
            if (
                projection is not description.output
                and getattr(projection, "bias", None) is not None
            ):
                changes.set(projection, "bias", select_entries(projection.bias, entries))
        for name in _LENGTHS[axis]:
            if hasattr(projection, name):
                changes.set(projection, name, len(entries))
    for name, part in list(module.named_children()):
        if id(part) in entries_of_norms:
            changes.set(module, name, NormOfHeads(part, entries_of_norms[id(part)]))
    for name, number in numbers.items():
        changes.set(module, name, number)
    changes.set(module, _RECORD, removals)


def _numbers(of: Any) -> dict[str, int]:
    """Return the whole numbers among the attributes of a module or configuration."""
    attributes = vars(of)
    if isinstance(of, LayerConfiguration):
        attributes = vars(of.configuration) | of.numbers
    return {
        name: number
        for name, number in attributes.items()
        if isinstance(number, int) and not isinstance(number, bool) and name != "heads_before"
    }


def _select_parameters(
    model: nn.Module, description: AttentionHeads, heads: list[int], changes: _Changes
) -> None:
    """Select the entries of some heads in parameters beside the linear maps."""
    axes = {id(parameter): axis for parameter, axis in description.parameters_by_head()}
    for part in model.modules() if axes else ():
        for name, value in list(part._parameters.items()):
            if id(value) in axes:
                assert value is not None
                selected = select_entries(value, torch.tensor(heads), axes[id(value)])
                changes.set(part, name, selected)


def _renumber(
    description: AttentionHeads, heads: list[int], kind: str, name: str, number: int
) -> int:
    """Return the value with fewer heads of a module's number, recognised by name and value."""
    # by both, since another number may equal that of the heads by chance, and names differ from
    # model to model; outputs are compared afterwards, so that a wrong guess does no harm
    counts = description.count, len(heads)
    groups = (
        description.groups,
        len({head * description.groups // description.count for head in heads}),
    )
    shared = groups if re.search("kv|key_value", name) else counts
    if "group" in name:
        shared = counts[0] // groups[0], counts[1] // groups[1]
    elif re.search("dim|size|width|embe?d", name):
        if kind != "width":
            return number
        shared = description.size * shared[0], description.size * shared[1]
    elif not re.search("head|attn|^h$", name):
        return number
    return shared[1] if number == shared[0] else number
