"""Groups of commands that suggest the nearest name for an unknown one."""

from __future__ import annotations

import click

from pathkernel_core.hooks import unknown_name


class SuggestingGroup(click.Group):
    """Group of commands; ``kind`` names a member in messages."""

    kind = "command"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise a usage error that names the nearest one."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(unknown_name(self.kind, name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)
