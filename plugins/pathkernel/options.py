"""Options of commands: made from the fields of tasks and results, and types that they share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from pathkernel_core.hooks import PluginError
from pathkernel_core.options import option_type, takes_several
from pathkernel_datasets.measures import WORDS

_LONGEST_RANGE = 100_000


class Numbers(click.ParamType):
    """Numbers separated by commas, and for whole numbers also ranges such as 0-4."""

    def __init__(self, kind: Callable[[str], float | None], name: str):
        self.kind, self.name = kind, name
        examples: dict[Any, str] = {int: "0-4 or 0,1,2", float: "10,30,100"}
        self.example = examples.get(kind, "0.7,none")

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
                self.fail(f"{part!r} is no number; write for example {self.example}", param, ctx)
        return tuple(numbers)


class StorePath(click.Path):
    """A store; inside its folder also as ``.``, which has no name for what lies beside it."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Text → path with a name."""
        path = Path(super().convert(value, param, ctx))
        return path if path.name.strip(".") else path.resolve()


class Part(click.ParamType):
    """Which of so many parts, as 1/3."""

    name = "I/N"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Text → number of the part, and of all parts."""
        number, _, count = value.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return int(number), int(count)
        return self.fail(f"{value!r} is no part; write 1/3 for the first of three", param, ctx)


class NumberOrWord(click.ParamType):
    """A temperature, or one of some words for how it is chosen."""

    def __init__(self, words: Sequence[str]):
        self.words = tuple(words)
        self.name = "|".join(("T", *self.words))

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """The words."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Text → number or word."""
        if value in self.words:
            return value
        try:
            return float(value)
        except ValueError:
            words = ", ".join(self.words)
            return self.fail(f"{value!r} is neither a temperature nor one of {words}", param, ctx)


class Several(click.ParamType):
    """One value of an option, or several, separated by commas."""

    def __init__(self, one: click.ParamType):
        self.one, self.name = one, one.name

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """What may stand behind the last comma."""
        before, comma, last = incomplete.rpartition(",")
        found = self.one.shell_complete(ctx, param, last)
        return [CompletionItem(before + comma + item.value, type=item.type) for item in found]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text → value, or tuple of values."""
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, (list, tuple)) else [parts]
        values = tuple(self.one.convert(part, param, ctx) for part in parts)
        return values if len(values) > 1 else values[0]


store_argument = click.argument("store", metavar="FILE.zarr", type=StorePath())
"""Argument of commands that look at a store."""

temperature_option = click.option(
    "--temperature",
    type=NumberOrWord(WORDS),
    help="Temperature T to report; or how it is chosen at each width, over all seeds: largest "
    "validation accuracy (of targets: smallest error), smallest leave-one-out error, largest log "
    "evidence, at the saddle or to next order, or on the first test set, as in the paper.  "
    "[default: validation, or leave-one-out where the task has no validation examples]",
)
"""Option of commands that report a study."""

figures_option = click.Option(
    ["--figures/--no-figures"],
    default=True,
    show_default=True,
    help="Write figures into a folder next to the store.",
)
"""Option of commands that compute a study or a result."""


def options_of(
    configured: type, *, several: bool = False, defaults: Mapping[str, Any] = MappingProxyType({})
) -> list[click.Option]:
    """Options of a study, a task or a result: one for each of its fields with a help text.

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


def check_names(configured: type, others: Iterable[click.Parameter]) -> None:
    """Check that no option of a task or a result is called as another one of its command.

    Raises
    ------
    PluginError
        If one is; the message names it.
    """
    taken = {"json", "csv", "help", "--json", "--csv", "--help", "-h"}
    for other in others:
        taken |= {str(other.name), *other.opts, *other.secondary_opts}
    names = {name for option in options_of(configured) for name in (option.name, *option.opts)}
    if clashes := sorted(names & taken):
        raise PluginError(
            f"{configured.__name__} has options whose names are taken: {', '.join(clashes)}; "
            "rename them"
        )


def help_of(configured: Any, *, summarised: bool = False) -> str:
    """Help text of a task or a result: its docstring, after its summary if asked for."""
    description, _, _ = (inspect.getdoc(configured) or "").partition("\n\nParameters\n")
    return f"{configured.summary}.\n\n{description}" if summarised else description


def _option(entry: dataclasses.Field, several: bool, default: Any) -> click.Option:
    about, dashed = entry.metadata, entry.name.replace("_", "-")
    kind = option_type(entry)
    flags = about.get("flags") or (f"--{dashed}",)
    if kind is bool:
        flags = (f"--{dashed}/--no-{dashed}",)
    type_ = _parameter_type(kind, about.get("choices"), about.get("least"), about.get("metavar"))
    metavar = about.get("metavar")
    if several:
        type_ = Several(click.types.convert_type(type_))
        words = "|".join(about.get("choices") or ())
        metavar = f"[{words}],…" if words else f"{type_.name.upper()},…"
    text = about["help"]
    if isinstance(default := entry.default if default is None else default, tuple):
        text += f"  [default: {','.join(f'{value:g}' for value in default)}]"
    elif default is not None and entry.default is None:
        text += f"  [default: {default}]"
    return click.Option(
        [*flags, entry.name],
        type=type_,
        metavar=metavar,
        default=entry.default,
        required=about.get("required", False),
        show_default=entry.default is not None and not isinstance(entry.default, tuple),
        help=text,
    )


_NUMBERS: dict[Any, Callable[[str], float | None]] = {
    tuple: float,
    tuple[float, ...]: float,
    tuple[int, ...]: int,
    tuple[float | None, ...]: lambda text: None if text.strip() == "none" else float(text),
}


def _parameter_type(
    kind: Any, choices: Sequence[str] | None, least: float | None, metavar: str | None
) -> Any:
    if choices:
        return NumberOrWord(choices) if kind is float else click.Choice(choices)
    if kind in _NUMBERS:
        return Numbers(_NUMBERS[kind], metavar or "N,N,…")
    if kind is Path:
        return click.Path(path_type=Path)
    if least is not None:
        return click.IntRange(min=least) if kind is int else click.FloatRange(min=least)
    return kind
