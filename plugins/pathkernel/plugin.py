"""Registers the commands that ship with pathkernel."""

from __future__ import annotations

import click

from pathkernel.commands.check import check
from pathkernel.commands.run import run
from pathkernel.commands.show import plot, plugins, report, show
from pathkernel.commands.train import train
from pathkernel_core.contracts.hooks import hookimpl


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """Commands that are no result's."""
    return [run, show, plot, report, check, plugins, train]
