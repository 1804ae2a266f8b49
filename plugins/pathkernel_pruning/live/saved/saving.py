"""Save a model from which heads were removed to a folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pathkernel_core.paths.heads import head_label
from pathkernel_core.system.atomic import replacing_folder
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.text import printable
from pathkernel_models.arguments import check_model, described
from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.cross_attention import include_named
from pathkernel_models.errors import CaptureError
from pathkernel_models.families.recognition import attention_modules
from pathkernel_pruning.live.head_choice import HeadChoice
from pathkernel_pruning.live.saved.bounds import BoundsError
from pathkernel_pruning.live.saved.content import Content, passing_faults
from pathkernel_pruning.live.saved.description import (
    APART,
    CONFIGURATION,
    DESCRIPTION,
    FILES,
    GENERATION,
    PASSING,
    WEIGHTS,
    Description,
    checksum,
)
from pathkernel_pruning.live.saved.rebuilding import (
    Recipe,
    changed_configuration,
    configuration,
    generates,
    recipe_of,
    shapes_of,
)
from pathkernel_pruning.live.saved.reproduction import check_library, check_reproduction
from pathkernel_pruning.live.saved.structure import structure_of
from pathkernel_pruning.live.saved.wrappers import without_wrappers
from pathkernel_pruning.live.smaller import Removals, removals_of, removed_again


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
        :func:`pathkernel.load_model`; or the latter with a freshly built whole model.
        ``"from_pretrained"`` has been tried.
    changes : tuple of str
        What a model built from the configuration lacks, by names of modules. With ``loaded_by``
        ``"load_model with model="`` it computes, such as an activation that was exchanged: the
        model given to :func:`pathkernel.load_model` must have it. Otherwise it is attributes on
        which the outputs of a small batch do not depend, such as a name of a run. Of classes whose
        building is not known, the hooks of their modules.
    excess : str
        What the configuration asks for beyond what the weights bound, such as many layers without
        weights, for which the folder is not built by itself; else empty.
    """

    folder: Path
    taken_out: tuple[str, ...]
    zero: tuple[str, ...]
    loaded_by: str
    changes: tuple[str, ...] = ()
    excess: str = ""


def save_model(
    model: nn.Module, folder: str | os.PathLike, *, choice: HeadChoice | None = None
) -> SavedModel:
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
    say how many heads are left, in all layers alike or, as few can, in each, it does, and
    ``AutoModel.from_pretrained(folder)`` of transformers loads the model. This is said after it was
    tried. Otherwise ``config.json`` is that of the whole model, which the library refuses, or there
    is none, and the weights are ``weights.safetensors``; :func:`pathkernel.load_model` loads the
    model.

    Changes of a class itself, of globals that its code reads, and of objects that Python cannot
    copy are not seen.

    Parameters
    ----------
    model : torch.nn.Module
        A model that :func:`pathkernel.remove_heads` supports, on any device. Wrappers of
        ``torch.compile``, ``DataParallel`` and DDP, also of its parts, are left out, and that of
        accelerate's mixed precision.
    folder : path
    choice : HeadChoice, optional
        The choice of heads that were removed, to be told in ``pathkernel.json``: its heads and
        gains by their labels when they were chosen, and the rise of the loss.

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
    if choice is not None and not isinstance(choice, HeadChoice):
        raise TypeError(f"choice must be a HeadChoice, of choose_heads, but is {described(choice)}")
    check_model(model)
    folder = _free_folder(folder)
    with without_wrappers(model) as inner:
        return _save(inner, folder, None if choice is None else _describe(choice))


def _describe(choice: HeadChoice) -> dict[str, Any]:
    """Return what a file tells of a choice of heads."""
    labels = choice.gains["head"].values.tolist()
    rises = choice.rise._asdict().items()
    return {
        "heads": list(map(head_label, choice.heads)),
        "gains": dict(zip(labels, choice.gains.values.tolist())),
        "rise": {name: rise for name, rise in rises if not math.isnan(rise)},  # which JSON lacks
    }


def _save(model: nn.Module, folder: Path, choice: dict[str, Any] | None) -> SavedModel:
    layers = attention_modules(model)
    structure, content = structure_of(model), Content.of(model)
    description = Description(f"{type(model).__module__}.{type(model).__qualname__}", structure)
    description.tied = content.tied
    description.removals = {attention.name: removals_of(attention) for attention in layers}
    description.taken_out, description.zero = _removed_labels(layers)
    if choice is not None:
        _check_choice(choice, layers, {*description.taken_out, *description.zero})
    description.changes, description.choice = tuple(structure.hooks()), choice
    description.check_savable()
    recipe, whole, further, excess = recipe_of(model), None, (), ""
    if recipe is not None:
        try:
            whole, further = _rebuild(recipe, description, model, content)
        except BoundsError as error:
            excess = str(error)
        except Exception as error:  # whatever comes of options that no recipe tells
            description.changes = (" ".join(str(error).split()),)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folder(folder) as partial:
        _write(content.tensors, partial / WEIGHTS)
        if content.passing:
            _write(content.passing, partial / PASSING)
        if generates(model):
            text = model.generation_config.to_json_string()
            (partial / GENERATION).write_text(text, encoding="utf-8")
        if recipe is not None and whole is not None:
            description.library, description.name = recipe.library, recipe.name
            description.options = recipe.options
            description.loaded_by, description.changes = "load_model", further
            if recipe.library == "transformers":
                _add_configuration(model, partial, description, whole, content)
        if hasattr(model, "from_pretrained") and not (partial / CONFIGURATION).exists():
            (partial / WEIGHTS).rename(partial / APART)
        description.checksums = {path.name: checksum(path) for path in sorted(partial.iterdir())}
        text = json.dumps(description.to_json(), indent=2, allow_nan=False)
        (partial / DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")
    return SavedModel(
        folder,
        description.taken_out,
        description.zero,
        description.loaded_by,
        description.changes,
        excess,
    )


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a file of safetensors."""
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except KeyError as error:  # how it refuses a type
        names = [name for name, value in tensors.items() if value.dtype in error.args]
        raise CaptureError(
            f"{', '.join(names[:1])} has a type that safetensors does not store, {error}; convert "
            "it before the model is saved"
        ) from error


def _add_configuration(
    model: Any,
    folder: Path,
    description: Description,
    whole: list[tuple[int, int]],
    content: Content,
) -> None:
    """Write the configuration of transformers, and find out whether the library loads the folder.

    There is a ``config.json`` only if the library loads the same model by it, or refuses to.
    """
    shrunk = any(entry.left for entry in description.removals.values())
    text, path = configuration(model), folder / CONFIGURATION
    changed = changed_configuration(model, whole, content.bounds) if shrunk else None
    if changed is not None or not shrunk:
        path.write_text(text if changed is None else changed.to_json_string(), encoding="utf-8")
        try:
            check_library(model, folder, same_sizes=not shrunk)
        except PathkernelError:
            path.unlink()
        else:
            description.options = {} if changed is None else description.options
            description.loaded_by = "from_pretrained"
            return
    if shrunk:  # shapes that the library refuses by the configuration of the whole model
        path.write_text(text, encoding="utf-8")
        description.options = {}


def _free_folder(folder: str | os.PathLike) -> Path:
    """Return a path that may be written: of nothing, an empty folder, or a saved model."""
    check_local(folder)
    path = Path(folder)
    if os.path.lexists(path) and not path.is_dir():
        raise CaptureError(f"folder {str(path)!r} is a file; choose another name")
    names = {*os.listdir(path)} if path.exists() else set()
    if foreign := names if DESCRIPTION not in names else names - FILES:
        raise CaptureError(
            f"folder {str(path)!r} holds other files ({printable(min(foreign))!r:.60}); choose a "
            "new folder"
        )
    return path


def _rebuild(
    recipe: Recipe, description: Description, model: nn.Module, content: Content
) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """Build a model again from its recipe, and compare.

    Returns heads and groups of all layers of the whole model, and the attributes that the recipe
    does not tell and on which no output depends.

    Raises a ValueError that tells what the model has that its recipe does not.
    """
    bounds = content.bounds  # those of the file
    with recipe.guarded(bounds):
        built = recipe.build()
    include_named(built, description.removals)
    whole = [(attention.heads, attention.groups) for attention in attention_modules(built)]
    with removed_again(built, description.removals):
        shapes, others = shapes_of(model), shapes_of(built)
        for name in (*shapes, *others):
            if shapes.get(name) != others.get(name):
                raise ValueError(
                    f"{name} is {shapes.get(name, 'not there')}, but "
                    f"{others.get(name, 'not there')} by the configuration"
                )
        passing = {
            name: (tuple(value.shape), value.is_floating_point())
            for name, value in content.passing.items()
        }
        for name, fault in passing_faults(built, passing, bounds):
            raise ValueError(f"{name} {fault}")
        content.put_into(built)
        further = check_reproduction(built, model)
    return whole, further


def _check_choice(
    choice: dict[str, Any], layers: Sequence[AttentionModule], gone: set[str]
) -> None:
    """Raise a ValueError unless the heads of a choice are gone, by their numbers at that time."""
    # chosen on the whole model, or on one that had lost heads before
    entries = {attention.number: removals_of(attention) for attention in layers}
    whole = {number: Removals(entry.count).numbers for number, entry in entries.items()}
    before = {
        number: Removals(entry.count, entry.left[:-1]).numbers for number, entry in entries.items()
    }
    for numbers in (whole, before):
        labels = {
            head_label((number, position)): head_label((number, head))
            for number, of_layer in numbers.items()
            for position, head in enumerate(of_layer, start=1)
        }
        if [*labels] != [*choice["gains"]]:
            continue
        left = [label for label in choice["heads"] if labels[label] not in gone]
        if not left:
            return
        raise ValueError(
            f"choice names heads that the model still has: {', '.join(left[:6])}; remove them "
            "first, remove_heads(model, choice, batch=...), or leave choice out"
        )
    raise ValueError(
        f"choice is of {len(choice['gains'])} heads, those of another model; give the choice by "
        "which heads were removed, or leave it out"
    )


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
