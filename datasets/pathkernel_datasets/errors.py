"""Errors of stores."""

from __future__ import annotations

from pathkernel_core.errors import PathkernelError


class StoreError(PathkernelError, RuntimeError):
    """A store cannot be used: it is damaged, no store at all, or holds another study."""


class TaskError(PathkernelError, ValueError):
    """A task cannot draw its data and heads."""


class NotInStoreError(StoreError, ValueError):
    """A store lacks the seed, temperature or width, or the choice, that is asked for."""


class StoreWarning(UserWarning):
    """A store was damaged, and is mended or computed again."""
