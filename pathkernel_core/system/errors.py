"""Exceptions and warnings of the core, each a subclass of the matching built-in one."""

from __future__ import annotations

from typing import Any


class PathkernelError(Exception):
    """Base class of errors whose message states cause and remedy for a user."""


class NotPositiveDefiniteError(PathkernelError, ArithmeticError):
    """A kernel or an order parameter could not be factorised."""


class PrecisionError(PathkernelError, TypeError):
    """The array library would silently compute in lower precision than that of the arrays."""


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


class TooLargeError(PathkernelError, ValueError):
    """What is asked for does not fit into memory."""


class NotLocalError(PathkernelError, ValueError):
    """A path is a URL."""


class MissingExtraError(PathkernelError, ImportError):
    """A library of an extra of pathkernel is not installed."""

    def __init__(self, purpose: str, library: str, extra: str):
        super().__init__(
            f"{purpose} needs {library}, which is not installed; install it with: pip install "
            f'"pathkernel[{extra}]"'
        )


class ScaleWarning(UserWarning):
    """Inputs are out of proportion to temperature, variances or labels."""


class CloseMinimaWarning(UserWarning):
    """Another minimum of the action is so close that results of one of them mislead."""


class OverfittingWarning(UserWarning):
    """There are more parameters of attention than labels, so that their maximum overfits."""
