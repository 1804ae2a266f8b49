"""Import of modules that need an extra of pathkernel."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from types import ModuleType

from pathkernel_core.system.errors import MissingExtraError


def import_extra(module: str, purpose: str, extra: str, libraries: Collection[str]) -> ModuleType:
    """Import a module whose ``libraries`` an extra installs.

    Raises
    ------
    MissingExtraError
        If one of the libraries is missing; its message begins with the purpose and ends with the
        command that installs the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in libraries:
            raise
        raise MissingExtraError(purpose, str(error.name), extra) from None
