"""Types of parameters that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_LONGEST_RANGE = 100_000


class Numbers(click.ParamType):
    """Numbers separated by commas, and for whole numbers also ranges such as 0-4."""

    def __init__(self, kind: Callable[[str], float], name: str):
        self.kind, self.name = kind, name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """Text → tuple of numbers."""
        if not isinstance(value, str):
            return tuple(value)
        numbers: list[float] = []
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
                example = "0-4 or 0,1,2" if self.kind is int else "10,30,100"
                self.fail(f"{part!r} is no number; write for example {example}", param, ctx)
        return tuple(numbers)


class Temperature(click.ParamType):
    """A temperature, or a word for how it is chosen."""

    name = "T|evidence|validation"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Text → number or word."""
        if value in ("evidence", "validation"):
            return value
        try:
            return float(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a temperature nor one of evidence, validation", param, ctx
            )


temperature_option = click.option(
    "--temperature",
    type=Temperature(),
    default="evidence",
    show_default=True,
    help="Temperature T to report; or at each width the one of largest log evidence, or of largest "
    "accuracy on validation examples.",
)
"""Option of commands that report a study."""
