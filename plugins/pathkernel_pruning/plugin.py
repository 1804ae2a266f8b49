"""Registers the command that prunes trained networks, without importing what it needs to run."""

from __future__ import annotations

import click

from pathkernel_core.hooks import hookimpl
from pathkernel_pruning.command import prune


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """The command ``pathkernel prune``."""
    return [prune]
