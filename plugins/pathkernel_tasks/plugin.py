"""Registers the tasks that ship with pathkernel, and the command that makes files of heads."""

from __future__ import annotations

import click

from pathkernel_core.hooks import hookimpl
from pathkernel_core.task import Task
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.heads_command import heads
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_tasks.one_shot_images import OneShotImages


@hookimpl
def pathkernel_tasks() -> list[type[Task]]:
    """Tasks of the paper, and one for files of one's own."""
    return [HiddenMarkov, OneShotImages, Custom]


@hookimpl
def pathkernel_commands() -> list[click.Command]:
    """The command ``pathkernel heads``."""
    return [heads]
