"""Bounds on what the description of a model may ask for, by the sizes of its weights.

A configuration of a few bytes can ask for any number of layers, labels or positions. The file of
weights tells how many arrays there are, and how large. Numbers of the configuration are compared
with these before anything is built. What they lead to is counted while the model is built.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registration
from torch.overrides import TorchFunctionMode

from pathkernel_core.system.memory import bytes_in_words
from pathkernel_core.system.text import printable
from pathkernel_models.errors import CaptureError

_LAYERS = re.compile(r"(^|_)n(um)?_.*layers?$|layers$|^depths?$|^n_layers?$")
_MOST_LAYERS = 1000  # that a configuration may ask for, if the weights have fewer arrays
_COUNTS = re.compile(
    r"num|^n_|layers?$|heads?$|depth|label|blocks?$|stages?$|repeats?$|experts|groups?$"
)
_MOST = 2**16  # that may be counted, if no array of the weights is longer
_MEASURES = re.compile(r"theta|base$|seed")  # whole numbers that neither count nor index
_LARGEST = 2**24  # of other whole numbers, such as positions and indices of tokens
_MOST_ENTRIES, _MOST_LEVELS = 2**18, 32  # of a configuration; names of labels are entries
_TIES = 64  # names of an array
_FACTORIES = {
    getattr(torch, name)
    for name in [
        "arange",
        "bartlett_window",
        "blackman_window",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "hamming_window",
        "hann_window",
        "kaiser_window",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "tril_indices",
        "triu_indices",
        "zeros",
    ]
}


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

    def check(self, options: dict[str, Any]) -> None:
        """Raise a BoundsError if numbers of a configuration cannot be those of the weights."""
        entries: list[tuple[str, Any, int]] = [("", options, 0)]
        seen = 0
        while entries:
            name, value, level = entries.pop()
            seen += 1
            if level > _MOST_LEVELS:
                raise BoundsError(f"the configuration is nested more than {_MOST_LEVELS} deep")
            if isinstance(value, dict):
                entries += [(key, item, level + 1) for key, item in value.items()]
            elif isinstance(value, list | tuple):
                entries += [(name, item, level + 1) for item in value]
            elif isinstance(value, int | float):
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


@dataclass
class _Counts:
    """What a model has been made of so far."""

    bounds: Bounds
    thread: int  # hooks are of the process
    modules: int = 0
    elements: int = 0
    bytes: int = 0

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
        self.check_bytes(tensor)
        self.bytes += tensor.numel() * tensor.element_size()
        self._check_bytes(self.bytes, 2**28 + 2**8 * self.bounds.elements)

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
    """Know the size of every tensor before it is made."""

    def __init__(self, counts: _Counts):
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES:
            self.counts.add_bytes(func(*args, **{**kwargs, "device": "meta"}))
        elif _is_computed((*args, *kwargs.values())):
            # a function that needs numbers raises, and returns no tensor that is larger
            with suppress(NotImplementedError, RuntimeError, TypeError):
                self._check(func(*_without_memory(args), **_without_memory(kwargs)))
        result = func(*args, **kwargs)
        self._check(result)
        return result

    def _check(self, result: Any) -> None:
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                self.counts.check_bytes(tensor)


def _is_computed(args: Any) -> bool:
    """Whether tensors in memory are among the arguments."""
    return any(
        not value.is_meta if isinstance(value, Tensor) else _is_computed(value)
        for value in args
        if isinstance(value, Tensor | list | tuple)
    )


def _without_memory(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, list | tuple):
        return type(value)(map(_without_memory, value))
    if isinstance(value, dict):
        return {key: _without_memory(item) for key, item in value.items()}
    return value
