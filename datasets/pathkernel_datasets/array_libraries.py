"""Array libraries by name, as the command line and sweeps know them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pathkernel_core.errors import PathkernelError
from pathkernel_core.hooks import UnknownNameError, unknown_name

EXTRAS = {"numpy": "", "jax": "jax", "torch": "torch", "cupy": "cupy-cuda12x"}
"""Name of each library and the extra of pathkernel that installs it."""

DTYPES = ("float64", "float32")


class MissingLibraryError(PathkernelError, ImportError):
    """An array library is not installed."""


@dataclass(frozen=True)
class ArrayLibrary:
    """A device, in the words of an array library, and a function that puts NumPy arrays on it."""

    device: str
    asarray: Callable[[np.ndarray], Any]


def array_library(name: str, dtype: str = "float64") -> ArrayLibrary:
    """Load an array library; PyTorch, JAX and CuPy use a GPU where they find one.

    Raises
    ------
    UnknownNameError
        If the name or dtype is unknown, with the nearest known one.
    MissingLibraryError
        If the library is not installed, with the command that installs it.
    """
    for option, value, names in (("backend", name, EXTRAS), ("dtype", dtype, DTYPES)):
        if value not in names:
            raise UnknownNameError(unknown_name(option, value, names))
    try:
        module = importlib.import_module({"jax": "jax.numpy"}.get(name, name))
    except ImportError as error:
        raise MissingLibraryError(
            f"the backend {name!r} needs a library that is not installed ({error}); install it "
            f'with: pip install "pathkernel[{EXTRAS[name]}]"'
            + (" (or cupy-cuda13x, for CUDA 13)" if name == "cupy" else "")
        ) from None
    asarray = partial(module.asarray, dtype=getattr(module, dtype))
    device = "cpu"
    if name == "torch":
        device = "cuda" if module.cuda.is_available() else "cpu"
        asarray = partial(asarray, device=device)
    elif name == "jax":
        device = str(importlib.import_module("jax").devices()[0])
    elif name == "cupy":
        properties = module.cuda.runtime.getDeviceProperties(module.cuda.Device().id)
        device = properties["name"].decode()
    return ArrayLibrary(device, asarray)
