"""Names of arguments in error messages, before Python 3.13, which suggests the nearest itself."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def suggest_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Let the error on an unknown argument of a function name the nearest one that there is."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def suggesting(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs.keys() - set(known):
            raise TypeError(_unknown(function, name, known))
        return function(*args, **kwargs)

    return suggesting


def _unknown(function: Callable[..., Any], name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    where = function.__qualname__.removesuffix(".__init__")
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"it takes {', '.join(known)}"
    return f"{where} has no argument {name!r}; {hint.replace('self, ', '')}"
