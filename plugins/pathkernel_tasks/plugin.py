"""Registers the tasks that ship with pathkernel and need no data set of their own."""

from __future__ import annotations

from pathkernel_core.hooks import hookimpl
from pathkernel_core.task import Task
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.hidden_markov import HiddenMarkov


@hookimpl
def pathkernel_tasks() -> list[type[Task]]:
    """The paper's hidden Markov chains, and data and heads of one's own."""
    return [HiddenMarkov, Custom]
