"""Exceptions of the core. All of them subclass the built-in exception a caller would expect."""

from __future__ import annotations

from typing import Any


class NotPositiveDefiniteError(ArithmeticError):
    """A kernel or an order parameter could not be factorised."""


class PrecisionError(TypeError):
    """The array library would silently compute in a lower precision than the arrays ask for."""


class MinimisationError(RuntimeError):
    """The action was not minimised to the tolerance.

    Attributes
    ----------
    solution : Solution
        The last point reached, with its status, counts and history.
    """

    def __init__(self, message: str, solution: Any):
        super().__init__(message)
        self.solution = solution
