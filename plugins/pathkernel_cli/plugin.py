"""Registers the commands that ship with pathkernel."""

from __future__ import annotations

import click

from pathkernel_cli.inspect_commands import plot, plugins, show
from pathkernel_cli.run import run
from pathkernel_core.hooks import hookimpl


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """Commands of the main job."""
    return [run, show, plot, plugins]
