"""Registers the commands that ship with pathkernel, and the options that all tasks share."""

from __future__ import annotations

import click

from pathkernel.check_command import check
from pathkernel.heads_command import heads
from pathkernel.options import RESERVED
from pathkernel.run_command import run
from pathkernel.show_commands import plot, plugins, report, show
from pathkernel.train_command import train
from pathkernel_core.hooks import hookimpl


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """Commands that are no result's."""
    return [run, show, plot, report, check, plugins, heads, train]


@hookimpl
def pathkernel_reserved_options() -> frozenset[str]:
    """Options of ``pathkernel run`` that no task may take."""
    return RESERVED
