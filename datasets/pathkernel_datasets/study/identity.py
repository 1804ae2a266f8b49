"""The identity of a study: all that determines its results, as plain values.

It has an entry for the task, its options and files, the versions of the code, and numbers that tell
the data drawn with the first seed from others, so that results of code that has changed are not
taken for those of the code that is installed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    files,
    packages_distributions,
    version,
)
from typing import Any

import numpy as np

from pathkernel_core.contracts.task import Realisation, Task
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.study.study import (
    POINT,
    SETTINGS,
    Study,
    draw_realisation,
    task_failures,
)

OTHER_DATA = "the task draws other data than when the study was begun"
_EXPLAINING = {"task", "options", "provenance", "seeds", "versions"}  # other data
_OF_THE_GRID = ("seeds", "temperatures", "widths", "drawn", "sweep")  # drawn with the first seed


def identity_of(study: Study, drawn: Iterable[Realisation] | None = None) -> dict[str, Any]:
    """All that determines the results of a study; paths of files are absolute.

    Data that the values of the option that is swept draw with the first seed may be given.
    """
    if drawn is None:
        drawn = (draw_realisation(single.task, study.seeds[0]) for single in study.singles)
    singles = [_describe_seed(single, data) for single, data in zip(study.singles, drawn)]
    identity = dict(singles[0])
    for name, values in study.sweep.items():
        identity["options"] = identity["options"] | {name: list(values)}
        drawn_of_values = ({key: one[key] for key in ("provenance", "drawn")} for one in singles)
        identity["sweep"] = {name: dict(zip(map(str, values), drawn_of_values))}
    return identity


def _describe_seed(study: Study, drawn: Realisation) -> dict[str, Any]:
    with task_failures(study.task, "cannot tell its provenance"):
        options, provenance = study.options, study.task.provenance()
    _check_plain(study.task, options, {"provenance()": provenance, "notes": drawn.notes})
    for name in file_options(options, provenance):
        if os.path.exists(options[name]):
            options[name] = os.path.abspath(options[name])
    settings = {
        entry.name: getattr(study, entry.name)
        for entry in dataclasses.fields(study)
        if entry.metadata and entry.name not in SETTINGS
    }
    if study.skips is None:
        del settings["skips"]
    if not study.has_probabilities:
        del settings["likelihood"]
    identity = settings | {
        "task": study.task.name,
        "options": options,
        "provenance": provenance,
        "versions": versions(("pathkernel", *_distributions(type(study.task)))),
        "drawn": fingerprint(drawn),
    }
    return json.loads(json.dumps(identity))


def _check_plain(task: Task, options: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
    """Check that files can hold the options of a task and its mappings of texts, given by name.

    Raises
    ------
    TaskError
        If a mapping holds something else, or an option is no plain value or sequence of them.
    """
    owner = f"the task {task.name!r} of class {type(task).__module__}.{type(task).__qualname__}"
    for source, mapping in texts.items():
        if not isinstance(mapping, Mapping):
            raise TaskError(
                f"{owner} gives {source} of type {type(mapping).__name__}; give a mapping of texts"
            )
        for key, text in mapping.items():
            for part, value in (("a name", key), (f"for {key!r}", text)):
                if not isinstance(value, str):
                    raise TaskError(
                        f"{owner} gives in its {source} {part} {value!r} of type "
                        f"{type(value).__name__}; give a text, such as {str(value)!r}"
                    )
    for name, value in options.items():
        entries = value if isinstance(value, list | tuple) else [value]
        for entry in entries:
            # by json's own types: NumPy's numbers, but float64, are none of them
            is_number = isinstance(entry, int | float) and math.isfinite(entry)
            if not (entry is None or is_number or isinstance(entry, str)):
                raise TaskError(
                    f"{owner} has the option {name}={value!r}, of type {type(entry).__name__}; an "
                    "option is None, a text, a finite number, or a sequence of them"
                )


def text_of(identity: Mapping[str, Any]) -> str:
    """An identity as JSON; equal studies have equal texts."""
    return json.dumps(identity, sort_keys=True)


def single_identity(identity: Mapping[str, Any], swept: str, value: Any) -> dict[str, Any]:
    """Identity of the study of one value of the option that is swept."""
    single = {key: entry for key, entry in identity.items() if key != "sweep"}
    single["options"] = single["options"] | {swept: value}
    return single | identity["sweep"][swept][str(value)]


def core_of(identity: Mapping[str, Any]) -> str:
    """All that determines pieces of a study besides their keys, as JSON."""
    core = {key: entry for key, entry in identity.items() if key not in _OF_THE_GRID}
    options = core["options"].items()
    core["options"] = {key: entry for key, entry in options if key not in core["provenance"]}
    return text_of(core)


def grid_of(identity: Mapping[str, Any]) -> dict[str, list]:
    """Values along every dimension of a study's grid."""
    swept = {name: identity["options"][name] for name in identity.get("sweep", ())}
    return swept | {name: identity[f"{name}s"] for name in POINT}


def file_options(options: Mapping[str, Any], provenance: Mapping[str, str]) -> list[str]:
    """Options that are paths of files: those under whose names the task gives a provenance."""
    return [name for name in options if name in provenance and options[name] is not None]


def differences(stored: Mapping[str, Any], current: Mapping[str, Any], source: str) -> list[str]:
    """Describe the differences between a stored and a current study, whose source has a name.

    Paths are ignored where the provenance identifies files; so are different data where another
    difference explains them.
    """
    files = stored["provenance"].keys() & current["provenance"].keys()
    entries, current_entries = (_flatten(study, files) for study in (stored, current))
    keys = sorted(entries | current_entries, key=lambda key: (key[0] != "options", key))
    different = [key for key in keys if entries.get(key) != current_entries.get(key)]
    lines = [
        f"{', '.join(key)}: the folder has {_json(entries.get(key))}, {source} "
        f"{_json(current_entries.get(key))}"
        for key in different
        if "drawn" not in key
    ]
    drawn = dict.fromkeys(key[-1] for key in different if "drawn" in key)
    if drawn and not any(_EXPLAINING & set(key) for key in different):
        lines.append(f"{OTHER_DATA}, since its code or a file has changed: {', '.join(drawn)}")
    return lines


def _flatten(
    entries: Mapping[str, Any], ignored_options: Iterable[str], above: tuple[str, ...] = ()
) -> dict[tuple[str, ...], Any]:
    """Entries of nested mappings by the keys that lead to them."""
    flat: dict[tuple[str, ...], Any] = {}
    for key, entry in entries.items():
        if above == ("options",) and key in ignored_options:
            continue
        if isinstance(entry, dict) and entry:
            flat |= _flatten(entry, ignored_options, (*above, key))
        elif entry != {}:
            flat[(*above, key)] = entry
    return flat


def _json(value: Any) -> str:
    """JSON, but for None, which options call none."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_json, value))}]"
    return "none" if value is None else json.dumps(value)


def fingerprint(realisation: Realisation) -> dict[str, str]:
    """One number for each array of a realisation, which other data do not have; and its kind."""
    sets = {"training": realisation.train}
    sets |= {f"test set {name}": examples for name, examples in realisation.test_sets.items()}
    if realisation.validation is not None:
        sets["validation"] = realisation.validation
    arrays: dict[str, list[Any]] = {}
    for name, examples in sets.items():
        arrays[f"{name} inputs"] = [examples.inputs]
        arrays[f"{name} labels"] = [examples.labels]
    for number, layer in enumerate(realisation.layers, start=1):
        of_layer = arrays.setdefault(f"heads of layer {number}", [])
        layer.convert(lambda array, of_layer=of_layer: of_layer.append(array) or array)  # type: ignore[misc]
    drawn = {name: " ".join(map(_weighted_sum, parts)) for name, parts in arrays.items()}
    if realisation.kind != "classes":
        drawn["kind"] = f"{realisation.kind}{', centred' if realisation.centred else ''}"
    if realisation.output_names is not None:
        drawn["output names"] = ", ".join(map(str, realisation.output_names))
    return drawn


def _weighted_sum(array: Any) -> str:
    """Sum over all entries relative to the norm: to six digits the same on every machine."""
    # weights of a cosine, no two of which are equal: a plain sum misses a change of the order. Not
    # a hash, since libraries and processors differ in the last digits of attention and data
    values = np.asarray(array, dtype=float)
    norm = np.linalg.norm(values) or 1.0
    while values.ndim:
        values = values @ np.cos(1.0 + np.arange(values.shape[-1]))
    return f"{float(values) / norm:.6f}"


@functools.cache
def _distributions(task: type[Task]) -> list[str]:
    """Distributions that the task's code may come from."""
    package = task.__module__.partition(".")[0]
    with suppress(PackageNotFoundError):
        # all that is installed need not be looked through, which takes a while; an editable
        # installation lists no modules, but its entry points name those with tasks
        entries = distribution("pathkernel").entry_points
        plugins = (entry.module.partition(".")[0] for entry in entries)
        modules = (file.parts[0] for file in files("pathkernel") or ())
        if package in itertools.chain(plugins, modules):
            return []
    return sorted(set(packages_distributions().get(package, ())) - {"pathkernel"})


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of installed distributions."""
    return {package: _version(package) for package in packages}
