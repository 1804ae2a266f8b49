"""Exceptions of the core. All of them subclass the built-in exception a caller would expect."""

from __future__ import annotations

from typing import Any


class PathkernelError(Exception):
    """Base class of errors whose message tells a user what is wrong and what to do."""


class NotPositiveDefiniteError(PathkernelError, ArithmeticError):
    """A kernel or an order parameter could not be factorised."""


class PrecisionError(PathkernelError, TypeError):
    """The array library would silently compute in a lower precision than the arrays ask for."""


class MinimisationError(PathkernelError, RuntimeError):
    """The action was not minimised to the tolerance.

    Attributes
    ----------
    solution : Solution
        The last point reached, with its status, counts and history.
    """

    def __init__(self, message: str, solution: Any):
        super().__init__(message)
        self.solution = solution


class MissingExtraError(PathkernelError, ImportError):
    """A library that an extra of pathkernel installs is not there."""

    def __init__(self, purpose: str, library: str, extra: str):
        super().__init__(
            f"{purpose} needs {library}, which is not installed; install it with: pip install "
            f'"pathkernel[{extra}]"'
        )


class ScaleWarning(UserWarning):
    """Inputs are out of proportion to temperature, variances or labels."""


class CloseMinimaWarning(UserWarning):
    """Another minimum of the action lies so close that a result of one of them misleads."""
