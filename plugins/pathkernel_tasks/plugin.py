"""Registers the tasks that ship with pathkernel."""

from __future__ import annotations

from pathkernel_core.hooks import hookimpl
from pathkernel_core.task import Task
from pathkernel_tasks.hidden_markov import HiddenMarkov
from pathkernel_tasks.one_shot_images import OneShotImages


@hookimpl
def pathkernel_tasks() -> list[type[Task]]:
    """Tasks of the paper."""
    return [HiddenMarkov, OneShotImages]
