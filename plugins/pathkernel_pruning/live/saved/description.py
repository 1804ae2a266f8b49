"""Files of a saved model, and the one that describes it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pathkernel_core.system.local_files import is_damage, open_regular
from pathkernel_core.system.text import printable
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.saved.structure import Structure
from pathkernel_pruning.live.saved.value_texts import LIBRARIES
from pathkernel_pruning.live.smaller import KINDS, Removals

FORMAT = "pathkernel model 1"

DESCRIPTION, WEIGHTS, PASSING = "pathkernel.json", "model.safetensors", "buffers.safetensors"
CONFIGURATION, GENERATION = "config.json", "generation_config.json"
# name of the weights where from_pretrained would load them with its default configuration
APART = "weights.safetensors"
FILES = {DESCRIPTION, WEIGHTS, APART, PASSING, CONFIGURATION, GENERATION}
_LONGEST = 2**24  # bytes of a JSON file
_MOST_HEADS = 2**16  # of a layer
_MOST_REMOVALS = 128  # of heads of a layer, one after the other
_MOST_TEXTS = 2**20  # of all modules; few kinds of modules may be described, but each many times

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""Shape and type of every array of a file."""


@dataclass
class Description:
    """Content of ``pathkernel.json``.

    Attributes
    ----------
    kind : str
        Name of the model's class.
    structure : Structure
    checksums : dict of str to str
        SHA-256 of the other files.
    versions : dict of str to str
        Of Python and of libraries, when the model was saved.
    library : {"transformers", "timm"} or None
        With ``name`` and ``options`` the recipe of the whole model, if it is built from one.
    name : str
    options : dict
        Those of ``config.json`` if empty.
    removals : dict of str to Removals
        Of all layers, by their names.
    tied : dict of str to str
        Further names of weights.
    loaded_by : str
    changes, taken_out, zero : tuple of str
        As of :class:`pathkernel_pruning.live.saved.saving.SavedModel`.
    choice : dict or None
        Labels of the ``heads`` of a choice, ``gains`` of all by label, and the ``rise`` of the
        loss; nothing depends on it.
    """

    kind: str
    structure: Structure
    checksums: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    library: str | None = None
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    removals: dict[str, Removals] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    loaded_by: str = "load_model with model="
    changes: tuple[str, ...] = ()
    taken_out: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    choice: dict[str, Any] | None = None

    def check_savable(self) -> None:
        """Raise a CaptureError if :meth:`from_json` would refuse the description."""
        for name, entry in self.removals.items():
            if len(entry.left) > _MOST_REMOVALS:
                raise CaptureError(
                    f"heads of {name} were taken out {len(entry.left)} times, and only "
                    f"{_MOST_REMOVALS} times are saved; take more heads out at once"
                )
        if (count := _number_of_texts(self.structure.modules.values())) > _MOST_TEXTS:
            raise CaptureError(
                f"modules of {self.kind} have {count} attributes, and only {_MOST_TEXTS} are "
                "saved; keep tables of numbers in buffers"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        layers = {
            name: {"heads": entry.count, "left": entry.left, "kinds": entry.kinds}
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
            "loaded_by": self.loaded_by,
            "changes": self.changes,
            "taken_out": self.taken_out,
            "zero": self.zero,
            "choice": self.choice,
            "layers": layers,
            "tied": self.tied,
            "kinds": kinds,  # of modules, many of which are alike
            "modules": {name: kinds.index(texts) for name, texts in modules.items()},
            "tensors": sorted(self.structure.tensors),
            "sha256": self.checksums,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Description:
        """Check a description; raises an AttributeError, LookupError, TypeError or ValueError."""
        library = content["library"]
        if library not in (None, "transformers", "timm"):
            raise ValueError(f"library {library!r:.40}")
        kinds, tensors = content["kinds"], content["tensors"]
        modules = {name: kinds[index] for name, index in content["modules"].items()}
        texts = [content["class"], content["name"], content["loaded_by"], *tensors]
        for entry in ("changes", "taken_out", "zero"):
            texts += content[entry]
        for mapping in ("sha256", "versions", "tied"):
            texts += content[mapping].values()
        for kind in kinds:
            texts += [kind["class"], *kind.values()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("texts")
        if (count := _number_of_texts(modules.values())) > _MOST_TEXTS:
            raise ValueError(f"{count} attributes of modules")
        if not isinstance(content["choice"], dict | None):
            raise TypeError("choice")
        return cls(
            kind=content["class"],
            structure=Structure(modules, {*tensors}),
            checksums=dict(content["sha256"]),
            versions=dict(content["versions"]),
            library=library,
            name=content["name"],
            options=dict(content["options"]),
            removals={name: _removals(name, layer) for name, layer in content["layers"].items()},
            tied=dict(content["tied"]),
            loaded_by=content["loaded_by"],
            changes=tuple(content["changes"]),
            taken_out=tuple(content["taken_out"]),
            zero=tuple(content["zero"]),
            choice=content["choice"],
        )

    @property
    def weights(self) -> str:
        """Name of the file of the weights."""
        return WEIGHTS if WEIGHTS in self.checksums else APART

    def changed_libraries(self) -> set[str]:
        """Libraries that had other versions when the model was saved; ``"python"`` among them."""
        now = _versions()
        return {name for name, text in self.versions.items() if text != now.get(name)} - {
            "pathkernel"
        }


def _removals(name: str, layer: Mapping[str, Any]) -> Removals:
    """Check the removals of a layer, in time linear in their size."""
    left, kinds = layer["left"], layer["kinds"]
    if not (isinstance(layer["heads"], int) and 0 < layer["heads"] <= _MOST_HEADS):
        raise ValueError(f"heads {layer['heads']!r:.40} of layer {name!r:.40}")
    if len(left) > _MOST_REMOVALS:
        raise ValueError(f"{len(left)} removals of layer {name!r:.40}")
    for number, heads in enumerate(left):
        ordered = {*map(type, heads)} == {int} and sorted({*heads}) == heads
        fewer = number == 0 or {*heads} < {*left[number - 1]}
        if not (ordered and heads[0] > 0 and heads[-1] <= layer["heads"] and fewer):
            raise ValueError(f"heads {heads!r:.40} of layer {name!r:.40}")
    if len(left) != len(kinds) or not {*kinds} <= {*KINDS}:
        raise ValueError(f"removals of layer {name!r:.40}")
    return Removals(layer["heads"], tuple(map(tuple, left)), tuple(kinds))


def _number_of_texts(modules: Iterable[Mapping[str, str]]) -> int:
    return sum(map(len, modules))


def _versions() -> dict[str, str]:
    """Versions of Python and of the distributions that are installed."""
    versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in ("pathkernel", *LIBRARIES):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def read_description(folder: Path) -> Description:
    """Read the description of a folder; raises a CaptureError if it is missing or damaged."""
    content = read_json(folder / DESCRIPTION)
    if content is None:
        raise CaptureError(
            f"there is no saved model in {str(folder)!r}: {DESCRIPTION} is missing; save one by "
            "pathkernel.save_model"
        )
    if content.get("format") != FORMAT:
        raise CaptureError(
            f"{str(folder / DESCRIPTION)!r} must have the format {FORMAT!r}, not "
            f"{content.get('format')!r:.60}; save the model again by this version of pathkernel"
        )
    try:
        return Description.from_json(content)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise damage_error(folder / DESCRIPTION, repr(error)) from error


def read_json(path: Path, checksums: Mapping[str, str] | None = None) -> dict[str, Any] | None:
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
        raise damage_error(path, error) from error
    return content


def read_shapes(path: Path) -> Shapes:
    """Shape and type of every array of a file of safetensors, without reading them."""
    from safetensors import SafetensorError, safe_open

    if (stream := open_regular(path)) is None:
        raise damage_error(path, "it is missing, or no plain file")
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
        raise damage_error(path, error) from error


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_file(path: Path, checksums: Mapping[str, str]) -> None:
    """Raise a CaptureError if a file has another checksum."""
    try:
        _check_sum(checksum(path), checksums.get(path.name))
    except ValueError as error:
        raise damage_error(path, error) from error


def _check_sum(actual: str, expected: str | None) -> None:
    if actual != expected:
        raise ValueError(f"it is not the file that {DESCRIPTION} was saved with")


def damage_error(path: Path, reason: object) -> CaptureError:
    """Return the error of a file that cannot be used."""
    text = printable(" ".join(str(reason).split()))[:200]
    return CaptureError(
        f"{str(path)!r} is damaged or of another program ({text}); restore it from a copy, or save "
        "the model again"
    )
