"""Compare what two models compute with besides their weights, module by module.

Attributes are written as texts, which a file can hold: a model that was saved is compared with
another one in another process.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import re
import sys
import types
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.smaller import FewerHeads

Texts = dict[str, str]
"""Class, attributes and hooks of a module, as texts."""

LIBRARIES = ("torch", "transformers", "timm")
"""Libraries whose classes are known by name; those of one's own have no fixed module."""

_CLASS, _CODE = "class", "code of functions"
_LONGEST = 200  # characters of a text
OF_TORCH = {*vars(nn.Module()), "_compiled_call_impl", "_is_torch_compile"}
"""Attributes of every module, which hold its parts and say how it runs."""

# attributes that change no output: bookkeeping of the libraries, and memory of training
_NEUTRAL = re.compile(
    r"fused_attn|_?(grad|gradient)_checkpointing\w*|use_checkpoint|pathkernel_removals"
    r"|_is_hf_initialized|name_or_path|generation_config|kernel_config|_use_kernels|loss_type"
    r"|_\w+_plan|all_tied_weights_keys|_keep_in_fp32\w*|_no_split_modules|_skip_keys\w*"
    r"|_keys_to_ignore\w*|_weight_conversions|(pretrained|default)_cfg|_model_args"
)
_NEUTRAL_KEYS = re.compile(
    r"dtype|torch_dtype|architectures|transformers_version|_name_or_path|_output_attentions"
    r"|_experts_implementation\w*|_post_init_done|_commit_hash"
)
_HOOKS = {"_forward_hooks": "forward hooks", "_forward_pre_hooks": "forward pre-hooks"}
# ways to compute the same attention; a function that a user registers is another
_ATTENTION = re.compile("eager|sdpa|flex_attention|flash_attention_[0-9]")


@dataclass(frozen=True)
class Structure:
    """What a model computes with besides the entries of its state.

    Attributes
    ----------
    modules : mapping of str to Texts
        By names of modules.
    tensors : collection of str
        Names of the tensors that the state does not have, see :func:`passing_tensors`.
    """

    modules: Mapping[str, Texts]
    tensors: Collection[str]

    def differences(self, other: Structure, changed: Collection[str] = ()) -> Iterator[str]:
        """Describe how another model differs from this one, by names of modules.

        Parameters
        ----------
        other : Structure
        changed : collection of str
            Libraries of another version, whose classes may have further or fewer attributes;
            ``"python"`` where the code of functions cannot be compared.
        """
        unsaved = {*self.tensors, *other.tensors}
        for name in chain(self.modules, other.modules.keys() - self.modules.keys()):
            title = name or "the model itself"
            if name not in other.modules or name not in self.modules:
                yield f"{title} {'is missing' if name in self.modules else 'is another module'}"
                continue
            one, two = self.modules[name], other.modules[name]
            if one[_CLASS] != two[_CLASS]:
                yield f"{title} is {two[_CLASS]}, not {one[_CLASS]}"
                continue
            lenient = one[_CLASS].partition(".")[0] in changed
            for key in chain(one, two.keys() - one.keys()):
                value, given = one.get(key), two.get(key)
                lacking = value is None or given is None
                tensor = f"{name}.{key}".lstrip(".")
                if (
                    value == given
                    or (lacking and (lenient or tensor in unsaved))
                    or (key == _CODE and "python" in changed)
                ):
                    continue
                yield (
                    f"{title} has {key} {given or 'not set'}, where the saved model has "
                    f"{value or 'it not set'}"
                )
        for name in sorted({*other.tensors} - {*self.tensors}):
            yield f"{name} is a tensor that the saved model does not have"

    def without_sizes(self) -> Structure:
        """Leave out configurations, whose entries have a dot, and whole numbers.

        Those are other where a configuration tells the sizes of a model that lost heads.
        """
        modules = {
            name: {
                key: text for key, text in texts.items() if "." not in key and not text.isdigit()
            }
            for name, texts in self.modules.items()
        }
        return Structure(modules, self.tensors)

    def hooks(self) -> list[str]:
        """Modules with hooks, and these."""
        return [
            f"{name or 'the model itself'} has {title} {texts[title]}"
            for name, texts in self.modules.items()
            for title in _HOOKS.values()
            if title in texts
        ]


def structure_of(model: nn.Module) -> Structure:
    """Describe what a model computes with, besides its state.

    Raises a CaptureError if a module was compiled by torch.jit: its numbers are in its code.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{name or 'the model itself'} was compiled by torch.jit, and no folder keeps its "
                "code; put the module in its place that it was made from"
            )
    reader = _Reader(model)
    modules = {name: reader.module(name, module) for name, module in model.named_modules()}
    return Structure(modules, passing_tensors(model).keys())


def passing_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Buffers and other tensors of a model's modules that its state does not have, by name."""
    saved = model.state_dict(keep_vars=True)
    ids = {*map(id, saved.values())}
    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        for key, value in chain(module._buffers.items(), vars(module).items())
        if isinstance(value, Tensor) and id(value) not in ids
    }


class _Reader:
    """Write attributes of a model as texts, parts of the model by their names."""

    def __init__(self, model: nn.Module):
        self.modules = {id(module): name for name, module in model.named_modules()}
        named = chain(model.named_parameters(), model.named_buffers())
        self.tensors = {id(value): name for name, value in named}
        self.configurations: dict[int, str] = {}  # names of the first modules that have them
        self.code: list[str] = []
        self.open: set[int] = set()  # ids of the objects around a value, which may refer to them

    def module(self, name: str, module: nn.Module) -> Texts:
        """Class, attributes and hooks of a module."""
        self.code = []
        texts = {_CLASS: _title(type(module))}
        passed_over = OF_TORCH | _of_training(module)
        for key, value in vars(module).items():
            if key in passed_over or _NEUTRAL.fullmatch(key) or isinstance(value, Tensor):
                continue
            if _is_configuration(value):
                if (first := self.configurations.setdefault(id(value), name)) != name:
                    texts[key] = f"that of {first or 'the model'}"
                else:
                    texts |= {f"{key}.{k}": text for k, text in self._configuration(value)}
            else:
                texts[key] = self._text(value)
        named = not all(key.isdigit() for key in module._modules)
        if named and isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            texts["order"] = self._text([*module._modules])
        texts |= self._hooks(module)
        if self.code:
            texts[_CODE] = _digest("".join(self.code).encode())
        return {key: _shorten(text) for key, text in texts.items()}

    def _hooks(self, module: nn.Module) -> Texts:
        hooks = {title: [*vars(module)[key].values()] for key, title in _HOOKS.items()}
        return {title: self._text(values) for title, values in hooks.items() if values}

    def _configuration(self, config: Any) -> Iterator[tuple[str, str]]:
        for key, value in config.to_dict().items():
            if not _NEUTRAL_KEYS.fullmatch(key):
                yield key, self._text(value)
        attention = getattr(config, "_attn_implementation", None)
        if attention is not None and not _ATTENTION.fullmatch(str(attention)):
            yield "_attn_implementation", self._text(attention)

    def _text(self, value: Any) -> str:
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return repr(value)
        if isinstance(value, torch.device):
            return "a device"
        if id(value) in self.modules:
            return f"module {self.modules[id(value)]!r}"
        if id(value) in self.tensors:
            return f"tensor {self.tensors[id(value)]!r}"
        if isinstance(value, Tensor):
            return _tensor_text(value)
        if isinstance(value, type):
            return _title(value)
        if id(value) in self.open:
            return "itself"
        self.open.add(id(value))
        try:
            return self._compound(value)
        finally:
            self.open.discard(id(value))

    def _compound(self, value: Any) -> str:
        if isinstance(value, np.ndarray) and value.dtype != object:
            return f"array {value.shape} {value.dtype} {_digest(value.tobytes())}"
        if isinstance(value, list | tuple | np.ndarray):  # JSON makes lists of tuples
            return f"({', '.join(map(self._text, value))})"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(map(self._text, value)))}}}"
        if isinstance(value, Mapping):
            items = sorted(f"{self._text(key)}: {self._text(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        if isinstance(value, weakref.ref):
            return self._text(value())
        if isinstance(value, functools.partial):
            return f"partial{self._text((value.func, value.args, value.keywords))}"
        if isinstance(value, types.MethodType):
            return f"{self._text(value.__func__)} of {self._text(value.__self__)}"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, torch.jit.ScriptFunction):
            self.code.append(_digest(value.code.encode()))
            return value.name
        if isinstance(value, np.ufunc | types.ModuleType):
            return value.__name__
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            plain = owner is None or isinstance(owner, types.ModuleType | type)
            return value.__name__ if plain else f"{value.__name__} of {self._text(owner)}"
        return f"{_title(type(value))}{self._state(value)}"

    def _function(self, function: types.FunctionType) -> str:
        root = (function.__module__ or "").partition(".")[0]
        if root in LIBRARIES and not function.__closure__:
            return f"{root}.{function.__qualname__}"
        self.code.append(_code_digest(function.__code__))
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a name that has no value yet
            cells = []
        values = (cells, function.__defaults__ or (), function.__kwdefaults__ or {})
        return f"{function.__qualname__}{self._text(values) if any(values) else ''}"

    def _state(self, value: Any) -> str:
        """Content of an object of any class; its class alone must do where none can be read."""
        if isinstance(value, nn.Module):  # not registered, and so in no state
            named = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            plain = {key: item for key, item in vars(value).items() if key not in OF_TORCH}
            return self._text((plain, {**value._modules}, named))
        if _is_configuration(value):
            return self._text(dict(self._configuration(value)))
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # locks, generators and others that cannot be copied
            return ""
        if isinstance(parts, str):
            return parts
        # functions by which it is made again stand for its class
        content = [part for part in parts[1:3] if part]
        content += [list(part) for part in parts[3:5] if part is not None]
        return self._text(content)


def _of_training(module: nn.Module) -> set[str]:
    """Attributes on which no output of evaluation depends."""
    if type(module).__module__ == "torch.nn.modules.dropout":
        return {"p", "inplace"}
    return {"dropout"} if type(module) in (nn.MultiheadAttention, FewerHeads) else set()


def _is_configuration(value: Any) -> bool:
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(value, transformers.PreTrainedConfig)


def _title(kind: type) -> str:
    root = kind.__module__.partition(".")[0]
    return f"{root}.{kind.__name__}" if root in LIBRARIES else kind.__name__


def _tensor_text(value: Tensor) -> str:
    text = f"tensor {tuple(value.shape)} {value.dtype}"
    if type(value) not in (Tensor, nn.Parameter) or value.is_meta or value.layout != torch.strided:
        return text
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return f"{text} {_digest(content.numpy().tobytes())}"


def _code_digest(code: types.CodeType) -> str:
    constants = [
        _code_digest(value)
        if isinstance(value, types.CodeType)
        else repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]
    return _digest(repr((code.co_code, code.co_names, constants)).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}… {_digest(text.encode())}"
