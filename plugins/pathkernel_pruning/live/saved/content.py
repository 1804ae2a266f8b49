"""Tensors of a model as a folder keeps them, and how they are put into another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.saved.bounds import Bounds
from pathkernel_pruning.live.saved.rebuilding import tied_names
from pathkernel_pruning.live.saved.structure import passing_tensors
from pathkernel_pruning.live.saved.value_texts import OF_TORCH


@dataclass
class Content:
    """Tensors of a model.

    Attributes
    ----------
    tensors : dict of str to Tensor
        Entries of its state, each once, on the CPU.
    tied : dict of str to str
        Names of entries that are others, too, and the names of these.
    passing : dict of str to Tensor
        Parameters, buffers and tensors that the state does not have, by
        :func:`pathkernel_pruning.live.saved.structure.passing_tensors`.
    """

    tensors: dict[str, Tensor]
    tied: dict[str, str] = field(default_factory=dict)
    passing: dict[str, Tensor] = field(default_factory=dict)

    @property
    def bounds(self) -> Bounds:
        """Bounds by the sizes of the tensors, as those by the file that will hold them."""
        return Bounds.of_shapes(
            (tuple(tensor.shape) for tensor in self.tensors.values()), len(self.tied)
        )

    @classmethod
    def of(cls, model: nn.Module) -> Content:
        """Read a model; a CaptureError tells of a tensor that cannot be kept."""
        tied, state = tied_names(model), model.state_dict(keep_vars=True)
        content = cls({}, tied)
        pointers: set[int] = set()
        for name, value in state.items():
            _check_plain(model, name, value)
            if name in tied:
                continue
            tensor = value.detach().cpu().contiguous()
            # a safetensors file does not hold the same memory twice
            content.tensors[name] = tensor.clone() if tensor.data_ptr() in pointers else tensor
            pointers.add(tensor.data_ptr())
        for name, value in passing_tensors(model).items():
            _check_plain(model, name, value)
            content.passing[name] = value.detach().cpu().contiguous().clone()
        return content

    def stored_name(self, name: str) -> str:
        """Name of an entry of the state among the tensors."""
        return stored_name(name, self.tied, self.tensors)

    def put_into(self, model: nn.Module) -> None:
        """Put the tensors into a model of the same shapes, tied and untied as they were."""
        by_name: dict[str, Tensor] = {}
        used: set[int] = set()
        for name, entry in model.state_dict(keep_vars=True).items():
            stored = self.stored_name(name)
            if stored in by_name:
                if entry is not by_name[stored]:
                    _assign(model, name, by_name[stored])
            elif id(entry) in used or entry.is_meta:  # tied in this model, but not in the saved one
                value = self.tensors[stored]
                if isinstance(entry, nn.Parameter):
                    value = nn.Parameter(value, requires_grad=entry.requires_grad)
                _assign(model, name, value)
                by_name[stored] = value
            else:
                entry.data = self.tensors[stored].to(entry.device)
                used.add(id(entry))
                by_name[stored] = entry
        for name, value in self.passing.items():
            if has_place(model, name):
                _place(model, name, value)


def stored_name(name: str, tied: Mapping[str, str], names: Mapping[str, Any]) -> str:
    """Name of an entry of a model's state in a file of these names."""
    return name if name in names else tied.get(name, name)


def has_place(model: nn.Module, name: str) -> bool:
    """Whether a tensor that no state has can be put into a model: in place of one, or of None."""
    path, _, leaf = name.rpartition(".")
    try:
        parent = model.get_submodule(path)
    except AttributeError:
        return False
    if leaf in OF_TORCH or not leaf.isidentifier():
        return False
    held = {**vars(parent), **parent._buffers, **parent._parameters}.get(leaf)
    # an entry that is None, or is made in a forward pass, and hides nothing of the class
    return isinstance(held, Tensor) or (held is None and getattr(parent, leaf, None) is None)


def passing_faults(
    model: nn.Module, shapes: Mapping[str, tuple[tuple[int, ...], bool]], bounds: Bounds
) -> Iterator[tuple[str, str]]:
    """Yield which tensors that no state has cannot be put into a model, and why.

    Those that the model holds have the same number of axes and kind of numbers. Tables may grow in
    forward passes, and caches be made there: what the model does not hold as large is bounded.

    Parameters
    ----------
    model : nn.Module
    shapes : mapping of str to (tuple of int, bool)
        Shapes, and whether numbers are real.
    bounds : Bounds
        By the weights.
    """
    held, state = passing_tensors(model), model.state_dict()
    others = 0
    for name, (shape, is_real) in shapes.items():
        tensor = held.get(name)
        if name in state or not has_place(model, name):
            yield name, "is no tensor of the model outside of its state"
        elif tensor is not None and tensor.is_floating_point() != is_real:
            yield name, f"has numbers of another kind than those of the model, {tensor.dtype}"
        elif tensor is not None and tensor.ndim != len(shape):
            yield name, f"is {shape}, but of the model {tuple(tensor.shape)}"
        elif tensor is None or tensor.shape != shape:
            others += prod(shape)
            if others > bounds.passing_elements:
                yield name, f"is {shape}, larger than a model of these weights would compute"


def _place(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    parent = model.get_submodule(path)
    if (parameter := parent._parameters.get(leaf)) is not None:
        parameter.data = value if parameter.is_meta else value.to(parameter.device)
        return
    registry = parent._buffers if leaf in parent._buffers else vars(parent)
    before = registry.get(leaf)
    if before is None:
        before = next(model.parameters(), value)
    registry[leaf] = value if before.is_meta else value.to(before.device)


def _assign(model: nn.Module, name: str, value: Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, value)


def _check_plain(model: nn.Module, name: str, value: Any) -> None:
    plain = type(value) in (Tensor, nn.Parameter)
    if not plain or value.is_meta or value.is_quantized or value.layout != torch.strided:
        raise CaptureError(
            f"{name} of {type(model).__name__} is no plain tensor in memory, as where weights "
            "are quantised or offloaded; load the model whole, and save it then"
        )
