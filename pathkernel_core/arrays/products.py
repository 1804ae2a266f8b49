"""Products in the full precision of their arrays.

Settings of the process that lower it, such as autocast, TF32 or JAX's default precision, are meant
for training and must not reach the theory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import array_api_compat
import numpy as np

Array = Any


def matmul(left: Array, right: Array) -> Array:
    """Matrix product in the full precision of the arrays, whatever the process has set."""
    if type(left) is np.ndarray:
        return np.matmul(left, right)
    xp = array_api_compat.array_namespace(left, right)
    if array_api_compat.is_jax_namespace(xp):
        return xp.matmul(left, right, precision="highest")
    with full_precision(left):
        return xp.matmul(left, right)


def vecdot(left: Array, right: Array) -> Array:
    """Product of vectors on the last axis in the full precision of the arrays."""
    xp = array_api_compat.array_namespace(left, right)
    if array_api_compat.is_jax_namespace(xp):
        return xp.vecdot(left, right, precision="highest")
    with full_precision(left):
        return xp.vecdot(left, right)


def full_precision(array: Array) -> Any:
    """Context in which PyTorch neither casts products nor rounds their factors."""
    if not array_api_compat.is_torch_array(array):
        return nullcontext()
    torch, kind = sys.modules["torch"], array.device.type
    stack = ExitStack()
    if torch.is_autocast_enabled(kind):
        stack.enter_context(torch.autocast(kind, enabled=False))
    if array.dtype == torch.float32:
        stack.enter_context(_suspend_rounding(torch, kind))
    return stack


@contextmanager
def _suspend_rounding(torch: Any, kind: str) -> Iterator[None]:
    """Let PyTorch multiply float32 as it is, not as TF32 or bfloat16; restore its settings."""
    matmul = getattr(torch.backends, "cuda" if kind == "cuda" else "mkldnn").matmul
    if not hasattr(matmul, "fp32_precision"):  # before version 2.9
        setting = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(setting)
        return
    setting = matmul.fp32_precision
    if setting == "ieee":
        yield
        return
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = setting
