"""Options of commands, made from declarations: what is typed is read, and checked as in Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from pathkernel_core.contracts.hooks import PluginError
from pathkernel_core.contracts.options import (
    Options,
    bounds,
    check_value,
    declared_options,
    element_type,
    option,
    option_type,
    takes_several,
)
from pathkernel_core.system.text import number

_LONGEST_CHOICES = 60  # letters of choices in a placeholder
_LONGEST_RANGE = 100_000
_METAVARS = {int: "INTEGER", float: "FLOAT", str: "TEXT", Path: "PATH"}
_OF_ALL = ("help", "--help", "-h", "json", "--json", "csv", "--csv")


@dataclass(frozen=True)
class Figures(Options):
    """Option of commands that compute a study or a result."""

    figures: bool = option(True, "Write figures into the folder of the study.")


class Declared(click.ParamType):
    """Type of an option that a dataclass declares, or of several of its values."""

    def __init__(self, declared: Field, several: bool):
        self.declared, self.several, self.name = declared, several, declared.name

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Choices behind the last comma, or files."""
        if option_type(self.declared) is Path:
            return [CompletionItem(incomplete, type="file")]
        before, comma, last = incomplete.rpartition(",") if self.several else ("", "", incomplete)
        choices = self.declared.metadata["choices"] or ()
        return [CompletionItem(before + comma + word) for word in choices if word.startswith(last)]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text → checked value; defaults, and values of a study file, are none."""
        if not isinstance(value, str):
            return value
        try:
            return value_of_text(self.declared, value, self.several)
        except (TypeError, ValueError) as error:
            return self.fail(str(error), param, ctx)


def value_of_text(declared: Field, text: str, several: bool = False) -> Any:
    """Value of an option from text as it is typed, or a tuple of several values.

    Raises
    ------
    TypeError, ValueError
        As :func:`pathkernel_core.contracts.options.check_value` does.
    """
    if several:
        values = tuple(value_of_text(declared, part) for part in text.split(","))
        return values if len(values) > 1 else values[0]
    if element_type(declared) is not None:
        return check_value(declared, entries_of_text(declared, text))
    is_number = option_type(declared) in (int, float)
    return check_value(declared, _number(text) if is_number else text)


def entries_of_text(declared: Field, text: str) -> list[Any]:
    """Entries, not yet checked, of a sequence that is typed: separated by commas, or as 0-4."""
    entries: list[Any] = []
    for part in map(str.strip, text.split(",")):
        first, dash, last = part.partition("-")
        is_range = dash and first.isdecimal() and last.isdecimal()
        if is_range and element_type(declared) is int:
            if not 0 <= int(last) - int(first) < _LONGEST_RANGE:
                raise ValueError(
                    f"{declared.name} holds the range {part!r}, which is empty or too long"
                )
            entries += range(int(first), int(last) + 1)
        else:
            entries.append(None if part == "none" else _number(part))
    return entries


def _number(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class FolderPath(click.Path):
    """Path of a folder, which a shell completes."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Text → path; an empty text would be the working directory."""
        if value == "":
            return self.fail("the name of a folder is empty", param, ctx)
        return Path(super().convert(value, param, ctx))

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Folders alone; what is no folder of a study is told so when it is opened."""
        return [CompletionItem(incomplete, type="dir")]


folder_argument = click.Argument(["folder"], metavar="NAME", type=FolderPath())
"""Argument of commands on the folder of a study."""

out_option = click.Option(
    ["--out"],
    type=FolderPath(),
    metavar="DIR",
    help="Folder for the figures.  [default: NAME/figures]",
)
"""Option of commands that draw figures of a study."""


all_option = click.Option(["--all", "details"], is_flag=True, help="Print all tables.")
"""Option of commands that print the main tables of a study or a result."""


def options_of(
    configured: type[Options],
    *,
    several: bool = False,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> list[click.Option]:
    """Make the options of a command from a class that declares them.

    Parameters
    ----------
    configured : type of Options
    several : bool
        Whether options that are numbers or choices take several values.
    defaults : mapping of str to Any
        Defaults that the help names in place of a field's; such an option is None if left out.
    """
    return [
        _option(entry, several and takes_several(entry), defaults)
        for entry in offered_options(configured).values()
    ]


def offered_options(configured: type[Options]) -> dict[str, Field]:
    """Declared options that are not of Python alone, by name."""
    declared = declared_options(configured).items()
    return {name: entry for name, entry in declared if entry.metadata["flags"] is not None}


def check_names(command: str, *configured: type[Options], further: Iterable[str] = ()) -> None:
    """Raise PluginError if options of a command, of its classes or ``further``, share a name."""
    names = [*_OF_ALL, *further]
    for entries in map(offered_options, configured):
        for entry in entries.values():
            names += {entry.name, *flags_of(entry)}
    if clashes := sorted({name for name in names if names.count(name) > 1}):
        raise PluginError(
            f"the command {command} has several options named {', '.join(clashes)}; rename those "
            "of the plugin"
        )


def help_of(configured: Any, *, summarised: bool = False) -> str:
    """Help text of a class of options: its docstring, with its summary in front if requested."""
    description, _, _ = (inspect.getdoc(configured) or "").partition("\n\nParameters\n")
    return f"{configured.summary}.\n\n{description}" if summarised else description


def flags_of(entry: Field) -> Iterator[str]:
    """Flags of an option on the command line; the last one of a yes or no is that of no."""
    dashed = entry.name.replace("_", "-")
    yield from entry.metadata["flags"] or (f"--{dashed}",)
    if option_type(entry) is bool:
        yield f"--no-{dashed}"


def _option(entry: Field, several: bool, defaults: Mapping[str, Any]) -> click.Option:
    is_flag, text = option_type(entry) is bool, entry.metadata["help"]
    default = defaults.get(entry.name, entry.default)
    if isinstance(default, tuple):
        default = ",".join("none" if n is None else number(n) for n in default)
    elif isinstance(default, float):
        default = number(default)
    notes = [bounds(entry)] if bounds(entry) else []
    if default is not None and not is_flag:
        notes.insert(0, f"default: {default}")
    elif notes and text.endswith("]"):  # names a default that is none of the field's
        text, _, described = text[:-1].rpartition("  [")
        notes.insert(0, described)
    choices = entry.metadata["choices"]
    if choices and _metavar(entry, False) == entry.name.upper():
        text = f"{text} One of {', '.join(choices)}."
    flags = "/".join(flags_of(entry)) if is_flag else flags_of(entry)
    return click.Option(
        [*([flags] if is_flag else flags), entry.name],
        type=bool if is_flag else Declared(entry, several),
        metavar=None if is_flag else _metavar(entry, several),
        default=None if entry.name in defaults else entry.default,
        required=entry.metadata["required"],
        show_default=is_flag,
        help=f"{text}  [{'; '.join(notes)}]" if notes else text,
    )


def _metavar(entry: Field, several: bool) -> str:
    kind, choices = option_type(entry), entry.metadata["choices"]
    name = entry.metadata["metavar"] or _METAVARS.get(kind, "N,N,…")
    if choices and kind is str and len("|".join(choices)) > _LONGEST_CHOICES:
        name = entry.name.upper()  # the help text lists them
    elif choices:
        name = f"[{'|'.join(choices)}]" if kind is str else "|".join((name, *choices))
    return f"{name},…" if several else name
