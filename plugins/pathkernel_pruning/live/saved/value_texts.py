"""Write values of attributes as texts: equal where the values compute the same.

Nothing of an object's own class is called: its attributes are read as Python stores them. What a
reader visits is bounded, and each object is read once, whatever refers to it.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LIBRARIES = ("torch", "transformers", "timm")
"""Libraries whose classes are known by name; those of one's own have no fixed module."""

OF_TORCH = {*vars(nn.Module()), "_compiled_call_impl", "_is_torch_compile"}
"""Attributes of every module, which hold its parts and say how it runs."""

_LONGEST = 200  # characters of a text
_DEEPEST = 64  # levels of values inside one another, well within Python's own recursion
_MOST = 2**16  # values inside an attribute
# entries of configurations that change no output: bookkeeping, names of labels, losses, caches
_NEUTRAL_KEYS = re.compile(
    r"dtype|torch_dtype|architectures|transformers_version|_name_or_path|_output_attentions"
    r"|_experts_implementation\w*|_post_init_done|_commit_hash|problem_type|id2label|label2id"
    r"|use_cache|gradient_checkpointing|tokenizer_class|finetuning_task|task_specific_params"
)
# ways to compute the same attention; a function that a user registers is another
_ATTENTION = re.compile("eager|sdpa|flex_attention|flash_attention_[0-9]")
# modules of Python whose objects hold values; others run the process: locks, files, loggers
_OF_VALUES = {"argparse", "builtins", "collections", "fractions", "functools", "re", "types"}
_PLAIN = (
    *(
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        type(...),
        range,
        Fraction,
        Decimal,
        np.generic,
    ),
    *(np.dtype, torch.dtype, torch.layout, torch.memory_format, pathlib.PurePath),
)
_NAMED = (np.ufunc, types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType)


class ValueReader:
    """Write values as texts, parts of a model by their names.

    Parameters
    ----------
    names : mapping of int to str
        Texts of the parts of the model, by their ids.
    """

    def __init__(self, names: Mapping[int, str]):
        self._names = names
        self._read: dict[int, tuple[Any, tuple[str, str]]] = {}
        self._start()

    def _start(self) -> None:
        self._code: list[str] = []
        # with the objects: an id belongs to another one after its object is gone
        self._texts: dict[int, tuple[Any, str]] = {}
        self._left, self._depth = _MOST, 0

    def read(self, value: Any) -> tuple[str, str]:
        """Return the text of a value, and a digest of the code of its functions or nothing."""
        if id(value) not in self._read:  # many modules may refer to the same object
            self._start()
            text = shorten(self._text(value))
            code = digest("".join(self._code).encode()) if self._code else ""
            self._read[id(value)] = value, (text, code)
        return self._read[id(value)][1]

    def read_configuration(self, config: Any) -> Iterator[tuple[str, str]]:
        """Return entries of a configuration of transformers, and their texts."""
        return ((key, self.read(value)[0]) for key, value in _entries(config).items())

    def _text(self, value: Any) -> str:
        self._left -= 1
        if self._left < 0:
            return "…"
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, torch.device):
            return "a device"
        if isinstance(value, Tensor):
            return _tensor_text(value)
        if isinstance(value, type):
            return title(value)
        if id(value) in self._texts:
            return self._texts[id(value)][1]
        if self._depth == _DEEPEST:
            return f"{title(type(value))} …"
        self._texts[id(value)] = value, "itself"  # for what is inside and refers to it
        self._depth += 1
        text = shorten(self._compound(value))
        self._depth -= 1
        self._texts[id(value)] = value, text
        return text

    def _compound(self, value: Any) -> str:
        if isinstance(value, np.ndarray) and value.dtype != object:
            return f"array {value.shape} {value.dtype} {digest(value.tobytes())}"
        if isinstance(value, list | tuple | deque | np.ndarray):  # JSON makes lists of tuples
            return f"({self._join(map(self._text, value), len(value))})"
        if isinstance(value, set | frozenset):
            return f"{{{self._join(map(self._text, value), len(value), ordered=False)}}}"
        if isinstance(value, dict | types.MappingProxyType):
            items = (f"{self._text(key)}: {self._text(item)}" for key, item in value.items())
            return f"{{{self._join(items, len(value), ordered=False)}}}"
        if isinstance(value, weakref.ref):
            return self._text(value())
        if isinstance(value, functools.partial):
            return f"partial{self._text((value.func, value.args, value.keywords))}"
        if isinstance(value, types.MethodType):
            return f"{self._text(value.__func__)} of {self._text(value.__self__)}"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, torch.jit.ScriptFunction):
            self._code.append(digest(value.code.encode()))
            return value.name
        if isinstance(value, _NAMED):
            return str(getattr(value, "__qualname__", value.__name__))
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            owner = value.__self__
            plain = owner is None or isinstance(owner, types.ModuleType | type)
            return value.__name__ if plain else f"{value.__name__} of {self._text(owner)}"
        return f"{title(type(value))}{self._state(value)}"

    def _join(self, texts: Iterable[str], count: int, *, ordered: bool = True) -> str:
        most = max(self._left, 0)
        read = [*islice(texts, most)]
        return ", ".join(
            [*(read if ordered else sorted(read)), *([f"… of {count}"] if count > most else [])]
        )

    def _function(self, function: types.FunctionType) -> str:
        root = (function.__module__ or "").partition(".")[0]
        if root in LIBRARIES and not function.__closure__:
            return f"{root}.{function.__qualname__}"
        self._code.append(_code_digest(function.__code__))
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a name that has no value yet
            cells = []
        values = (cells, function.__defaults__ or (), function.__kwdefaults__ or {})
        return f"{function.__qualname__}{self._text(values) if any(values) else ''}"

    def _state(self, value: Any) -> str:
        """Content of an object; its class alone must do where that holds no values."""
        if isinstance(value, nn.Module):  # not registered, and so in no state
            named = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            plain = {key: item for key, item in vars(value).items() if key not in OF_TORCH}
            return self._text((plain, {**value._modules}, named))
        if is_configuration(value):
            return self._text(_entries(value))
        root = type(value).__module__.partition(".")[0]
        if root in sys.stdlib_module_names and root not in _OF_VALUES:
            return ""
        content = _stored(value)
        return self._text(content) if content else ""


def is_configuration(value: Any) -> bool:
    """Whether a value is a configuration of transformers."""
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(value, transformers.PreTrainedConfig)


def _entries(config: Any) -> dict[str, Any]:
    content: dict[str, Any] = config.to_dict()
    entries = {key: value for key, value in content.items() if not _NEUTRAL_KEYS.fullmatch(key)}
    attention = getattr(config, "_attn_implementation", None)
    if attention is not None and not _ATTENTION.fullmatch(str(attention)):
        entries["_attn_implementation"] = attention
    return entries


def title(kind: type) -> str:
    """Name of a class, with its library if that is one of LIBRARIES."""
    root = kind.__module__.partition(".")[0]
    return f"{root}.{kind.__name__}" if root in LIBRARIES else kind.__name__


def shorten(text: str) -> str:
    """Cut a long text, and add a digest of the whole one."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}… {digest(text.encode(errors='surrogatepass'))}"


def digest(content: bytes) -> str:
    """Return the first 16 digits of the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


def _stored(value: Any) -> dict[str, Any]:
    """Attributes that an object stores, read without code of its class."""
    slots: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, member in chain.from_iterable(vars(kind).items() for kind in type(value).__mro__):
        if isinstance(member, types.MemberDescriptorType):
            with suppress(AttributeError):  # not set
                slots[name] = member.__get__(value)
        elif name == "__dict__" and isinstance(member, types.GetSetDescriptorType):
            own = member.__get__(value)
    return slots | own


def _tensor_text(value: Tensor) -> str:
    text = f"tensor {tuple(value.shape)} {value.dtype}"
    if type(value) not in (Tensor, nn.Parameter) or value.is_meta or value.layout != torch.strided:
        return text
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return f"{text} {digest(content.numpy().tobytes())}"


def _code_digest(code: types.CodeType) -> str:
    constants = [
        _code_digest(value)
        if isinstance(value, types.CodeType)
        else repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]
    return digest(repr((code.co_code, code.co_names, constants)).encode())
