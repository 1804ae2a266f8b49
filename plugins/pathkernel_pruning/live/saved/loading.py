"""Load a model from a folder that holds a saved one, whoever wrote it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.memory import check_memory
from pathkernel_core.system.text import printable
from pathkernel_models.arguments import check_model
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.saved.bounds import Bounds
from pathkernel_pruning.live.saved.confinement import confined
from pathkernel_pruning.live.saved.content import Content, passing_faults, stored_name
from pathkernel_pruning.live.saved.description import (
    CONFIGURATION,
    DESCRIPTION,
    GENERATION,
    PASSING,
    Description,
    Shapes,
    check_file,
    damage_error,
    read_description,
    read_json,
    read_shapes,
)
from pathkernel_pruning.live.saved.rebuilding import Recipe, generates, passing_buffers, shapes_of
from pathkernel_pruning.live.saved.structure import structure_of
from pathkernel_pruning.live.saved.wrappers import without_wrappers
from pathkernel_pruning.live.smaller import removed_again

_RESTORE = "restore the folder from a copy, or save the model again"
_GIVE = "give the model that was saved, built whole as before heads were taken out"
_MOST, _LONGEST = 20, 400  # differences of a warning, and characters of one


def load_model(folder: str | os.PathLike, model: nn.Module | None = None) -> nn.Module:
    """Load a model that :func:`pathkernel.save_model` saved.

    Models of transformers and timm are built from the folder alone, without a download. Heads are
    taken out of the structure, and all weights are loaded. No code in the folder is run, and no
    class is imported by its name there, but those of transformers and timm.

    Parameters
    ----------
    folder : path
    model : torch.nn.Module, optional
        The whole model, freshly built as before heads were taken out: needed for other models, for
        those of timm with further arguments, and where modules were changed. Its modules must be
        as those of the saved model: their classes, and the attributes that classes of torch,
        transformers and timm set, are compared. It is changed, and keeps its device and wrappers.

    Returns
    -------
    torch.nn.Module
        In evaluation mode; on the CPU unless ``model`` is given.

    Raises
    ------
    CaptureError, ValueError
        If the folder is missing, damaged or of another program, or ``model`` is another. A model
        that was given is then as it was.

    Warns
    -----
    UserWarning
        If ``model`` has other hooks, or other attributes of your own classes, which may be
        counters or change outputs. Those of ``model`` stay.
    """
    check_local(folder)
    if model is not None:
        check_model(model)
    folder = Path(folder)
    description = read_description(folder)
    shapes = read_shapes(folder / description.weights)
    passing = read_shapes(folder / PASSING) if PASSING in description.checksums else {}
    given, remedy = model, _GIVE
    if model is None:
        model, remedy = _build(folder, description, shapes), _RESTORE
    with without_wrappers(model) as inner, _taken_out(inner, description, folder):
        _check_shapes(inner, description, shapes, folder, remedy)
        names = _fitting(inner, description, shapes, passing, folder, remedy)
        if given is not None:
            _check_structure(inner, description, folder)
        generation = _generation(inner, description, folder)
        content = Content(_read(description, folder / description.weights, shapes))
        content.tied = description.tied
        if names:
            content.passing = _read(description, folder / PASSING, names)
        content.put_into(inner)
        if generation is not None:
            inner.generation_config = generation
    return model.eval()


def _build(folder: Path, description: Description, shapes: Shapes) -> nn.Module:
    """Build the whole model, closed to other files and bounded by the weights."""
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
    return model


def _recipe(folder: Path, description: Description) -> Recipe:
    """Description of the whole model, by its library."""
    if description.library is None:
        changes = [f". It needs what was changed: {text}" for text in description.changes[:1]]
        raise CaptureError(
            f"{str(folder)!r} holds a {printable(description.kind):.100}, which is not built from "
            "a file; build the whole model as before heads were taken out, and give it: "
            "load_model(folder, model=…)" + printable("".join(changes))[:400]
        )
    options = description.options
    # one that was edited is refused even where the description has the options
    expected = CONFIGURATION in description.checksums
    if description.library == "transformers" and (expected or not options):
        content = read_json(folder / CONFIGURATION, description.checksums)
        if content is None:
            raise damage_error(folder / CONFIGURATION, "it is missing")
        options = options or content
    return Recipe(description.library, description.name, options)


class _taken_out(ExitStack):
    """Take the heads of a description out of a model; undone if an error is raised inside."""

    def __init__(self, model: nn.Module, description: Description, folder: Path):
        super().__init__()
        self.model, self.description, self.folder = model, description, folder

    def __enter__(self) -> _taken_out:
        super().__enter__()
        try:
            self.enter_context(removed_again(self.model, self.description.removals))
        except Exception as error:  # whatever comes of shapes that do not fit
            if isinstance(error, CaptureError):
                raise
            raise damage_error(self.folder / DESCRIPTION, repr(error)) from error
        return self


def _check_shapes(
    model: nn.Module, description: Description, shapes: Shapes, folder: Path, remedy: str
) -> None:
    """Raise a CaptureError unless all weights of a model, and no others, are in the file."""
    expected = shapes_of(model)
    entries = model.state_dict()
    names = {name: stored_name(name, description.tied, shapes) for name in expected}
    faults = [f"{name} is missing" for name, stored in names.items() if stored not in shapes]
    used = {*names.values()}
    faults += [f"{name} is not of the model" for name in shapes if name not in used]
    for name, shape in expected.items():
        if (stored := shapes.get(names[name])) is None:
            continue
        if stored[0] != shape:
            faults.append(f"{name} is {stored[0]}, but of the model {shape}")
        elif entries[name].is_floating_point() != _is_floating_point(stored[1]):
            faults.append(f"{name} has type {stored[1]}, but of the model {entries[name].dtype}")
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise CaptureError(
            f"the weights in {str(folder)!r} are not those of this {type(model).__name__} "
            f"({printable(faults[0])[:200]}{more}); {remedy}"
        )


def _is_floating_point(stored: str) -> bool:
    """Whether a type of safetensors is one of real numbers."""
    return stored.startswith(("F", "BF"))


def _fitting(
    model: nn.Module,
    description: Description,
    weights: Shapes,
    passing: Shapes,
    folder: Path,
    remedy: str,
) -> list[str]:
    """Names of the stored tensors, in no state, that a model has; else raise a CaptureError.

    With libraries of another version the model may have no such tensors any more.
    """
    shapes = {name: (shape, _is_floating_point(kind)) for name, (shape, kind) in passing.items()}
    bounds = Bounds.of_shapes(shape for shape, _ in weights.values())
    faults = dict(passing_faults(model, shapes, bounds))
    if faults and not description.changed_libraries():
        name, fault = next(iter(faults.items()))
        raise CaptureError(
            f"{PASSING} in {str(folder)!r} does not fit this {type(model).__name__} "
            f"({printable(name):.100} {fault}); {remedy}"
        )
    return [name for name in passing if name not in faults]


def _check_structure(model: nn.Module, description: Description, folder: Path) -> None:
    """Raise a CaptureError if a model differs from the saved one in what its modules compute with.

    Warns of other hooks, and of other attributes that no class of a library knows: they may be
    counters and logs, or change outputs.
    """
    changed = description.changed_libraries()
    differences = [*description.structure.differences(structure_of(model), changed)]
    kind, place = type(model).__name__, repr(str(folder))
    if refused := [d.text for d in differences if d.cause == "computation"]:
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        versions = ", ".join(f"{name} {description.versions[name]}" for name in sorted(changed))
        raise CaptureError(
            f"this {kind} differs in its modules from the model in {place} "
            f"({printable(refused[0])[:400]}{more}); {_GIVE}, with what was changed on it"
            + (f"; it was saved with {printable(versions)[:100]}" if versions else "")
        )
    if differences:
        told = [printable(difference.text)[:_LONGEST] for difference in differences[:_MOST]]
        more = f"; and {len(differences) - _MOST} more" if len(differences) > _MOST else ""
        warnings.warn(
            f"this {kind} differs in attributes or hooks from the model in {place}, and keeps its "
            f"own: {'; '.join(told)}{more}. If outputs depend on them, give a model with those of "
            "the saved one",
            stacklevel=3,
        )


def _read(description: Description, path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Read tensors of a file, whose checksum must be that of the description."""
    from safetensors import safe_open

    check_file(path, description.checksums)
    with safe_open(path, "pt") as file:
        # copies: the file may be replaced while the model is used
        return {name: file.get_tensor(name).clone() for name in names}


def _generation(model: Any, description: Description, folder: Path) -> Any:
    """Read the settings by which a model of transformers generates text; None without any."""
    if not generates(model):
        return None
    path = folder / GENERATION
    if (content := read_json(path, description.checksums)) is None:
        return None
    try:
        with confined(folder):
            return type(model.generation_config).from_dict(content)
    except Exception as error:  # whatever comes of settings that do not fit
        raise damage_error(path, error) from error
