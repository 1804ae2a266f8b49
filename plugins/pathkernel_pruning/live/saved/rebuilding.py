"""Build a model of transformers or timm again, from a description that a file may hold.

A description names a class that its library exports, or an architecture that it registers, and
holds numbers and texts besides. Nothing else is imported, downloaded or run, whatever it says.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.cross_attention import include_named
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules
from pathkernel_pruning.live.saved.bounds import Bounds, BoundsError
from pathkernel_pruning.live.saved.confinement import confined
from pathkernel_pruning.live.saved.foreign_names import check_names, without_foreign

_TIMM_OPTIONS = ("num_classes", "in_chans", "img_size", "global_pool")
_RANDOM = re.compile(
    r"(trunc_|log_)?normal_|uniform_|orthogonal_|sparse_|(kaiming|xavier)_(normal|uniform)_"
    r"|bernoulli_|cauchy_|exponential_|geometric_|random_"
)
_TAG = "__float__"  # of transformers, as JSON has no infinite numbers
_TEMPORARY = "pathkernel_temporary"  # attribute of a tensor
_COUNTS_OF_LAYERS: dict[str, Callable[[AttentionModule], int]] = {
    "num_attention_heads": lambda attention: attention.heads,
    "num_key_value_heads": lambda attention: attention.groups,
    "head_dim": lambda attention: attention.output_inputs_last.shape[-1] // attention.heads,
}


@dataclass(frozen=True)
class Recipe:
    """Description of a model, without its weights.

    Attributes
    ----------
    library : {"transformers", "timm"}
    name : str
        Name of a class of transformers, or of an architecture of timm.
    options : dict
        The configuration of transformers, or further arguments of ``timm.create_model``.
    """

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, device: str | None = None) -> nn.Module:
        """Build the model, without drawing random weights: on ``"meta"`` without memory.

        Raises a CaptureError if its library cannot.
        """
        try:
            with ExitStack() as contexts:
                contexts.enter_context(torch.random.fork_rng(devices=[]))
                contexts.enter_context(_Undrawn())
                if device is not None:
                    contexts.enter_context(torch.device(device))
                model = _LIBRARIES[self.library](self.name, copy.deepcopy(self.options))
        except Exception as error:  # whatever a library raises that is given other numbers
            if isinstance(error, CaptureError):
                raise
            reason = " ".join(str(error).split())[:200]
            raise CaptureError(
                f"{self.name} of {self.library} cannot be built from its configuration "
                f"({type(error).__name__}: {reason})"
            ) from error
        return model.eval()

    def build_sketch(self) -> nn.Module:
        """Build the model on ``"meta"``, without memory, if its class can be built there."""
        try:
            return self.build("meta")
        except BoundsError:
            raise
        except CaptureError:  # some classes compute numbers from tensors
            return self.build()

    @contextmanager
    def guarded(self, bounds: Bounds, folder: str | os.PathLike | None = None) -> Iterator[None]:
        """Context in which a recipe from a file is built: closed to all else, and bounded.

        Raises a CaptureError, before anything is built, if the recipe names files or exceeds the
        bounds.
        """
        _library(self.library)  # imports may open files of their own
        default = None
        if self.library == "transformers":
            kind = _class_of_transformers(self.name)
            with confined(folder), suppress(Exception):  # some classes have no default
                default = kind.config_class()
        bounds.check(self.options, default)
        check_names(self.name, self.options)
        with confined(folder), bounds.watch():
            yield


class _Undrawn(TorchFunctionMode):
    """Leave weights as they are where they would be drawn at random, which takes most time.

    Tensors that initialisers make for themselves are drawn: some draw until values are in a range.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _RANDOM.fullmatch(getattr(func, "__name__", "")):
            weights = args[0] if args else kwargs["tensor"]
            if not hasattr(weights, _TEMPORARY):
                return weights
        result = func(*args, **kwargs)
        if func is torch.empty_like:
            setattr(result, _TEMPORARY, True)
        return result


def recipe_of(model: nn.Module) -> Recipe | None:
    """Describe a model of transformers or timm, or return None if it is another.

    A model of timm has the options that it tells; with further ones it differs from the model that
    is built.
    """
    kind = type(model)
    transformers = sys.modules.get("transformers")  # else the model is none of its classes
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        if getattr(transformers, kind.__name__, None) is not kind:
            return None
        if getattr(model.config, "quantization_config", None) is not None:
            return None
        return Recipe("transformers", kind.__name__, json.loads(configuration(model)))
    timm = sys.modules.get("timm")
    if timm is None or not kind.__module__.startswith("timm."):
        return None
    pretrained = getattr(model, "pretrained_cfg", None)
    name = pretrained.get("architecture") if isinstance(pretrained, Mapping) else None
    if not isinstance(name, str) or not timm.is_model(name):
        return None
    usual = timm_options(Recipe("timm", name).build())
    told = timm_options(model).items()
    return Recipe("timm", name, {key: value for key, value in told if value != usual.get(key)})


def configuration(model: nn.Module) -> str:
    """Configuration of a model of transformers as its ``config.json``."""
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    text: str = config.to_json_string()
    return text


def _class_of_transformers(name: str) -> Any:
    transformers = _library("transformers")
    try:
        kind: Any = getattr(transformers, name, None) if name.isidentifier() else None
    except Exception as error:  # whatever the import of its module raises
        reason = " ".join(str(error).split())[:200]
        raise CaptureError(f"{name} of transformers cannot be imported ({reason})") from error
    config: Any = getattr(kind, "config_class", None)
    if (
        not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel))
        or not kind.__module__.startswith("transformers.")
        or config is None
    ):
        raise CaptureError(
            f"transformers {transformers.__version__} has no model {name!r:.80}; give the whole "
            "model, load_model(folder, model=…)"
        )
    return kind


def _of_transformers(name: str, options: dict[str, Any]) -> nn.Module:
    kind = _class_of_transformers(name)
    model: nn.Module = kind(kind.config_class.from_dict(with_infinities(without_foreign(options))))
    return model


def with_infinities(value: Any) -> Any:
    """Return what a ``config.json`` holds, with infinite numbers where transformers writes tags."""
    if isinstance(value, dict):
        if value.keys() == {_TAG} and value[_TAG] in ("Infinity", "-Infinity", "NaN"):
            return float(value[_TAG])
        return {key: with_infinities(entry) for key, entry in value.items()}
    return [*map(with_infinities, value)] if isinstance(value, list) else value


def _of_timm(name: str, options: dict[str, Any]) -> nn.Module:
    timm = _library("timm")
    # a name with a prefix, such as hf-hub:, would be downloaded
    if not re.fullmatch(r"\w+", name) or not timm.is_model(name):
        raise CaptureError(
            f"timm {timm.__version__} has no architecture {name!r:.80}; give the whole model, "
            "load_model(folder, model=…)"
        )
    if not {*options} <= {*_TIMM_OPTIONS}:
        raise CaptureError(f"options of {name} must be among {', '.join(_TIMM_OPTIONS)}")
    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


_LIBRARIES = {"transformers": _of_transformers, "timm": _of_timm}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise CaptureError(
            f"the folder holds a model of {name}, which is not installed; pip install {name}"
        ) from None


def timm_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of ``timm.create_model`` as a model tells them."""
    patches = getattr(model, "patch_embed", None)
    told = {
        "num_classes": getattr(model, "num_classes", None),
        "in_chans": getattr(getattr(patches, "proj", None), "in_channels", None),
        "img_size": getattr(patches, "img_size", None),
        "global_pool": getattr(model, "global_pool", None),
    }
    return {name: value for name, value in told.items() if isinstance(value, int | str | tuple)}


def tied_names(model: nn.Module) -> dict[str, str]:
    """Names of parameters and buffers that are others, too, and the first names of these."""
    first: dict[int, str] = {}
    names = {
        name: first.setdefault(id(value), name)
        for name, value in model.state_dict(keep_vars=True).items()
    }
    return {name: other for name, other in names.items() if name != other}


def passing_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that a model computes when it is built, and does not save."""
    saved = model.state_dict()
    return {name: value for name, value in model.named_buffers() if name not in saved}


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes in the state of a model."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def generates(model: Any) -> bool:
    """Whether a model is one of transformers that generates text."""
    transformers: Any = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return False
    return model.can_generate() and getattr(model, "generation_config", None) is not None


def changed_configuration(model: nn.Module, whole: list[tuple[int, int]], bounds: Bounds) -> Any:
    """Configuration by which transformers builds a smaller model itself, or None.

    Parameters
    ----------
    model : PreTrainedModel
        With heads taken out.
    whole : list of (int, int)
        Heads, and heads of keys and values, of all layers before.
    bounds : Bounds
        By the weights of the smaller model.
    """
    text, layers = configuration(model), attention_modules(model)
    for change in _changes(whole, layers):
        config: Any = type(model.config).from_dict(with_infinities(json.loads(text)))
        try:
            before = config.to_json_string()
            change(config)
            if (after := config.to_json_string()) == before:
                continue
            recipe = Recipe("transformers", type(model).__name__, json.loads(after))
            with recipe.guarded(bounds):
                built = recipe.build()
            include_named(built, [attention.name for attention in layers])
            if _same_function(built, model):
                return config
        except Exception:  # whatever a configuration raises whose sizes do not fit
            continue
    return None


def _changes(
    whole: list[tuple[int, int]], layers: list[AttentionModule]
) -> Iterator[Callable[[Any], None]]:
    """Yield functions that tell a configuration of the remaining heads, to be tried in turn."""
    heads = _renumbering((count, left.heads) for (count, _), left in zip(whole, layers))
    groups = _renumbering((count, left.groups) for (_, count), left in zip(whole, layers))
    sizes = {
        attention.description.size for attention in layers if attention.description is not None
    }
    # most families take the size of a head from the number of heads, unless it is given
    for size in (None, *sizes) if len(sizes) == 1 else (None,):
        yield partial(_change, heads=heads, groups=groups, size=size, layers=layers)
    yield partial(_change_layers, layers=layers)


def _renumbering(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Numbers after, by numbers before; empty if one became several."""
    numbers: dict[int, int] = {}
    unequal = [before for before, after in pairs if numbers.setdefault(before, after) != after]
    return {} if unequal else numbers


def _change(
    config: Any,
    heads: Mapping[int, int],
    groups: Mapping[int, int],
    size: int | None,
    layers: list[AttentionModule],
) -> None:
    """Set the numbers of heads in a configuration, and the size of each if given."""
    for key, value in config.to_dict().items():
        part = getattr(config, key, None)
        if type(part) is not int and hasattr(part, "to_dict"):
            _change(part, heads, groups, size, layers)
        elif re.search("head|^n_head$", key) and not re.search("dim|size|width", key):
            is_shared = re.search("kv|key_value|group", key)
            if type(value) is int:
                numbers = groups if is_shared else heads
                setattr(config, key, numbers.get(value, value))
                if size is not None and numbers is heads:
                    config.head_dim = size
            elif isinstance(value, list) and len(value) == len(layers):
                left = [attention.groups if is_shared else attention.heads for attention in layers]
                setattr(config, key, left)


def _change_layers(config: Any, layers: list[AttentionModule]) -> None:
    """Set the heads of every layer apart, as ``per_layer_config`` of transformers.

    Few of its classes read that so far; others raise, or build other shapes.
    """
    numbers = [re.search(r"(?:^|\.)(\d+)\.", attention.name) for attention in layers]
    by_block = {int(number[1]): layer for number, layer in zip(numbers, layers) if number}
    for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        if len(by_block) < len(layers) or getattr(part, "num_hidden_layers", 0) <= max(by_block):
            continue
        told = part.to_dict().get("per_layer_config") or {}
        entries = {int(block): dict(values) for block, values in told.items()}
        for key, count in _COUNTS_OF_LAYERS.items():
            if part.attribute_map.get(key, key) not in vars(part):
                continue
            values = {block: count(layer) for block, layer in by_block.items()}
            # that of most layers: only those that differ from it stay in the entries, and a number
            # that all have may be read from the whole configuration
            setattr(part, key, Counter(values.values()).most_common(1)[0][0])
            for block, value in values.items():
                entries.setdefault(block, {})[key] = value
        part.per_layer_config = entries


def _same_function(built: nn.Module, model: nn.Module) -> bool:
    """Whether a model with the weights of another would compute the same."""
    if shapes_of(built) != shapes_of(model) or tied_names(built) != tied_names(model):
        return False
    pairs = list(zip(attention_modules(built), attention_modules(model), strict=True))
    if any(_scale(one) != _scale(other) for one, other in pairs):
        return False
    buffers, others = passing_buffers(built), passing_buffers(model)
    return buffers.keys() == others.keys() and all(
        buffers[name].shape == other.shape
        and torch.equal(buffers[name].to(other), other)  # such as slopes that differ by head
        for name, other in others.items()
    )


def _scale(attention: AttentionModule) -> tuple:
    floats = {
        name: value for name, value in vars(attention.module).items() if isinstance(value, float)
    }
    return attention.name, attention.heads, attention.groups, floats
