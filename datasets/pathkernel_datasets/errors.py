"""Errors of studies and of their folders."""

from __future__ import annotations

from pathkernel_core.system.errors import PathkernelError


class StudyError(PathkernelError, RuntimeError):
    """A folder cannot be used: it is damaged, no folder of a study, or holds another one."""


class TaskError(PathkernelError, ValueError):
    """A task cannot draw its data and heads."""


class AnalysisError(PathkernelError, RuntimeError):
    """An analysis, perhaps of a plugin, failed or returned other values than it declares."""


class NotInStudyError(StudyError, ValueError):
    """A study lacks the seed, temperature or width, or the choice, that is asked for."""


class StudyWarning(UserWarning):
    """A file was damaged, and is computed again; or a folder holds more than is asked for."""
