"""Bounds on what the description of a model may ask for, by the sizes of its weights.

A configuration of a few bytes can ask for any number of layers, labels or positions. The file of
weights tells how many arrays there are, and how large. Numbers of the configuration are compared
with these before anything is built. What they lead to is counted while the model is built.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as registration
from torch.overrides import TorchFunctionMode

from pathkernel_core.system.memory import bytes_in_words
from pathkernel_core.system.text import printable
from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import tensors_of

_LAYERS = re.compile(r"(^|_)n(um)?_.*layers?$|layers$|^depths?$|^n_layers?$")
_MOST_LAYERS = 1000  # that a configuration may ask for, if the weights have fewer arrays
_COUNTS = re.compile(
    r"num|^n_|layers?$|heads?$|depth|label|blocks?$|stages?$|repeats?$|experts|groups?$"
)
_MOST = 2**16  # that may be counted, if no array of the weights is longer
_NESTED = re.compile(r"config$|coder$|generator$")  # looked up in any configuration
_MEASURES = re.compile(r"theta|base$|seed")  # whole numbers that neither count nor index
_LARGEST = 2**24  # of other whole numbers, such as positions and indices of tokens
_MOST_ENTRIES, _MOST_LEVELS = 2**18, 32  # of a configuration; names of labels are entries
_TIES = 64  # names of an array


class BoundsError(CaptureError):
    """A description asks for more than the weights hold."""


@dataclass(frozen=True)
class Bounds:
    """Sizes of the weights of a model.

    Attributes
    ----------
    arrays : int
        Number of parameters and buffers that are saved, tied ones by each of their names.
    longest : int
        Length of the longest axis.
    elements : int
    """

    arrays: int
    longest: int
    elements: int

    @property
    def passing_elements(self) -> int:
        """Most elements of stored tensors that a model makes in forward passes."""
        return 2**25 + 2**5 * self.elements

    @classmethod
    def of_shapes(cls, shapes: Iterable[tuple[int, ...]], ties: int = 0) -> Bounds:
        """Bounds by the shapes of arrays, and the number of further names that these have."""
        shapes = list(shapes)
        if ties > _TIES * len(shapes):
            raise BoundsError(f"{ties} names are tied to the {len(shapes)} arrays of the weights")
        lengths = (length for shape in shapes for length in shape)
        return cls(len(shapes) + ties, max(lengths, default=0), sum(map(prod, shapes)))

    def check(self, options: dict[str, Any], default: Any = None) -> None:
        """Raise a BoundsError if numbers of a configuration cannot be those of the weights.

        Parameters
        ----------
        options : dict
            The configuration.
        default : PreTrainedConfig, optional
            Configuration of the same class without options. Entries that it does not have are the
            user's own notes, such as the number of examples in training: their numbers are not
            compared. What a class does with one of these is counted while it is built.
        """
        entries: list[tuple[str, Any, int, Any, bool]] = [("", options, 0, default, True)]
        seen = 0
        while entries:
            name, value, level, default, is_compared = entries.pop()
            seen += 1
            if level > _MOST_LEVELS:
                raise BoundsError(f"the configuration is nested more than {_MOST_LEVELS} deep")
            if isinstance(value, dict):
                parts = _parts(default, value)
                for key, item in value.items():
                    is_own = parts is not None and key not in parts and not _NESTED.search(key)
                    part = (parts or {}).get(key)
                    entries.append((key, item, level + 1, part, is_compared and not is_own))
            elif isinstance(value, list | tuple):
                entries += [(name, item, level + 1, None, is_compared) for item in value]
            elif is_compared and isinstance(value, int | float):
                self._check_number(name, value)
            if seen + len(entries) > _MOST_ENTRIES:
                raise BoundsError(f"the configuration has more than {_MOST_ENTRIES} entries")

    def _check_number(self, name: str, value: float) -> None:
        if _LAYERS.search(name):
            most = max(self.arrays, _MOST_LAYERS)
        elif _COUNTS.search(name):
            most = max(self.arrays, self.longest, _MOST)
        elif isinstance(value, float) or _MEASURES.search(name):
            return
        else:
            most = max(self.longest, _LARGEST)
        if abs(value) > most:
            entry = f"{printable(name)[:60]} = {str(value)[:40]}"
            raise BoundsError(
                f"the configuration says {entry}, but the weights are "
                f"{self.arrays} arrays of at most {self.longest} rows or columns"
            )

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Raise a BoundsError if a model that is built in the context exceeds the weights.

        The model before heads were taken out may be larger, and modules have no weights or replace
        others, hence generous factors.
        """
        counts = _Counts(self, threading.get_ident())
        with ExitStack() as stack:
            for register, count in (
                (registration.register_module_module_registration_hook, counts.add_module),
                (registration.register_module_parameter_registration_hook, counts.add_parameter),
                (registration.register_module_buffer_registration_hook, counts.add_buffer),
            ):
                stack.callback(register(count).remove)
            stack.enter_context(_Measuring(counts))
            yield


def _parts(default: Any, options: dict[str, Any]) -> dict[str, Any] | None:
    """Values that a class of configurations has by default, or None if the class is not known."""
    kind = getattr(default, "model_type", None)
    if kind is None or options.get("model_type", kind) != kind:
        return None
    # further names of entries are properties, such as num_labels, and those of attribute_map
    names = (*dir(type(default)), *default.attribute_map)
    return dict.fromkeys(names) | vars(default)


@dataclass
class _Counts:
    """What a model has been made of so far."""

    bounds: Bounds
    thread: int  # hooks are of the process
    modules: int = 0
    elements: int = 0
    bytes: int = 0
    storages: dict[StorageWeakRef, int] = field(default_factory=dict)

    def add_module(self, module: nn.Module, name: str, submodule: nn.Module | None) -> None:
        if threading.get_ident() == self.thread:
            self.modules += 1
            self._check("modules and parameters", self.modules, 8 * self.bounds.arrays + 1000)

    def add_parameter(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and threading.get_ident() == self.thread:
            self.add_module(module, name, None)
            self.elements += parameter.numel()
            self._check("elements", self.elements, 16 * self.bounds.elements + 2**16)

    def add_buffer(self, module: nn.Module, name: str, buffer: Tensor | None) -> None:
        if buffer is not None and threading.get_ident() == self.thread:
            self.add_bytes(buffer)

    def add_bytes(self, tensor: Tensor) -> None:
        """Count the storage of a tensor, once; those that are gone again do not count."""
        self.check_bytes(tensor)
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        self.bytes += storage.nbytes() - self.storages.get(reference, 0)  # it may have grown
        self.storages[reference] = storage.nbytes()
        most = 5 * 2**27 + 2**8 * self.bounds.elements
        if self.bytes > most:
            for other in [other for other in self.storages if other.expired()]:
                self.bytes -= self.storages.pop(other)
            self._check_bytes(self.bytes, most)

    def check_bytes(self, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self._check_bytes(size, 2**27 + 2**5 * self.bounds.elements)

    def _check_bytes(self, size: int, most: int) -> None:
        if size > most:
            raise BoundsError(
                f"the configuration asks for tensors of {bytes_in_words(size)}, but the weights "
                f"have {self.bounds.elements} elements"
            )

    def _check(self, what: str, count: int, most: int) -> None:
        if count > most:
            raise BoundsError(
                f"the configuration asks for more than {most} {what}, but the weights are "
                f"{self.bounds.arrays} arrays of {self.bounds.elements} elements"
            )


class _Measuring(TorchFunctionMode):
    """Compute every tensor without memory first, and know its size before it is made."""

    def __init__(self, counts: _Counts):
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors_of(_sketch(func, args, kwargs)):
            self.counts.check_bytes(tensor)
        result = func(*args, **kwargs)
        for tensor in tensors_of(result):
            self.counts.add_bytes(tensor)
        return result


def _sketch(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Compute a function of torch on the device meta, or return None if it cannot run there."""
    try:
        args, kwargs = _without_memory(args), _without_memory(kwargs)
        makes_first = next(tensors_of((args, kwargs)), None) is None
        if makes_first or kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)
    # whatever a function raises that needs numbers, or takes other arguments: if these are wrong,
    # it raises again by itself
    except Exception:
        return None


def _without_memory(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, list | tuple):
        return type(value)(map(_without_memory, value))
    if isinstance(value, dict):
        return {key: _without_memory(item) for key, item in value.items()}
    return value
