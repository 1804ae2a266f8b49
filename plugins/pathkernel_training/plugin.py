"""Registers the commands that train networks and compare them, without what they need to run."""

from __future__ import annotations

import click

from pathkernel_core.hooks import hookimpl
from pathkernel_training.command import train
from pathkernel_training.compare_command import compare


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """The commands ``pathkernel train`` and ``pathkernel compare``."""
    return [train, compare]
