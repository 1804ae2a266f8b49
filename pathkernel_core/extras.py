"""Modules that need libraries of an extra of pathkernel."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from types import ModuleType

from pathkernel_core.errors import MissingExtraError


def import_extra(module: str, purpose: str, extra: str, libraries: Collection[str]) -> ModuleType:
    """Import a module that needs an extra, or say how to install it.

    Parameters
    ----------
    module : str
        Name of the module.
    purpose : str
        What needs the extra, as the beginning of a sentence.
    extra : str
        Name of the extra.
    libraries : collection of str
        Import names of the libraries that the extra installs.

    Raises
    ------
    MissingExtraError
        If one of those libraries is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in libraries:
            raise
        raise MissingExtraError(purpose, str(error.name), extra) from None
