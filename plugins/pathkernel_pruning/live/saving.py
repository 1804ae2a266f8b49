"""Save a model from which heads were removed to a folder, and load it again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pathkernel_core.system.atomic import replacing_folder
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.local_files import check_local, is_damage, open_regular
from pathkernel_core.system.memory import check_memory
from pathkernel_core.system.text import printable
from pathkernel_models.errors import CaptureError
from pathkernel_models.families import AttentionModule, attention_modules
from pathkernel_pruning.live.content import Content, has_place, stored_name
from pathkernel_pruning.live.rebuilding import (
    Recipe,
    changed_configuration,
    configuration,
    passing_buffers,
    recipe_of,
    shapes_of,
)
from pathkernel_pruning.live.reproduction import check_library, check_reproduction
from pathkernel_pruning.live.smaller import Removals, removals_of, removed_again
from pathkernel_pruning.live.structure import LIBRARIES, Structure, structure_of
from pathkernel_pruning.live.wrappers import without_wrappers

FORMAT = "pathkernel model 1"

_DESCRIPTION, _WEIGHTS, _PASSING = "pathkernel.json", "model.safetensors", "buffers.safetensors"
_CONFIGURATION, _GENERATION = "config.json", "generation_config.json"
# name of the weights where from_pretrained would load them with its default configuration
_APART = "weights.safetensors"
_FILES = {_DESCRIPTION, _WEIGHTS, _APART, _PASSING, _CONFIGURATION, _GENERATION}
_LONGEST = 2**24  # bytes of a JSON file
_MOST_HEADS = 2**16  # of a layer
_RESTORE = "restore the folder from a copy, or save the model again"
_GIVE = "give the model that was saved, built whole as before heads were taken out"


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
        ``"from_pretrained"`` has been tried.
    changes : tuple of str
        What a model built from the configuration lacks, by names of modules, such as an activation
        that was exchanged: the model given to :func:`load_model` must have it. Of classes whose
        building is not known, the hooks of their modules.
    """

    folder: Path
    taken_out: tuple[str, ...]
    zero: tuple[str, ...]
    loaded_by: str
    changes: tuple[str, ...] = ()


@dataclass
class _Description:
    """Content of ``pathkernel.json``."""

    kind: str
    structure: Structure
    sha256: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    library: str | None = None
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    removals: dict[str, Removals] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)

    def to_json(self, saved: SavedModel) -> dict[str, Any]:
        layers = {
            name: {"heads": entry.count, "left": entry.left, "widths": entry.widths}
            for name, entry in self.removals.items()
        }
        modules = self.structure.modules
        kinds = [*{json.dumps(texts): texts for texts in modules.values()}.values()]
        return {
            "format": FORMAT,
            "class": self.kind,
            "library": self.library,
            "name": self.name,
            "options": self.options,
            "versions": _versions(),
            "loaded_by": saved.loaded_by,
            "changes": saved.changes,
            "taken_out": saved.taken_out,
            "zero": saved.zero,
            "layers": layers,
            "tied": self.tied,
            "kinds": kinds,  # of modules, many of which are alike
            "modules": {name: kinds.index(texts) for name, texts in modules.items()},
            "tensors": sorted(self.structure.tensors),
            "sha256": self.sha256,
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
            numbers = set(range(1, layer["heads"] + 1))
            for heads in left:
                if not (heads and sorted({*heads}) == heads and {*heads} <= numbers):
                    raise ValueError(f"heads {heads!r:.40} of layer {name!r:.40}")
                numbers = set(heads)
            if len(left) != len(widths) or not {*map(type, widths)} <= {bool}:
                raise ValueError(f"removals of layer {name!r:.40}")
            removals[name] = Removals(layer["heads"], tuple(map(tuple, left)), tuple(widths))
        kinds, tensors = content["kinds"], content["tensors"]
        modules = {name: kinds[index] for name, index in content["modules"].items()}
        texts = [content["class"], content["name"], *content["changes"], *tensors]
        for mapping in ("sha256", "versions", "tied"):
            texts += content[mapping].values()
        for module in modules.values():
            texts += [module["class"], *module.values()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("texts")
        return cls(
            kind=content["class"],
            structure=Structure(modules, {*tensors}),
            sha256=dict(content["sha256"]),
            versions=dict(content["versions"]),
            changes=tuple(content["changes"]),
            library=library,
            name=content["name"],
            options=dict(content["options"]),
            removals=removals,
            tied=dict(content["tied"]),
        )

    @property
    def weights(self) -> str:
        """Name of the file of the weights."""
        return _WEIGHTS if _WEIGHTS in self.sha256 else _APART

    def changed_libraries(self) -> set[str]:
        """Libraries that had other versions when the model was saved; ``"python"`` among them."""
        now = _versions()
        return {name for name, text in self.versions.items() if text != now.get(name)} - {
            "pathkernel"
        }


def _versions() -> dict[str, str]:
    """Versions of Python and of the distributions that are installed."""
    versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in ("pathkernel", *LIBRARIES):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def save_model(model: nn.Module, folder: str | os.PathLike) -> SavedModel:
    """Save a model, with heads taken out, at zero or all there, to a folder.

    The folder holds ``model.safetensors``; ``buffers.safetensors``, with buffers and other tensors
    that the model's state does not have; and ``pathkernel.json``, which names the heads that are
    gone, and the classes, attributes and hooks of all modules. For models of transformers there is
    ``config.json``. It is written whole or not at all, and replaces an older one that holds nothing
    else.

    A model of transformers or timm is built again from its configuration, and compared: modules,
    their attributes and hooks, buffers, ties, and outputs on a small batch where one can be made.
    What was changed by hand, and the configuration does not tell, is named in ``changes``, and such
    a model loads into a whole one that has the same changes. If the configuration of its family can
    say how many heads are left, equally many in every layer, it does, and
    ``AutoModel.from_pretrained(folder)`` of transformers loads the model. This is said after it was
    tried. Otherwise ``config.json`` is that of the whole model, which the library refuses, or there
    is none, and the weights are ``weights.safetensors``; :func:`load_model` loads the model.

    Changes of a class itself, of globals that its code reads, and of objects that Python cannot
    copy are not seen.

    Parameters
    ----------
    model : torch.nn.Module
        A model that :func:`pathkernel.remove_heads` supports, on any device. Wrappers of
        ``torch.compile``, ``DataParallel`` and DDP, also of its parts, are left out.
    folder : path

    Returns
    -------
    SavedModel
        Its ``loaded_by`` says what loads the folder.

    Raises
    ------
    CaptureError, ValueError
        If the folder holds other files; or if the state of the model is not made of plain tensors,
        as with quantised or offloaded weights, or lacks parameters.
    """
    folder = _free_folder(folder)
    with without_wrappers(model) as inner:
        return _save(inner, folder)


def _save(model: nn.Module, folder: Path) -> SavedModel:
    layers = attention_modules(model)
    content, structure = Content.of(model), structure_of(model)
    description = _Description(f"{type(model).__module__}.{type(model).__qualname__}", structure)
    description.tied = content.tied
    description.removals = {attention.name: removals_of(attention) for attention in layers}
    loaded_by, changes = "load_model with model=", structure.hooks()
    recipe = recipe_of(model)
    if recipe is not None:
        try:
            whole = _rebuild(recipe, description, model, content)
        except Exception as error:  # whatever comes of options that no recipe tells
            changes = [" ".join(str(error).split())]
        else:
            loaded_by, changes = "load_model", []
            description.library, description.name = recipe.library, recipe.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folder(folder) as partial:
        description.sha256[_WEIGHTS] = _write(content.tensors, partial / _WEIGHTS)
        if content.passing:
            description.sha256[_PASSING] = _write(content.passing, partial / _PASSING)
        if _generates(model):
            text = model.generation_config.to_json_string()
            (partial / _GENERATION).write_text(text, encoding="utf-8")
        if recipe is not None and loaded_by == "load_model":
            description.options = recipe.options
            if recipe.library == "transformers":
                loaded_by = _add_configuration(model, partial, description, whole)
        if hasattr(model, "from_pretrained") and not (partial / _CONFIGURATION).exists():
            (partial / _WEIGHTS).rename(partial / _APART)
            description.sha256[_APART] = description.sha256.pop(_WEIGHTS)
        saved = SavedModel(folder, *_removed_labels(layers), loaded_by, tuple(changes))
        text = json.dumps(description.to_json(saved), indent=2, allow_nan=False)
        (partial / _DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")
    return saved


def _write(tensors: dict[str, Tensor], path: Path) -> str:
    """Write tensors to a file of safetensors, and return its checksum."""
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except KeyError as error:  # how it refuses a type
        names = [name for name, value in tensors.items() if value.dtype in error.args]
        raise CaptureError(
            f"{', '.join(names[:1])} has a type that safetensors does not store, {error}; convert "
            "it before the model is saved"
        ) from error
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _add_configuration(
    model: Any, folder: Path, description: _Description, whole: list[tuple[int, int]]
) -> str:
    """Write the configurations of transformers, and return what loads the folder with them.

    There is a ``config.json`` only if the library loads the same model by it, or refuses to.
    """
    shrunk = any(entry.left for entry in description.removals.values())
    text, path = configuration(model), folder / _CONFIGURATION
    changed = changed_configuration(model, whole) if shrunk else None
    if changed is not None or not shrunk:
        path.write_text(text if changed is None else changed.to_json_string(), encoding="utf-8")
        try:
            check_library(model, folder, same_sizes=not shrunk)
        except PathkernelError:
            path.unlink()
        else:
            description.options = {} if changed is None else description.options
            return "from_pretrained"
    if shrunk:  # shapes that the library refuses by the configuration of the whole model
        path.write_text(text, encoding="utf-8")
        description.options = {}
    return "load_model"


def load_model(folder: str | os.PathLike, model: nn.Module | None = None) -> nn.Module:
    """Load a model that :func:`save_model` saved.

    Models of transformers and timm are built from the folder alone, without a download. Heads are
    taken out of the structure, and all weights are loaded. No code in the folder is run, and no
    class is imported by its name there, but those of transformers and timm.

    Parameters
    ----------
    folder : path
    model : torch.nn.Module, optional
        The whole model, freshly built as before heads were taken out: needed for other models, for
        those of timm with further arguments, and where modules were changed. Its modules must
        compute as those of the saved model: classes, attributes and hooks are compared. It is
        changed, and keeps its device and wrappers.

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
    shapes = _shapes(folder / description.weights)
    passing = _shapes(folder / _PASSING) if _PASSING in description.sha256 else {}
    given, remedy = model, _GIVE
    if model is None:
        recipe = _recipe(folder, description)
        recipe.check_sizes(len(shapes))
        model = recipe.build_sketch()
        if any(value.is_meta for value in (*model.parameters(), *model.buffers())):
            # first without memory: a damaged file may ask for any
            with _taken_out(model, description, folder):
                _check_shapes(model, description, shapes, folder, _RESTORE)
            computed = sum(value.numel() * 8 for value in passing_buffers(model).values())
            check_memory(f"{str(folder)!r}", computed, "its configuration is damaged")
            model = recipe.build()
        remedy = _RESTORE
    with without_wrappers(model) as inner:
        with _taken_out(inner, description, folder):
            _check_shapes(inner, description, shapes, folder, remedy)
            if not description.changed_libraries():  # else it may have no such buffers any more
                _check_places(inner, passing, folder, remedy)
            if given is not None:
                _check_structure(inner, description, folder)
            _read(description, folder).put_into(inner)
        _add_generation(inner, folder)
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


def _rebuild(
    recipe: Recipe, description: _Description, model: nn.Module, content: Content
) -> list[tuple[int, int]]:
    """Build a model again from its recipe; heads and groups of all layers of the whole one.

    Raises a ValueError that tells what the model has that its recipe does not.
    """
    built = recipe.build()
    whole = [(attention.heads, attention.groups) for attention in attention_modules(built)]
    with removed_again(built, description.removals):
        shapes, others = shapes_of(model), shapes_of(built)
        for name in (*shapes, *others):
            if shapes.get(name) != others.get(name):
                raise ValueError(
                    f"{name} is {shapes.get(name, 'not there')}, but "
                    f"{others.get(name, 'not there')} by the configuration"
                )
        content.put_into(built)
        check_reproduction(built, model)
    return whole


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


def _json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object from a file; None if there is none."""
    if (stream := open_regular(path)) is None:
        return None
    with stream:
        text = stream.read(_LONGEST + 1)
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it is longer than {_LONGEST} bytes")
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, error) from error
    return content


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
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damage_error(folder / _DESCRIPTION, repr(error)) from error


def _recipe(folder: Path, description: _Description) -> Recipe:
    """Description of the whole model, by its library."""
    if description.library is None:
        changes = [f". It needs what was changed: {text}" for text in description.changes[:1]]
        raise CaptureError(
            f"{str(folder)!r} holds a {printable(description.kind):.100}, which is not built from "
            "a file; build the whole model as before heads were taken out, and give it: "
            "load_model(folder, model=…)" + printable("".join(changes))[:400]
        )
    options = description.options
    if description.library == "transformers" and not options:
        content = _json(folder / _CONFIGURATION)
        if content is None:
            raise _damage_error(folder / _CONFIGURATION, "it is missing")
        options = content
    return Recipe(description.library, description.name, options)


def _shapes(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every array of a file, without reading them."""
    from safetensors import SafetensorError, safe_open

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
    names = {name: stored_name(name, description.tied, shapes) for name in expected}
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


def _check_places(model: nn.Module, names: Iterable[str], folder: Path, remedy: str) -> None:
    """Raise a CaptureError unless a model has a place for all tensors that its state lacks."""
    if missing := [name for name in names if not has_place(model, name)]:
        raise CaptureError(
            f"{printable(missing[0]):.100} in {str(folder)!r} is no tensor of this "
            f"{type(model).__name__}; {remedy}"
        )


def _check_structure(model: nn.Module, description: _Description, folder: Path) -> None:
    """Raise a CaptureError unless a model computes as the saved one did, with its weights."""
    changed = description.changed_libraries()
    differences = [*description.structure.differences(structure_of(model), changed)]
    if not differences:
        return
    more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
    versions = ", ".join(f"{name} {description.versions[name]}" for name in sorted(changed))
    raise CaptureError(
        f"this {type(model).__name__} does not compute as the model in {str(folder)!r} "
        f"({printable(differences[0])[:400]}{more}); {_GIVE}, with what was changed on it"
        + (f"; it was saved with {printable(versions)[:100]}" if versions else "")
    )


def _read(description: _Description, folder: Path) -> Content:
    """Read the tensors of a folder, whose checksums must be those of the description."""
    tensors = _read_tensors(description, folder / description.weights)
    passing = {}
    if _PASSING in description.sha256:
        passing = _read_tensors(description, folder / _PASSING)
    return Content(tensors, description.tied, passing)


def _read_tensors(description: _Description, path: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    with open(path, "rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != description.sha256.get(path.name):
            raise _damage_error(path, f"it is not the file that {_DESCRIPTION} was saved with")
    with safe_open(path, "pt") as file:
        # copies: the file may be replaced while the model is used
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _generates(model: Any) -> bool:
    """Whether a model is one of transformers that generates text."""
    transformers: Any = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return False
    return model.can_generate() and getattr(model, "generation_config", None) is not None


def _add_generation(model: Any, folder: Path) -> None:
    """Load the settings by which a model of transformers generates text."""
    if _generates(model) and (content := _json(folder / _GENERATION)) is not None:
        model.generation_config = type(model.generation_config).from_dict(content)
