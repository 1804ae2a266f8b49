"""Find the attention modules of a model, and their heads.

A family is a function that returns the heads of a module, or None if it is of another family.
Modules are recognised by their parts, not by their class, which covers classes that follow the
same conventions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.agreement import compare_attention
from pathkernel_models.arguments import check_model
from pathkernel_models.attention_heads import AttentionHeads, input_axis
from pathkernel_models.errors import CaptureError
from pathkernel_models.linear_maps import projection_matrix
from pathkernel_models.watching import Points, Report, watch_attention

Change = Callable[[Tensor], Tensor]
"""Takes the outputs of the heads of a layer, side by side, and returns their replacement."""


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """Self-attention in one layer of a model.

    Attributes
    ----------
    number : int
        Number of the layer, from 1.
    name : str
        In the model.
    module : Module
    heads : int
    groups : int
        Number of heads of keys and values.
    projection : Module
        Output projection.
    output_axis : int
        Axis of the weight of ``projection`` on which heads lie one after the other.
    change_outputs : callable
        Takes a :data:`Change`, applied in every forward pass inside the context.
    values : callable, optional
        Returns the weights of the heads' values, (H, G, N_0).
    points : Points, optional
        Where values and outputs of the heads can be observed.
    swapped : bool
        Whether the module takes (token, batch, N_0).
    description : AttentionHeads, optional
        Position of the heads in the weights.
    runs_projection : bool
        Whether the output projection runs, and is not read for its weight.
    """

    number: int
    name: str
    module: nn.Module
    heads: int
    groups: int
    projection: nn.Module
    output_axis: int
    change_outputs: Callable[[Change], AbstractContextManager[None]]
    values: Callable[[], Tensor] | None = None
    points: Points | None = None
    swapped: bool = False
    description: AttentionHeads | None = None
    runs_projection: bool = True

    def check_read(self) -> None:
        """Raise a CaptureError if an adapter stands where the projection's weight is read.

        It would write back the weight that it reads, without the heads that are off.
        """
        if not (self.runs_projection or isinstance(self.projection, nn.Linear)):
            raise CaptureError(
                f"{self.where} has an adapter ({type(self.projection).__name__}) in place of its "
                "output projection, whose weight is read; merge the adapter (merge_and_unload) "
                "first"
            )

    @property
    def where(self) -> str:
        """Number and name of the layer, for messages."""
        return _where(self.number, self.name)

    @property
    def output(self) -> Tensor:
        """Weight of the output projection."""
        weight: Tensor = self.projection.weight
        return weight

    @property
    def output_inputs_last(self) -> Tensor:
        """Weight of the output projection, the axis of the heads last."""
        weight, axis = self.output, self.output_axis
        # quantised weights have few operations
        return weight if axis == weight.ndim - 1 else weight.movedim(axis, -1)

    @property
    def pattern(self) -> str:
        """Name without numbers, shared by the layers of an encoder, decoder or tower."""
        return re.sub("[0-9]+", "", self.name)

    def output_map(self) -> Tensor:
        """Return the matrix (output, H·G) that the output projection multiplies by.

        Raises a CaptureError if it is no linear map.
        """
        weight = self.output_inputs_last
        if not self.runs_projection:  # its weight is read
            return weight.detach()
        return projection_matrix(self.projection, weight, self.where)

    def watch(self, report: Report) -> AbstractContextManager[None]:
        """Report every forward pass inside the context."""
        return watch_attention(self.module, self.heads, self.points, self.swapped, report)

    def compare(self, agreed: Callable[[], None]) -> AbstractContextManager[None]:
        """Compare attention times values with the heads' output, see :func:`compare_attention`."""
        return compare_attention(
            self.module, self.where, self.heads, self.points, self.swapped, agreed
        )


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Find the self-attention of every layer of a model, in order.

    Raises
    ------
    CaptureError
        If there is none of a known form.
    TypeError
        If the model is no module.
    """
    check_model(model)
    modules = dict(model.named_modules())
    layers: list[AttentionModule] = []
    for name, module in modules.items():
        if layers and name.startswith(f"{layers[-1].name}."):  # a part of the last one
            continue
        number, parent = len(layers) + 1, modules[name.rpartition(".")[0]]
        if attention := _attention(number, name, module, parent):
            layers.append(attention)
    if not layers:
        raise CaptureError(
            f"{type(model).__name__} has no attention of a known form: nn.MultiheadAttention, or "
            "modules as those of transformers, timm and TransformerLens. Give your own attention "
            "class a method pathkernel_heads that returns pathkernel.AttentionHeads, or "
            "take the attention matrices yourself, as pathkernel.Attention"
        )
    return layers


def _where(number: int, name: str) -> str:
    return f"layer {number}" + (f" ({name})" if name else "")


def block_name(attention: AttentionModule) -> str:
    """Return the name of the numbered block around attention, or else of the attention itself."""
    names = attention.name.split(".")
    while names and not names[-1].isdigit():
        names.pop()
    return ".".join(names) or attention.name


def beside_cross_attention(model: nn.Module, attention: AttentionModule) -> bool:
    """Whether the block of self-attention attends to another sequence, too."""
    names = attention.name.split(".")
    depth = next((index for index, name in enumerate(names, start=1) if name.isdigit()), 0)
    prefix = ".".join(names[:depth] or names[:-1])
    modules = dict(model.named_modules())
    return any(
        name.startswith(prefix) and _is_crossed(name, module, modules[name.rpartition(".")[0]])
        for name, module in modules.items()
        if name and any(True for _ in module.children())
    )


def is_crossed(model: nn.Module, attention: AttentionModule) -> bool:
    """Whether attention, as one that describes its heads may, attends to another sequence."""
    parent = model.get_submodule(attention.name.rpartition(".")[0])
    return _is_crossed(attention.name, attention.module, parent)


def _attention(
    number: int, name: str, module: nn.Module, parent: nn.Module
) -> AttentionModule | None:
    """Return a module as self-attention, if it is."""
    is_bridge = False
    if hasattr(module, "pathkernel_heads"):
        description = module.pathkernel_heads()
        if not isinstance(description, AttentionHeads):
            raise CaptureError(
                f"pathkernel_heads of {name} must return pathkernel.AttentionHeads, not "
                f"{type(description).__name__}"
            )
    elif _is_crossed(name, module, parent):
        return None
    elif isinstance(module, nn.MultiheadAttention):
        return _of_torch(number, name, module)
    elif is_bridge := hasattr(module, "hook_pattern") and hasattr(module, "original_component"):
        description = _of_bridge(name, module)
    else:
        if kind := _quantised_class(module, parent):
            raise CaptureError(
                f"{name} has a quantised projection, {kind}, whose weight is no tensor; take the "
                "model as it was before quantisation"
            )
        description = _of_projections(module, parent)
    if description is None:
        return None
    groups, points, values = description.count, None, None
    where = _where(number, name)
    if description.projections:
        groups, values = description.groups, lambda: description.value_weights(where)
        norms = [getattr(module, name, None) for name in _NORMS]
        readers = (description.output, *(norm for norm in norms if isinstance(norm, nn.Module)))
        points = Points(
            description.value_projection, readers, description.values_by_head, description.linear
        )
    runs = type(module).__name__ not in _READ_WEIGHTS
    if not runs:
        points = None  # PyTorch's function defines them
    change = _before(description.output) if runs else _after(module, description.output)
    return AttentionModule(
        number=number,
        name=name,
        module=module,
        heads=description.count,
        groups=groups,
        projection=description.output,
        output_axis=description.output_axis,
        change_outputs=change,
        values=values,
        points=points,
        swapped=not description.batch_first,
        # others of its parts read the shapes of a bridge, too
        description=None if is_bridge else description,
        runs_projection=runs,
    )


_READ_WEIGHTS = ("WavLMAttention",)  # classes that call multi_head_attention_forward
_TOKENS_FIRST = ("modeling_fsmt",)  # files of transformers with sequences on the second axis
# attention to another sequence, and of learned queries that pool a sequence
_CROSSED = re.compile("cross|encdec|encoder_attn|attn_?pool|attentionpool", re.IGNORECASE)
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv")
_QUERIES = ("q_proj", "query", "query_proj", "q_lin", "linear_q", "q")
_KEYS = ("k_proj", "key", "key_proj", "k_lin", "linear_k", "k")
_VALUES = ("v_proj", "value", "value_proj", "v_lin", "linear_v", "v")
_GATES = ("gate_proj", "g_proj")
_NORMS = ("norm", "attn_sub_norm")  # that may lie between the heads and their projection
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "proj", "Wo", "linear_out", "o")


def _is_crossed(name: str, module: nn.Module, parent: nn.Module) -> bool:
    """Whether a module attends to another sequence than that of its queries, by its names."""
    names = name.split(".")[-2:]
    beside_self_attention = names[-1] == "multihead_attn" and hasattr(parent, "self_attn")
    return (
        getattr(module, "is_cross_attention", False)
        or beside_self_attention  # as in nn.TransformerDecoderLayer
        or bool(_CROSSED.search(f"{type(module).__name__}.{'.'.join(names)}"))
    )


def _of_projections(module: nn.Module, parent: nn.Module) -> AttentionHeads | None:
    """Recognise attention of transformers or timm by the names of its projections."""
    fused, queries = _projection(module, _FUSED), _projection(module, _QUERIES)
    output = _projection(module, _OUTPUTS)
    if output is None:  # BERT's is in the parent
        output = _projection(getattr(parent, "output", None), ("dense",))
    size, count = _number(module, _SIZES), _number(module, _COUNTS)
    if output is None or (fused is None and queries is None) or not (size or count):
        return None
    # the weight tells the truth, where a configuration may still have the heads before pruning
    width = output.weight.shape[input_axis(output)]
    if size and width % size == 0:
        count = width // size
    projections = (queries, _projection(module, _KEYS), _projection(module, _VALUES))
    if fused is not None:
        projections = (fused,)
    elif gates := _projection(module, _GATES):
        projections += (gates,)
    # GPTBigCode names its flag, and has rows by head without it
    by_head = hasattr(module, "query_key_value") or getattr(module, "multi_query", None) is False
    bias = getattr(module, "relative_attention_bias", None)  # T5's
    bias = bias if isinstance(bias, nn.Embedding) else None
    batch_first = type(module).__module__.rpartition(".")[2] not in _TOKENS_FIRST
    try:
        if None not in projections and not type(module).__name__.startswith("CodeGen"):
            return AttentionHeads(count or 0, output, projections, by_head, bias, batch_first)
    except CaptureError:
        pass  # rows in another order
    try:
        return AttentionHeads(count or 0, output, batch_first=batch_first)
    except CaptureError:
        return None


def _of_torch(number: int, name: str, module: nn.MultiheadAttention) -> AttentionModule:
    """Describe ``torch.nn.MultiheadAttention``, whose projections are not modules."""
    projection = module._modules["out_proj"]  # registered, which a substitute may hide

    def values() -> Tensor:
        weight = module.v_proj_weight if module.in_proj_weight is None else module.in_proj_weight
        weight = weight.detach()[-module.embed_dim :]
        return weight.unflatten(0, (module.num_heads, -1))

    return AttentionModule(
        number=number,
        name=name,
        module=module,
        heads=module.num_heads,
        groups=module.num_heads,
        projection=projection,
        output_axis=1,
        change_outputs=_after(module, projection),
        values=values,
        swapped=not module.batch_first,
        runs_projection=False,
    )


def _of_bridge(name: str, module: nn.Module) -> AttentionHeads | None:
    """Recognise attention of TransformerLens by the linear maps inside its components."""
    config = getattr(module, "config", None)
    if getattr(config, "use_attn_result", False):
        raise CaptureError(
            f"{name} adds the results of its heads without running its output projection; call "
            "set_use_attn_result(False) of the model first"
        )
    components = [getattr(module, part, None) for part in ("q", "k", "v", "o")]
    maps: list[Any] = [getattr(part, "original_component", None) for part in components]
    size = _number(config, ("d_head",))
    if size is None or any(getattr(_weight(linear), "ndim", 0) != 2 for linear in maps):
        return None
    *projections, output = maps
    try:
        return AttentionHeads(
            output.weight.shape[input_axis(output)] // size, output, tuple(projections)
        )
    except CaptureError:  # of another form
        return None


class _Identity:
    """Projection that passes its input on, whether its weight is read or it is called."""

    bias = None

    def __init__(self, like: Tensor):
        self.weight = torch.eye(like.shape[1]).to(like)

    def __call__(self, outputs: Tensor) -> Tensor:
        return outputs


@contextmanager
def standing_in(module: nn.Module, name: str, substitute: Any) -> Iterator[None]:
    """Let a submodule be read as its substitute inside the context.

    An attribute of the instance hides the submodule without unregistering it: parameters, state
    dict and hooks of the model stay as they are, and nothing is assigned that must be put back.
    """
    attributes = vars(module)
    hidden = {name: attributes[name]} if name in attributes else {}
    attributes[name] = substitute
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(hidden)


def _before(module: nn.Module) -> Callable[[Change], AbstractContextManager[None]]:
    """Return a context that changes the input of a module."""

    @contextmanager
    def change_outputs(change: Change) -> Iterator[None]:
        def change_input(_: nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
            if inputs:
                return (change(inputs[0]), *inputs[1:]), named
            first, value = next(iter(named.items()))
            return inputs, named | {first: change(value)}

        handle = module.register_forward_pre_hook(change_input, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    return change_outputs


def _after(
    module: nn.Module, projection: nn.Module
) -> Callable[[Change], AbstractContextManager[None]]:
    """Return a context that changes the heads of a module that reads its projection's weight."""

    @contextmanager
    def change_outputs(change: Change) -> Iterator[None]:
        (name,) = (name for name, child in module.named_children() if child is projection)
        shown = getattr(module, name)  # of a context around this one, such as heads off

        # attention passes the heads on unchanged, and the projection is applied afterwards
        def project(_: nn.Module, inputs: tuple, output: tuple) -> tuple:
            return nn.functional.linear(change(output[0]), shown.weight, shown.bias), *output[1:]

        handle = module.register_forward_hook(project)
        try:
            with standing_in(module, name, _Identity(projection.weight)):
                yield
        finally:
            handle.remove()

    return change_outputs


def _projection(module: Any, names: tuple[str, ...]) -> nn.Module | None:
    """Return the first of these attributes that is a linear map."""
    # which a substitute may hide; scripted modules have them in a mapping without get
    registered = dict(getattr(module, "_modules", {}).items())
    attributes = (registered.get(name) or getattr(module, name, None) for name in names)
    return next((linear for linear in attributes if getattr(_weight(linear), "ndim", 0) == 2), None)


def _quantised_class(module: nn.Module, parent: nn.Module) -> str | None:
    """Return the class of a projection of attention whose weight is a method, as of torch.ao."""
    names = (*_FUSED, *_QUERIES, *_KEYS, *_VALUES, *_OUTPUTS)
    projections = [getattr(module, name, None) for name in names]
    projections.append(getattr(getattr(parent, "output", None), "dense", None))  # BERT's
    kinds = [type(projection) for projection in projections if callable(_weight(projection))]
    if not kinds or not _number(module, _COUNTS + _SIZES):
        return None
    return f"{kinds[0].__module__}.{kinds[0].__name__}"


def _weight(projection: Any) -> Any:
    return getattr(projection, "weight", None) if isinstance(projection, nn.Module) else None


def _number(module: Any, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes that is a positive integer."""
    numbers = (getattr(module, name, None) for name in names)
    return next((number for number in numbers if isinstance(number, int) and number > 0), None)
