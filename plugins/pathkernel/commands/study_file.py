"""A study in a TOML file: read for ``pathkernel run FILE.toml``, and written from a folder."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import Field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathkernel.commands.options import entries_of_text, flags_of, offered_options, value_of_text
from pathkernel_core.contracts.hooks import unknown_name
from pathkernel_core.contracts.options import (
    check_value,
    declared_options,
    element_type,
    takes_several,
)
from pathkernel_core.system.errors import PathkernelError
from pathkernel_datasets.study.study import Study

if TYPE_CHECKING:
    from pathkernel_datasets.results.stored_study import StoredStudy

SUFFIX = ".toml"
_OPTIONS = "options"  # table of the options of the task
_LARGEST = 1e15  # of whole numbers that are written without a point

_MOST_BYTES = 2**20


class StudyFileError(PathkernelError, ValueError):
    """A file holds no valid study."""


def read_study(path: Path) -> tuple[str, dict[str, Any]]:
    """Read a study file: the name of its task, and its other content.

    Raises
    ------
    StudyFileError
        If it is no TOML, or names no task.
    OSError
        If it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            encoded = stream.read(_MOST_BYTES + 1)  # a device has no end
        if len(encoded) > _MOST_BYTES:
            raise StudyFileError(f"{path} is larger than 1 MiB, unlike any study file")
        # editors of Windows begin with a byte order mark
        content = tomllib.loads(encoded.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StudyFileError(f"{path} is no TOML file: {error}") from None
    if not isinstance(name := content.pop("task", None), str):
        raise StudyFileError(f'{path}: task must name a task, such as task = "hidden-markov"')
    return name, content


def values_of(
    path: Path,
    content: Mapping[str, Any],
    settings: Mapping[str, Field],
    task_options: Mapping[str, Field],
) -> dict[str, Any]:
    """Checked values of the options in a study file, by name.

    Relative paths are taken from the folder of the file. The task's options stand under
    ``[options]``, the settings of all tasks at the top; both are declared. Numbers in text, such
    as "0-4", are read as on the command line.

    Raises
    ------
    StudyFileError
        If a key is unknown, or its value is not allowed; the message names file and key.
    """
    top = dict(content)
    options = top.pop(_OPTIONS, {})
    if not isinstance(options, dict):
        raise StudyFileError(f"{path}: options must be a table, [options], not {options!r}")
    for key in top.keys() & task_options.keys():
        raise StudyFileError(f"{path}: {key} is an option of the task; write it under [options]")
    checked_values: dict[str, Any] = {"out": path.with_suffix("")}
    for values, declared, kind in ((top, settings, "setting"), (options, task_options, "option")):
        for key, value in values.items():
            if key not in declared:
                raise StudyFileError(f"{path}: {unknown_name(kind, key, declared)}")
            if isinstance(value, str) and (
                (key == "out" and value) or (kind == "option" and _is_path(path.parent, value))
            ):
                value = str(path.parent / value)
            try:
                checked_values[key] = _value(declared[key], value)
            except (TypeError, ValueError) as error:
                raise StudyFileError(f"{path}: {error}") from None
    return checked_values


def _value(declared: Field, value: Any) -> Any:
    """Checked value of an option, or a tuple of several, from one of TOML's."""
    if isinstance(value, str):
        return value_of_text(declared, value, takes_several(declared))
    if element_type(declared) is not None:
        entries = []
        for entry in value if isinstance(value, list) else [value]:
            entries += entries_of_text(declared, entry) if isinstance(entry, str) else [entry]
        return check_value(declared, entries)
    if isinstance(value, list) and value and takes_several(declared):
        values = tuple(_value(declared, entry) for entry in value)
        return values if len(values) > 1 else values[0]
    return check_value(declared, value)


def _is_path(folder: Path, text: str) -> bool:
    """Whether text looks like a path, and there is such a file or folder."""
    return bool(Path(text).suffix or "/" in text) and (folder / text).exists()


def study_toml(study: StoredStudy) -> str:
    """The study of a folder as a TOML file that resumes it; paths are absolute.

    Raises
    ------
    StudyFileError
        If an option of the task has a value that such a file cannot hold.
    """
    identity = study.identity
    settings = {
        name: _without_point(identity[name])
        for name in declared_options(Study)
        if identity.get(name) is not None
    }
    settings = {"task": identity["task"], **settings, "out": str(study.path.resolve())}
    options = {name: value for name, value in study.options.items() if value is not None}
    return "\n".join(
        (
            "# a study: pathkernel run FILE.toml computes or resumes it",
            *(f"{name} = {_toml(name, value)}" for name, value in settings.items()),
            "",
            f"[{_OPTIONS}]",
            *(f"{_toml(name, name)} = {_toml(name, value)}" for name, value in options.items()),
        )
    )


def study_command(study: StoredStudy) -> str:
    """The command line that computes or resumes the study of a folder."""
    name = study.identity["task"]
    offered = offered_options(Study)
    if name in study.plugins.tasks:  # or else nothing can run it
        offered |= offered_options(study.plugins.tasks[name])
    values, words = study.identity | study.options, ["pathkernel", "run", name]
    for option, entry in offered.items():
        value = values.get(option)
        if value is not None:
            flag, *others = flags_of(entry)
            if isinstance(value, bool):
                words.append(flag if value else others[-1])
            else:
                words += [flag, _format_typed(value)]
    return shlex.join([*words, "--out", study.path.name])


def _format_typed(value: Any) -> str:
    """A value, or several, as they are typed on the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_format_typed, value))
    return "none" if value is None else str(_without_point(value))


def _without_point(value: Any) -> Any:
    """Whole numbers as integers, alone or in a list."""
    if isinstance(value, list):
        return [_without_point(entry) for entry in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST
    return int(value) if is_whole else value


def _toml(name: str, value: Any) -> str:
    """A plain value as TOML, which writes text, numbers and lists as JSON does."""
    if name == "skips":
        strengths = value if isinstance(value, list) else [value]
        value = ["none" if strength is None else strength for strength in strengths]
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        tomllib.loads(f"a = {text}")
        text.encode()
    except ValueError:  # None, tables, infinity and text that is no Unicode
        raise StudyFileError(f"{name} = {value!r} cannot be written into a TOML file") from None
    return text
