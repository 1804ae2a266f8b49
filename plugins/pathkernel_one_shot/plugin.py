"""Registers the task of one-shot images."""

from __future__ import annotations

from pathkernel_core.contracts.hooks import hookimpl
from pathkernel_core.contracts.task import Task
from pathkernel_one_shot.task import OneShotImages


@hookimpl
def pathkernel_tasks() -> list[type[Task]]:
    """One-shot image classification in context, paper section 4.2."""
    return [OneShotImages]
