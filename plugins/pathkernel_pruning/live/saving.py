"""Save a model from which heads were removed to a folder, and load it again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_core.system.atomic import replacing_folder
from pathkernel_core.system.local_files import check_local, is_damage, open_regular
from pathkernel_core.system.memory import check_memory
from pathkernel_core.system.text import printable
from pathkernel_models.errors import CaptureError
from pathkernel_models.families import AttentionModule, attention_modules
from pathkernel_pruning.live.bounds import Bounds
from pathkernel_pruning.live.confinement import confined
from pathkernel_pruning.live.rebuilding import (
    Recipe,
    are_alike,
    changed_configuration,
    configuration,
    passing_buffers,
    recipe_of,
    shapes_of,
    tied_names,
)
from pathkernel_pruning.live.smaller import Removals, removals_of, removed_again

FORMAT = "pathkernel model 1"

_DESCRIPTION, _WEIGHTS = "pathkernel.json", "model.safetensors"
_CONFIGURATION, _GENERATION = "config.json", "generation_config.json"
_FILES = {_DESCRIPTION, _WEIGHTS, _CONFIGURATION, _GENERATION}
_LONGEST = 2**24  # bytes of a JSON file
_MOST_HEADS = 2**16  # of a layer
_MOST_REMOVALS = 128  # of heads of a layer, one after the other
_RESTORE = "restore the folder from a copy, or save the model again"
_GIVE = "give the model that was saved, built whole as before heads were taken out"
_FLOATS = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.float16)}
_FLOATS[str(torch.bfloat16)] = torch.bfloat16


@dataclass(frozen=True)
class SavedModel:
    """Result of :func:`save_model`.

    Attributes
    ----------
    folder : Path
    taken_out : tuple of str
        Labels of the heads that were taken out, such as ``"2-1"``, in the numbering of the model
        before the first removal.
    zero : tuple of str
        Labels of the heads whose weights are zero.
    loaded_by : {"from_pretrained", "load_model", "load_model with model="}
        The first that can load the folder: the model's library itself;
        :func:`load_model`; or :func:`load_model` with a freshly built whole model.
    """

    folder: Path
    taken_out: tuple[str, ...]
    zero: tuple[str, ...]
    loaded_by: str


@dataclass
class _Description:
    """Content of ``pathkernel.json``."""

    kind: str
    library: str | None = None
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    removals: dict[str, Removals] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)

    def to_json(self, saved: SavedModel) -> dict[str, Any]:
        libraries = ["pathkernel", "torch", *([self.library] if self.library else [])]
        layers = {
            name: {"heads": entry.count, "left": entry.left, "widths": entry.widths}
            for name, entry in self.removals.items()
        }
        return {
            "format": FORMAT,
            "class": self.kind,
            "library": self.library,
            "name": self.name,
            "options": self.options,
            "versions": {name: version(name) for name in libraries},
            "loaded_by": saved.loaded_by,
            "taken_out": saved.taken_out,
            "zero": saved.zero,
            "layers": layers,
            "tied": self.tied,
            "buffers": self.buffers,
            "sha256": self.checksums,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> _Description:
        """Check a description; raises a KeyError, TypeError or ValueError."""
        library, removals = content["library"], {}
        if library not in (None, "transformers", "timm"):
            raise ValueError(f"library {library!r:.40}")
        for name, layer in content["layers"].items():
            left, widths = layer["left"], layer["widths"]
            if not (isinstance(layer["heads"], int) and 0 < layer["heads"] <= _MOST_HEADS):
                raise ValueError(f"heads {layer['heads']!r:.40} of layer {name!r:.40}")
            if len(left) > _MOST_REMOVALS:
                raise ValueError(f"{len(left)} removals of layer {name!r:.40}")
            for number, heads in enumerate(left):
                ordered = {*map(type, heads)} == {int} and sorted({*heads}) == heads
                fewer = number == 0 or {*heads} < {*left[number - 1]}
                if not (ordered and heads[0] > 0 and heads[-1] <= layer["heads"] and fewer):
                    raise ValueError(f"heads {heads!r:.40} of layer {name!r:.40}")
            if len(left) != len(widths) or not {*map(type, widths)} <= {bool}:
                raise ValueError(f"removals of layer {name!r:.40}")
            removals[name] = Removals(layer["heads"], tuple(map(tuple, left)), tuple(widths))
        if not {*content["buffers"].values()} <= {*_FLOATS}:
            raise ValueError("types of buffers")
        texts = [content["class"], content["name"], *content["sha256"].values()]
        if not all(isinstance(text, str) for text in (*texts, *content["tied"].values())):
            raise TypeError("texts")
        return cls(
            kind=content["class"],
            library=library,
            name=content["name"],
            options=dict(content["options"]),
            removals=removals,
            tied=dict(content["tied"]),
            buffers=dict(content["buffers"]),
            checksums=dict(content["sha256"]),
        )


def save_model(model: nn.Module, folder: str | os.PathLike) -> SavedModel:
    """Save a model, with heads taken out, at zero or all there, to a folder.

    The folder holds ``model.safetensors``, ``pathkernel.json``, which names the heads that are
    gone and the class, and for models of transformers ``config.json``. It is written whole or not
    at all, and replaces an older one that holds nothing else.

    If the configuration of its family can say how many heads are left, equally many in every
    layer, it does, and ``AutoModel.from_pretrained(folder)`` of transformers loads the model. This
    is said after a comparison with a model that is built so. Otherwise ``config.json`` is that of
    the whole model, which the library refuses, and :func:`load_model` loads the model.

    Parameters
    ----------
    model : torch.nn.Module
        A model that :func:`pathkernel.remove_heads` supports, on any device.
    folder : path

    Returns
    -------
    SavedModel
        Its ``loaded_by`` says what loads the folder.

    Raises
    ------
    CaptureError, ValueError
        If the folder holds other files; or if the state of the model is not made of plain tensors,
        as with quantised or offloaded weights.
    """
    folder = _free_folder(folder)
    layers = attention_modules(model)
    tensors, tied = _state(model)
    removals = {attention.name: removals_of(attention) for attention in layers}
    removals = {name: entry for name, entry in removals.items() if entry.left}
    for name, entry in removals.items():
        if len(entry.left) > _MOST_REMOVALS:
            raise CaptureError(
                f"heads of {name} were taken out {len(entry.left)} times, and only "
                f"{_MOST_REMOVALS} times are saved; take more heads out at once"
            )
    description = _Description(f"{type(model).__module__}.{type(model).__qualname__}")
    description.removals, description.tied = removals, tied
    changed, loaded_by = None, "load_model with model="
    recipe = recipe_of(model)
    if recipe is not None and (whole := _whole_layers(recipe, description, model)) is not None:
        description.library, description.name = recipe.library, recipe.name
        description.buffers = _buffer_types(model)
        loaded_by = "load_model"
        if recipe.library == "timm":
            description.options = recipe.options
        elif not removals:
            loaded_by = "from_pretrained"
        elif (changed := changed_configuration(model, whole)) is not None:
            loaded_by = "from_pretrained"
            description.options = recipe.options
    saved = SavedModel(folder, *_removed_labels(layers), loaded_by)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folder(folder) as partial:
        from safetensors.torch import save_file

        save_file(tensors, partial / _WEIGHTS, metadata={"format": "pt"})
        if description.library == "transformers":
            text = configuration(model) if changed is None else changed.to_json_string()
            (partial / _CONFIGURATION).write_text(text, encoding="utf-8")
            if getattr(model, "generation_config", None) is not None and model.can_generate():
                text = model.generation_config.to_json_string()
                (partial / _GENERATION).write_text(text, encoding="utf-8")
        description.checksums = {path.name: _checksum(path) for path in sorted(partial.iterdir())}
        text = json.dumps(description.to_json(saved), indent=2, allow_nan=False)
        (partial / _DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")
    return saved


def load_model(folder: str | os.PathLike, model: nn.Module | None = None) -> nn.Module:
    """Load a model that :func:`save_model` saved.

    Models of transformers and timm are built from the folder alone, without a download. Heads are
    taken out of the structure, and all weights are loaded. No code in the folder is run, and no
    class is imported by its name there, but those of transformers and timm.

    Parameters
    ----------
    folder : path
    model : torch.nn.Module, optional
        The whole model, freshly built as before heads were taken out: needed for other models, and
        for those of timm with further arguments. It is changed, and keeps its device.

    Returns
    -------
    torch.nn.Module
        In evaluation mode; on the CPU unless ``model`` is given.

    Raises
    ------
    CaptureError, ValueError
        If the folder is missing, damaged or of another program, or ``model`` is another. A model
        that was given is then as it was.
    """
    check_local(folder)
    folder = Path(folder)
    description = _description(folder)
    shapes = _shapes(folder)
    if model is None:
        recipe = _recipe(folder, description)
        bounds = Bounds.of_shapes((shape for shape, _ in shapes.values()), len(description.tied))
        with recipe.guarded(bounds, folder):
            model = recipe.build_sketch()
        if any(value.is_meta for value in (*model.parameters(), *model.buffers())):
            # first without memory: only what fits the weights is built
            with _taken_out(model, description, folder):
                _check_shapes(model, description, shapes, folder, _RESTORE)
            computed = sum(value.numel() * 8 for value in passing_buffers(model).values())
            check_memory(f"{str(folder)!r}", computed, "its configuration is damaged")
            with recipe.guarded(bounds, folder):
                model = recipe.build()
        remedy = _RESTORE
    else:
        remedy = _GIVE
    with _taken_out(model, description, folder):
        _check_shapes(model, description, shapes, folder, remedy)
        _load(model, description, folder)
    _add_generation(model, description, folder)
    return model.eval()


def _free_folder(folder: str | os.PathLike) -> Path:
    """Return a path that may be written: of nothing, an empty folder, or a saved model."""
    check_local(folder)
    path = Path(folder)
    if os.path.lexists(path) and not path.is_dir():
        raise CaptureError(f"folder {str(path)!r} is a file; choose another name")
    names = {*os.listdir(path)} if path.exists() else set()
    if foreign := names if _DESCRIPTION not in names else names - _FILES:
        raise CaptureError(
            f"folder {str(path)!r} holds other files ({printable(min(foreign))!r:.60}); choose a "
            "new folder"
        )
    return path


def _state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a model by name, each once, and the names of those tied to others."""
    tied, tensors, pointers = tied_names(model), {}, set()
    for name, value in model.state_dict(keep_vars=True).items():
        plain = type(value) in (Tensor, nn.Parameter)
        if not plain or value.is_meta or value.is_quantized or value.layout != torch.strided:
            raise CaptureError(
                f"{name} of {type(model).__name__} is no plain tensor in memory, as where weights "
                "are quantised or offloaded; load the model whole, and save it then"
            )
        if name in tied:
            continue
        tensor = value.detach().cpu().contiguous()
        # a safetensors file does not hold the same memory twice
        tensors[name] = tensor.clone() if tensor.data_ptr() in pointers else tensor
        pointers.add(tensor.data_ptr())
    return tensors, tied


def _whole_layers(
    recipe: Recipe, description: _Description, model: nn.Module
) -> list[tuple[int, int]] | None:
    """Heads and groups of all layers of the whole model; None if it is not built from a recipe."""
    try:
        shapes, tied = shapes_of(model), description.tied  # as the loaded file will have them
        bounds = Bounds.of_shapes((shapes[name] for name in shapes if name not in tied), len(tied))
        with recipe.guarded(bounds):
            built = recipe.build_sketch()
        whole = [(attention.heads, attention.groups) for attention in attention_modules(built)]
        with removed_again(built, description.removals):
            return whole if are_alike(built, model, recipe.library) else None
    except Exception:  # whatever comes of options that no recipe tells
        return None


def _buffer_types(model: nn.Module) -> dict[str, str]:
    """Types of the buffers that are not saved, which a model of another precision casts."""
    buffers = passing_buffers(model)
    return {
        name: str(value.dtype) for name, value in buffers.items() if str(value.dtype) in _FLOATS
    }


def _removed_labels(layers: list[AttentionModule]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels of the heads that were taken out, and of those at zero, as originally numbered."""
    taken_out: list[str] = []
    zero: list[str] = []
    for attention in layers:
        entry = removals_of(attention)
        left = {*entry.numbers}
        taken_out += [
            f"{attention.number}-{head}" for head in range(1, entry.count + 1) if head not in left
        ]
        weight = attention.output_inputs_last.detach().unflatten(-1, (attention.heads, -1))
        used = weight.movedim(-2, 0).flatten(1).any(dim=1).tolist()
        zero += [f"{attention.number}-{head}" for head, on in zip(entry.numbers, used) if not on]
    return tuple(taken_out), tuple(zero)


def _checksum(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _json(path: Path, checksums: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Read a JSON object from a file, which has a checksum if these are given; None if absent."""
    if (stream := open_regular(path)) is None:
        return None
    with stream:
        text = stream.read(_LONGEST + 1)
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it is longer than {_LONGEST} bytes")
        if checksums is not None:
            _check_sum(hashlib.sha256(text).hexdigest(), checksums.get(path.name))
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, error) from error
    return content


def _check_sum(actual: str, expected: str | None) -> None:
    if actual != expected:
        raise ValueError(f"it is not the file that {_DESCRIPTION} was saved with")


def _damage_error(path: Path, reason: object) -> CaptureError:
    text = printable(" ".join(str(reason).split()))[:200]
    return CaptureError(
        f"{str(path)!r} is damaged or of another program ({text}); restore it from a copy, or save "
        "the model again"
    )


def _description(folder: Path) -> _Description:
    content = _json(folder / _DESCRIPTION)
    if content is None:
        raise CaptureError(
            f"there is no saved model in {str(folder)!r}: {_DESCRIPTION} is missing; save one by "
            "pathkernel.save_model"
        )
    if content.get("format") != FORMAT:
        raise CaptureError(
            f"{str(folder / _DESCRIPTION)!r} must have the format {FORMAT!r}, not "
            f"{content.get('format')!r:.60}; save the model again by this version of pathkernel"
        )
    try:
        return _Description.from_json(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damage_error(folder / _DESCRIPTION, repr(error)) from error


def _recipe(folder: Path, description: _Description) -> Recipe:
    """Description of the whole model, by its library."""
    if description.library is None:
        raise CaptureError(
            f"{str(folder)!r} holds a {printable(description.kind):.100}, which is not built from "
            "a file; build the whole model as before heads were taken out, and give it: "
            "load_model(folder, model=…)"
        )
    options = description.options
    if description.library == "transformers":
        content = _json(folder / _CONFIGURATION, description.checksums)
        if content is None:
            raise _damage_error(folder / _CONFIGURATION, "it is missing")
        options = options or content
    return Recipe(description.library, description.name, options)


def _shapes(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every array of the weights, without reading them."""
    from safetensors import SafetensorError, safe_open

    path = folder / _WEIGHTS
    if (stream := open_regular(path)) is None:
        raise _damage_error(path, "it is missing, or no plain file")
    stream.close()
    try:
        with safe_open(path, "pt") as file:
            arrays = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: (tuple(array.get_shape()), array.get_dtype())
                for name, array in arrays.items()
            }
    except (SafetensorError, OSError) as error:
        if not is_damage(error):
            raise
        raise _damage_error(path, error) from error


class _taken_out(ExitStack):
    """Take the heads of a description out of a model; undone if an error is raised inside."""

    def __init__(self, model: nn.Module, description: _Description, folder: Path):
        super().__init__()
        self.model, self.description, self.folder = model, description, folder

    def __enter__(self) -> _taken_out:
        super().__enter__()
        try:
            self.enter_context(removed_again(self.model, self.description.removals))
        except Exception as error:  # whatever comes of shapes that do not fit
            if isinstance(error, CaptureError):
                raise
            raise _damage_error(self.folder / _DESCRIPTION, repr(error)) from error
        return self


def _check_shapes(
    model: nn.Module,
    description: _Description,
    shapes: Mapping[str, tuple[tuple[int, ...], str]],
    folder: Path,
    remedy: str,
) -> None:
    """Raise a CaptureError unless all weights of a model, and no others, are in the file."""
    expected = shapes_of(model)
    entries = model.state_dict()
    names = {name: _stored_name(name, description, shapes) for name in expected}
    faults = [f"{name} is missing" for name, stored in names.items() if stored not in shapes]
    faults += [f"{name} is not of the model" for name in shapes if name not in {*names.values()}]
    for name, shape in expected.items():
        if (stored := shapes.get(names[name])) is None:
            continue
        if stored[0] != shape:
            faults.append(f"{name} is {stored[0]}, but of the model {shape}")
        elif entries[name].is_floating_point() != stored[1].startswith(("F", "BF")):
            faults.append(f"{name} has type {stored[1]}, but of the model {entries[name].dtype}")
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise CaptureError(
            f"the weights in {str(folder)!r} are not those of this {type(model).__name__} "
            f"({printable(faults[0])[:200]}{more}); {remedy}"
        )


def _stored_name(name: str, description: _Description, names: Mapping[str, Any]) -> str:
    return name if name in names else description.tied.get(name, name)


def _load(model: nn.Module, description: _Description, folder: Path) -> None:
    """Load the weights of a folder into a model, tied and untied as there."""
    from safetensors import safe_open

    path = folder / _WEIGHTS
    try:
        _check_sum(_checksum(path), description.checksums.get(_WEIGHTS))
    except ValueError as error:
        raise _damage_error(path, error) from error
    with safe_open(path, "pt") as file:
        # copies: the file may be replaced while the model is used
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    by_name: dict[str, Tensor] = {}
    used: set[int] = set()
    for name, entry in model.state_dict(keep_vars=True).items():
        stored = _stored_name(name, description, tensors)
        if stored in by_name:
            if entry is not by_name[stored]:
                _assign(model, name, by_name[stored])
        elif id(entry) in used or entry.is_meta:  # tied in this model, but not in the saved one
            value = tensors[stored]
            if isinstance(entry, nn.Parameter):
                value = nn.Parameter(value, requires_grad=entry.requires_grad)
            _assign(model, name, value)
            by_name[stored] = value
        else:
            entry.data = tensors[stored].to(entry.device)
            used.add(id(entry))
            by_name[stored] = entry
    buffers = passing_buffers(model)
    for name, dtype in description.buffers.items():
        if name in buffers:
            buffers[name].data = buffers[name].to(_FLOATS[dtype])


def _assign(model: nn.Module, name: str, value: Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, value)


def _add_generation(model: nn.Module, description: _Description, folder: Path) -> None:
    """Load the settings by which a model of transformers generates text."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return
    path = folder / _GENERATION
    if model.can_generate() and (content := _json(path, description.checksums)) is not None:
        try:
            with confined(folder):
                model.generation_config = transformers.GenerationConfig.from_dict(content)
        except Exception as error:  # whatever comes of settings that do not fit
            raise _damage_error(path, error) from error
