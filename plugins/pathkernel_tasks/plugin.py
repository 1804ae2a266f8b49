"""Registers the tasks that ship with pathkernel and need no data set of their own."""

from __future__ import annotations

from pathkernel_core.contracts.hooks import hookimpl
from pathkernel_core.contracts.task import Task
from pathkernel_tasks.copying import Copying
from pathkernel_tasks.custom import Custom
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_tasks.single_location import SingleLocation


@hookimpl
def pathkernel_tasks() -> list[type[Task]]:
    """The paper's hidden Markov chains, tasks of attention to find, and data of one's own."""
    return [HiddenMarkov, SingleLocation, Copying, Custom]
