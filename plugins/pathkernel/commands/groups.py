"""Commands whose help breaks no value, and groups that suggest the name nearest to another."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pathkernel_core.contracts.hooks import unknown_name

_HYPHEN = "\N{NON-BREAKING HYPHEN}"


class _HelpFormatter(click.HelpFormatter):
    """Formatter that never breaks a line within a value that is typed, such as strong-noise."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Sequence[tuple[str, str]], *arguments: int) -> None:
        """Write options, or commands, with their descriptions."""
        super().write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows], *arguments)

    def getvalue(self) -> str:
        """Text as it is printed, with the hyphens that are typed."""
        return super().getvalue().replace(_HYPHEN, "-")


class HelpContext(click.Context):
    """Context of commands, whose help the formatter writes."""

    formatter_class = _HelpFormatter


class Command(click.Command):
    """Command with that help."""

    context_class = HelpContext


class SuggestingGroup(click.Group):
    """Group of commands; ``kind`` names a member in messages."""

    kind = "command"
    context_class = HelpContext

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise a usage error that names the nearest one."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(unknown_name(self.kind, name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)
