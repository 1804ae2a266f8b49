"""A study in a TOML file: read for ``pathkernel run FILE.toml``, and written from a store."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pathkernel.options import NumberOrWord, Numbers, Several
from pathkernel_core.errors import PathkernelError
from pathkernel_core.hooks import unknown_name

if TYPE_CHECKING:
    from pathkernel_datasets.stored import StoredStudy

SUFFIX = ".toml"
_OPTIONS = "options"  # table of the task's own
_BARE = re.compile("[A-Za-z0-9_-]+")  # names that TOML takes without quotes
_WHOLE = 1e15  # up to which whole numbers are written without a point

_KINDS: tuple[tuple[type[click.ParamType], tuple[type, ...], str], ...] = (
    (NumberOrWord, (int, float, str), "a number or text"),
    (click.types.BoolParamType, (bool,), "true or false"),
    (click.types.IntParamType, (int,), "a whole number"),
    (click.types.FloatParamType, (int, float), "a number"),
    (click.ParamType, (str,), "text"),
)
"""Types of options, with those of TOML that they take, in words too; the first that fits counts."""


class StudyFileError(PathkernelError, ValueError):
    """A file holds no study, or not a right one."""


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds.

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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyFileError(f"{path} is no TOML file: {error}") from None


def task_named(path: Path, held: Mapping[str, Any]) -> str:
    """Name of the task of a study file."""
    name = held.get("task")
    if not isinstance(name, str):
        raise StudyFileError(f'{path}: task must name a task, such as task = "hidden-markov"')
    return name


def defaults_of(
    path: Path,
    held: Mapping[str, Any],
    settings: Sequence[click.Parameter],
    own: Sequence[click.Parameter],
) -> dict[str, Any]:
    """Values of a study file as defaults of the options of a command.

    Parameters
    ----------
    path : Path
        The file; relative paths in it are taken from its folder.
    held : mapping
        From :func:`read_toml`.
    settings, own : sequence of click.Parameter
        Options of all tasks, and those of this one.

    Raises
    ------
    StudyFileError
        If a key is not known or its value is of another type; the message names it.
    """
    options = held.get(_OPTIONS, {})
    if not isinstance(options, dict):
        raise StudyFileError(f"{path}: options must be a table, [options], not {options!r}")
    given = {key: value for key, value in held.items() if key not in ("task", _OPTIONS)}
    for key in given.keys() & {option.name for option in own}:
        raise StudyFileError(f"{path}: {key} is an option of the task; write it under [options]")
    found = {}
    for values, known, kind in ((given, settings, "setting"), (options, own, "option")):
        by_name = {str(option.name): option for option in known}
        for key, value in values.items():
            if key not in by_name:
                raise StudyFileError(f"{path}: {unknown_name(kind, key, by_name)}")
            found[key] = _checked(f"{path}: {key}", by_name[key].type, value)
            if by_name[key] in own or key == "out":
                found[key] = _from(path.parent, found[key], key == "out")
    return {"out": str(path.with_suffix(".zarr"))} | found


def _checked(what: str, kind: click.ParamType, value: Any) -> Any:
    """A value of TOML as an option of that type takes it."""
    if isinstance(kind, Numbers):
        if isinstance(value, str):
            return value  # as on the command line, 0-4
        values = value if isinstance(value, list) else [value]
        one = int if kind.kind is int else float
        if values and all(_is_number(each, one) or _is_word(kind, each) for each in values):
            return tuple(kind.kind(each) if isinstance(each, str) else each for each in values)
        words = "whole numbers" if one is int else "numbers"
        raise StudyFileError(f"{what} must be a list of {words}, not {value!r}")
    if isinstance(kind, Several):
        if isinstance(value, list) and value:
            return tuple(_checked(what, kind.one, each) for each in value)
        kind = kind.one
    types, words = next((types, words) for known, types, words in _KINDS if isinstance(kind, known))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise StudyFileError(f"{what} must be {words}, not {value!r}")
    return value


def _is_number(value: Any, kind: type) -> bool:
    types = int if kind is int else (int, float)
    return isinstance(value, types) and not isinstance(value, bool)


def _is_word(kind: Numbers, value: Any) -> bool:
    """Whether text stands for no number, as "none" of skips does."""
    try:
        return isinstance(value, str) and kind.kind(value) is None
    except ValueError:
        return False


def _from(folder: Path, value: Any, always: bool) -> Any:
    """A path from the file's folder; of text that may be one, only if it is there."""
    if not isinstance(value, str) or not (always or Path(value).suffix or "/" in value):
        return value
    return str(folder / value) if always or (folder / value).exists() else value


def study_toml(study: StoredStudy) -> str:
    """The study of a store as a TOML file that resumes the store; paths are absolute.

    Raises
    ------
    StudyFileError
        If an option of the task has a value that such a file cannot hold.
    """
    held = study.identity
    grid = {name: [_whole(value) for value in held[name]] for name in ("widths", "temperatures")}
    settings = {"task": held["task"], **grid, "seeds": held["seeds"]}
    how = ("variances", "skips", "backend", "dtype")
    settings |= {name: held[name] for name in how if name in held}
    settings["out"] = str(study.path.resolve())
    lines = ["# a study: pathkernel run FILE.toml computes or resumes it"]
    lines += [f"{name} = {_toml(name, value)}" for name, value in settings.items()]
    lines += ["", f"[{_OPTIONS}]"]
    options = study.options.items()
    lines += [
        f"{name if _BARE.fullmatch(name) else _toml(name, name)} = {_toml(name, value)}"
        for name, value in options
        if value is not None
    ]
    return "\n".join(lines)


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() and abs(value) < _WHOLE else value


def _toml(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(_toml(name, each) for each in value)}]"
    if value is None and name == "skips":
        return '"none"'
    if isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value):
        plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(plain)}"'
    raise StudyFileError(f"{name} = {value!r} cannot be written into a TOML file")
