"""A study in a TOML file: read for ``pathkernel run FILE.toml``, and written from a store."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pathkernel.options import Numbers, Several
from pathkernel_core.errors import PathkernelError
from pathkernel_core.hooks import unknown_name
from pathkernel_datasets.study import Study

if TYPE_CHECKING:
    from pathkernel_datasets.stored import StoredStudy

SUFFIX = ".toml"
_OPTIONS = "options"  # table of the task's own
_WHOLE = 1e15  # up to which whole numbers are written without a point


class StudyFileError(PathkernelError, ValueError):
    """A file holds no study, or not a right one."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    StudyFileError
        If it is no TOML.
    OSError
        If it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            return tomllib.load(stream)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StudyFileError(f"{path} is no TOML file: {error}") from None


def task_named(path: Path, content: Mapping[str, Any]) -> str:
    """Name of the task of a study file."""
    name = content.get("task")
    if not isinstance(name, str):
        raise StudyFileError(f'{path}: task must name a task, such as task = "hidden-markov"')
    return name


def defaults_of(
    path: Path,
    content: Mapping[str, Any],
    settings: Sequence[click.Parameter],
    task_options: Sequence[click.Parameter],
) -> dict[str, Any]:
    """Values of a study file as defaults of the options of a command.

    Parameters
    ----------
    path : Path
        The file; relative paths in it are taken from its folder.
    content : mapping
        From :func:`read_toml`.
    settings, task_options : sequence of click.Parameter
        Options of all tasks, and those of this one.

    Raises
    ------
    StudyFileError
        If a key is not known, or its value is not of the option's type; the message names it.
    """
    options = content.get(_OPTIONS, {})
    if not isinstance(options, dict):
        raise StudyFileError(f"{path}: options must be a table, [options], not {options!r}")
    given = {key: value for key, value in content.items() if key not in ("task", _OPTIONS)}
    for key in given.keys() & {option.name for option in task_options}:
        raise StudyFileError(f"{path}: {key} is an option of the task; write it under [options]")
    defaults = {"out": str(path.with_suffix(".zarr"))}
    for values, known, kind in ((given, settings, "setting"), (options, task_options, "option")):
        by_name = {str(option.name): option for option in known}
        for key, value in values.items():
            if key not in by_name:
                raise StudyFileError(f"{path}: {unknown_name(kind, key, by_name)}")
            if isinstance(value, list) and not isinstance(by_name[key].type, Numbers | Several):
                raise StudyFileError(f"{path}: {key} takes one value, not {value!r}")
            text = _typed(value)
            if kind == "option" or key == "out":
                text = _from(path.parent, text, key == "out")
            try:
                by_name[key].type.convert(text, None, None)
            except click.BadParameter as error:
                raise StudyFileError(f"{path}: {key} = {value!r}: {error.message}") from None
            defaults[key] = text
    return defaults


def _typed(value: Any) -> str:
    """A value of TOML as it is typed on the command line."""
    values = value if isinstance(value, list) else [value]
    return ",".join(str(entry) for entry in values)


def _from(folder: Path, text: str, always: bool) -> str:
    """A path from the file's folder; of text that may be one, only if it exists."""
    if not (always or Path(text).suffix or "/" in text):
        return text
    return str(folder / text) if always or (folder / text).exists() else text


def study_toml(study: StoredStudy) -> str:
    """The study of a store as a TOML file that resumes the store; paths are absolute.

    Raises
    ------
    StudyFileError
        If an option of the task has a value that such a file cannot hold.
    """
    identity = study.identity
    settings = {"task": identity["task"]}
    settings |= {
        entry.name: _whole(identity[entry.name])
        for entry in dataclasses.fields(Study)
        if entry.name in identity and entry.metadata
    }
    settings["out"] = str(study.path.resolve())
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


def _whole(value: Any) -> Any:
    """Whole numbers without a point, alone or in a list."""
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE
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
