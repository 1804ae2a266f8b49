"""Registers the tasks that ship with pathkernel."""

from __future__ import annotations

from pathkernel_core.hooks import hookimpl
from pathkernel_core.task import Task
from pathkernel_tasks.hidden_markov import HiddenMarkov


@hookimpl
def pathkernel_tasks() -> list[type[Task]]:
    """Tasks of the paper."""
    return [HiddenMarkov]
