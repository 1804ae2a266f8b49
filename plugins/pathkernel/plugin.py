"""Registers the commands that ship with pathkernel."""

from __future__ import annotations

import click

from pathkernel.check_command import check
from pathkernel.run_command import run
from pathkernel.show_commands import plot, plugins, report, show
from pathkernel.train_command import train
from pathkernel_core.contracts.hooks import hookimpl


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """Commands that are no result's."""
    return [run, show, plot, report, check, plugins, train]
