"""Registers the command that trains networks, without importing what it needs to run."""

from __future__ import annotations

import click

from pathkernel_core.hooks import hookimpl
from pathkernel_training.command import train


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """The command ``pathkernel train``."""
    return [train]
