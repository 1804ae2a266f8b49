"""Compare what two models compute with besides their weights, module by module.

Attributes are written as texts, which a file can hold: a model that was saved is compared with
another one in another process.
"""

from __future__ import annotations

import dis
import inspect
import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.fewer_heads import FewerHeads
from pathkernel_pruning.live.saved.value_texts import (
    LIBRARIES,
    OF_TORCH,
    ValueReader,
    is_configuration,
    title,
)

Texts = dict[str, str]
"""Class, attributes and hooks of a module, as texts."""

_CLASS, _CODE, _ORDER = "class", "code of ", "order"
# attributes that change no output: bookkeeping of the libraries, and memory of training
_NEUTRAL = re.compile(
    r"fused_attn|_?(grad|gradient)_checkpointing\w*|use_checkpoint|pathkernel_(removals|included)"
    r"|_is_hf_initialized|name_or_path|generation_config|kernel_config|_use_kernels|loss_type"
    r"|_\w+_plan|all_tied_weights_keys|_keep_in_fp32\w*|_no_split_modules|_skip_keys\w*"
    r"|_keys_to_ignore\w*|_weight_conversions|(pretrained|default)_cfg|_model_args"
    r"|_is_accelerate_prepared"
)
# of transformers alone, whose tables tell how many words there are
_NEUTRAL_OF_TRANSFORMERS = re.compile(
    r"vocab_size|_require_grads_hooks?|warnings_issued|hf_device_map|hf_quantizer|model_tags"
    r"|is_quantized|is_loaded_in_\dbit|quantization_method|is_parallelizable|model_parallel"
    r"|device_map|_?loss_function|_output_capturing_hooks_installed"
)
_HOOKS = {"_forward_hooks": "forward hooks", "_forward_pre_hooks": "forward pre-hooks"}
# by which gradients reach adapters below frozen embeddings, and transformers tells hidden states
# and attentions, whose hooks stay after a pass that asked for them; outputs are the same
_NEUTRAL_HOOKS = re.compile(
    r"(transformers|peft)\..*\bmake_inputs_require_grads?"
    r"|transformers\.utils\.output_capturing\..*"
)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Difference:
    """Difference between two models.

    Attributes
    ----------
    text : str
        The module's name, and both values.
    cause : {"computation", "hook", "attribute"}
        Whether modules, or attributes that classes of the libraries set, differ; hooks; or other
        attributes, of one's own classes or put on a model from outside, such as a counter.
    """

    text: str
    cause: Literal["computation", "hook", "attribute"] = "computation"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Structure:
    """What a model computes with besides the entries of its state.

    Attributes
    ----------
    modules : mapping of str to Texts
        By names of modules.
    tensors : collection of str
        Names of the tensors that the state does not have, see :func:`passing_tensors`.
    kinds : mapping of str to type
        Classes of the modules of a model in memory, by names.
    """

    modules: Mapping[str, Texts]
    tensors: Collection[str]
    kinds: Mapping[str, type] = field(default_factory=dict)

    def differences(self, other: Structure, changed: Collection[str] = ()) -> Iterator[Difference]:
        """Describe how a model in memory differs from this one, by names of modules.

        Parameters
        ----------
        other : Structure
        changed : collection of str
            Libraries of another version, whose classes may have further or fewer attributes;
            ``"python"`` where the code of functions cannot be compared.
        """
        unsaved = {*self.tensors, *other.tensors}
        for name in chain(self.modules, other.modules.keys() - self.modules.keys()):
            part = name or "the model itself"
            if name not in other.modules or name not in self.modules:
                fault = "is missing" if name in self.modules else "is another module"
                yield Difference(f"{part} {fault}")
                continue
            one, two = self.modules[name], other.modules[name]
            if one[_CLASS] != two[_CLASS]:
                yield Difference(f"{part} is {two[_CLASS]}, not {one[_CLASS]}")
                continue
            lenient = one[_CLASS].partition(".")[0] in changed
            for key in chain(one, two.keys() - one.keys()):
                value, given = one.get(key), two.get(key)
                lacking = value is None or given is None
                tensor = f"{name}.{key}".lstrip(".")
                if value == given or (lacking and (lenient or tensor in unsaved)):
                    continue
                attribute = key.removeprefix(_CODE)
                if attribute != key and (
                    "python" in changed or one.get(attribute) != two.get(attribute)
                ):
                    continue  # the attribute itself differs
                yield Difference(
                    f"{part} has {key} {given or 'not set'}, where the saved model has "
                    f"{value or 'it not set'}",
                    other._cause(name, attribute, lacking),
                )
        for tensor in sorted({*other.tensors} - {*self.tensors}):
            name, _, key = tensor.rpartition(".")
            text = f"{tensor} is a tensor that the saved model does not have"
            yield Difference(text, other._cause(name, key, True))

    def _cause(
        self, name: str, key: str, lacking: bool
    ) -> Literal["computation", "hook", "attribute"]:
        if key in _HOOKS.values():
            return "hook"
        attribute, _, entry = key.partition(".")
        if entry and lacking:  # further ones: a configuration tells all that its class knows
            return "attribute"
        return "computation" if _is_set_by_library(self.kinds[name], attribute) else "attribute"

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
        return Structure(modules, self.tensors, self.kinds)

    def hooks(self) -> list[str]:
        """Modules with hooks, and these."""
        return [
            f"{name or 'the model itself'} has {hooks} {texts[hooks]}"
            for name, texts in self.modules.items()
            for hooks in _HOOKS.values()
            if hooks in texts
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
    kinds = {name: type(module) for name, module in model.named_modules()}
    return Structure(modules, passing_tensors(model).keys(), kinds)


def passing_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and tensors of a model's modules that its state lacks, by name."""
    saved = model.state_dict(keep_vars=True)
    ids = {*map(id, saved.values())}
    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        for held in (module._parameters, module._buffers, vars(module))
        for key, value in held.items()
        if isinstance(value, Tensor) and id(value) not in ids
    }


class _Reader:
    """Write modules of a model as texts."""

    def __init__(self, model: nn.Module):
        tensors = chain(model.named_parameters(), model.named_buffers())
        names = {id(value): f"tensor {name!r}" for name, value in tensors}
        names |= {id(module): f"module {name!r}" for name, module in model.named_modules()}
        self.values = ValueReader(names)
        self.configurations: dict[int, str] = {}  # names of the first modules that have them

    def module(self, name: str, module: nn.Module) -> Texts:
        """Class, attributes and hooks of a module."""
        texts = {_CLASS: title(type(module))}
        for key, value in vars(module).items():
            if _is_neutral(module, key) or isinstance(value, Tensor):
                continue
            if is_configuration(value):
                if (first := self.configurations.setdefault(id(value), name)) != name:
                    texts[key] = f"that of {first or 'the model'}"
                else:
                    entries = self.values.read_configuration(value)
                    texts |= {f"{key}.{k}": text for k, text in entries}
            else:
                self._add(texts, key, value)
        named = not all(key.isdigit() for key in module._modules)
        if named and isinstance(module, _CONTAINERS):
            self._add(texts, _ORDER, [*module._modules])
        for key, name in _HOOKS.items():
            hooks = [hook for hook in vars(module)[key].values() if not _is_neutral_hook(hook)]
            if hooks:
                self._add(texts, name, hooks)
        return texts

    def _add(self, texts: Texts, key: str, value: Any) -> None:
        texts[key], code = self.values.read(value)
        if code:
            texts[f"{_CODE}{key}"] = code


def _is_neutral(module: nn.Module, key: str) -> bool:
    """Whether no output of evaluation depends on an attribute of a module."""
    if key in OF_TORCH or key in _of_training(module) or _NEUTRAL.fullmatch(key):
        return True
    value = vars(module)[key]
    if isinstance(value, types.MethodType) and value.__self__ is module:
        # a method of the class put on its object, as accelerate leaves it behind
        return value.__func__ is getattr(type(module), key, None)
    return bool(_NEUTRAL_OF_TRANSFORMERS.fullmatch(key)) and any(
        kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )


def _is_neutral_hook(hook: Any) -> bool:
    name = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}"
    return _NEUTRAL_HOOKS.fullmatch(name) is not None


def _is_set_by_library(kind: type, key: str) -> bool:
    """Whether classes of the libraries set an attribute in their code, or have it themselves."""
    if key == _ORDER and issubclass(kind, _CONTAINERS):
        return True
    return any(
        key in vars(base) or any(key in _stored_names(value) for value in vars(base).values())
        for base in kind.__mro__
        if base.__module__.partition(".")[0] in LIBRARIES
    )


def _stored_names(member: Any) -> set[str]:
    """Attributes that a method or property of a class stores on its object."""
    if isinstance(member, property):
        return _stored_names(member.fget) | _stored_names(member.fset)
    function = inspect.unwrap(getattr(member, "__func__", member))
    if not isinstance(function, types.FunctionType) or not function.__code__.co_argcount:
        return set()
    names, owner = set(), function.__code__.co_varnames[0]
    for before, step in pairwise(dis.get_instructions(function)):
        if step.opname == "STORE_ATTR":
            # Python 3.13 loads two variables at once, of which the object is the last
            loaded = before.argval if isinstance(before.argval, tuple) else (before.argval,)
            if loaded[-1] == owner:
                names.add(step.argval)
    return names


def _of_training(module: nn.Module) -> set[str]:
    """Attributes on which no output of evaluation depends."""
    if type(module).__module__ == "torch.nn.modules.dropout":
        return {"p", "inplace"}
    return {"dropout"} if type(module) in (nn.MultiheadAttention, FewerHeads) else set()
