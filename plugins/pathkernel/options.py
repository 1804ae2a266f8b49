"""Options of commands: made from the fields of tasks and results, and types that they share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from pathkernel_core.options import option_type, takes_several

_LONGEST_RANGE = 100_000
_EXAMPLES: dict[Any, str] = {int: "0-4 or 0,1,2", float: "10,30,100"}


class Numbers(click.ParamType):
    """Numbers separated by commas; of integers also ranges such as 0-4."""

    def __init__(self, kind: Callable[[str], float | None], name: str):
        self.kind, self.name = kind, name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float | None, ...]:
        """Text → tuple of numbers."""
        if not isinstance(value, str):
            return tuple(value)
        numbers: list[float | None] = []
        for part in value.split(","):
            first, dash, last = part.strip().partition("-")
            try:
                if self.kind is int and dash and first:
                    span = range(int(first), int(last) + 1)
                    if not 0 < len(span) <= _LONGEST_RANGE:
                        self.fail(f"the range {part!r} is empty or too long", param, ctx)
                    numbers += span
                else:
                    numbers.append(self.kind(part))
            except (ValueError, OverflowError):
                example = _EXAMPLES.get(self.kind, "0.7,none")
                self.fail(f"{part!r} is no number; write for example {example}", param, ctx)
        return tuple(numbers)


class StorePath(click.Path):
    """Path of a store, always with a name: from inside the store, ``.`` is resolved."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Text → path with a name."""
        path = Path(super().convert(value, param, ctx))
        return path if path.name.strip(".") else path.resolve()


class Part(click.ParamType):
    """Part I of N, as 1/3."""

    name = "I/N"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Text → (I, N)."""
        number, _, count = value.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return int(number), int(count)
        return self.fail(f"{value!r} is no part; write 1/3 for the first of three", param, ctx)


class TemperatureOrChoice(click.ParamType):
    """A temperature, or a way to choose it."""

    def __init__(self, choices: Sequence[str]):
        self.choices = tuple(choices)
        self.name = "|".join(("T", *self.choices))

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """The choices."""
        return [CompletionItem(choice) for choice in self.choices if choice.startswith(incomplete)]

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Text → number or choice."""
        if value in self.choices:
            return value
        try:
            return float(value)
        except ValueError:
            choices = ", ".join(self.choices)
            return self.fail(f"{value!r} is neither a temperature nor one of {choices}", param, ctx)


class Several(click.ParamType):
    """One value of another type, or several, separated by commas."""

    def __init__(self, element: click.ParamType):
        self.element, self.name = element, element.name

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Completions of the text behind the last comma."""
        before, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(before + comma + completion.value, type=completion.type)
            for completion in self.element.shell_complete(ctx, param, last)
        ]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text → value, or tuple of values."""
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, (list, tuple)) else [parts]
        values = tuple(self.element.convert(part, param, ctx) for part in parts)
        return values if len(values) > 1 else values[0]


store_argument = click.Argument(["store"], metavar="FILE.zarr", type=StorePath())
"""Argument of commands on a store."""

figures_option = click.Option(
    ["--figures/--no-figures"],
    default=True,
    show_default=True,
    help="Write figures into a folder next to the store.",
)
"""Option of commands that compute a study or a result."""

out_option = click.Option(
    ["--out"],
    type=click.Path(path_type=Path),
    help="Folder for the figures.  [default: next to the store]",
)
"""Option of commands that draw figures of a store."""


def options_of(
    configured: type, *, several: bool = False, defaults: Mapping[str, Any] = MappingProxyType({})
) -> list[click.Option]:
    """Make the options of a study, a task or a result from its fields.

    Parameters
    ----------
    configured : type
        Dataclass whose fields are declared with :func:`pathkernel_core.options.option`.
    several : bool
        Whether options that are numbers or choices take several values.
    defaults : mapping of str to Any
        Defaults that the help names where a field's default is None.
    """
    return [
        _option(entry, several and takes_several(entry), defaults.get(entry.name))
        for entry in dataclasses.fields(configured)
        if "help" in entry.metadata
    ]


def help_of(configured: Any, *, summarised: bool = False) -> str:
    """Help text of a task or a result: its docstring, with its summary in front if requested."""
    description, _, _ = (inspect.getdoc(configured) or "").partition("\n\nParameters\n")
    return f"{configured.summary}.\n\n{description}" if summarised else description


def _option(entry: dataclasses.Field, several: bool, default: Any) -> click.Option:
    settings, kind, dashed = entry.metadata, option_type(entry), entry.name.replace("_", "-")
    flags = settings.get("flags") or (f"--{dashed}",)
    if kind is bool:
        flags = (f"--{dashed}/--no-{dashed}",)
    metavar, type_ = settings.get("metavar"), _parameter_type(kind, settings)
    if several:
        type_ = Several(click.types.convert_type(type_))
        choices = "|".join(settings.get("choices") or ())
        metavar = f"[{choices}],…" if choices else f"{type_.name.upper()},…"
    text = settings["help"]
    if isinstance(default := entry.default if default is None else default, tuple):
        text += f"  [default: {','.join(f'{value:g}' for value in default)}]"
    elif default is not None and entry.default is None:
        text += f"  [default: {default}]"
    return click.Option(
        [*flags, entry.name],
        type=type_,
        metavar=metavar,
        default=entry.default,
        required=settings.get("required", False),
        show_default=entry.default is not None and not isinstance(entry.default, tuple),
        help=text,
    )


_NUMBERS: dict[Any, Callable[[str], float | None]] = {
    tuple: float,
    tuple[float, ...]: float,
    tuple[int, ...]: int,
    tuple[float | None, ...]: lambda text: None if text.strip() == "none" else float(text),
}


def _parameter_type(kind: Any, settings: Mapping[str, Any]) -> Any:
    if choices := settings.get("choices"):
        return TemperatureOrChoice(choices) if kind is float else click.Choice(choices)
    if kind in _NUMBERS:
        return Numbers(_NUMBERS[kind], settings.get("metavar") or "N,N,…")
    if kind is Path:
        return click.Path(path_type=Path)
    if (minimum := settings.get("minimum")) is not None:
        return click.IntRange(min=minimum) if kind is int else click.FloatRange(min=minimum)
    return kind
