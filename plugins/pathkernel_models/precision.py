"""Precision of the arrays of a model's run."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
"""Half precision, by weights or by autocast: three digits."""


def is_half(*dtypes: torch.dtype) -> bool:
    """Whether one of these is half precision."""
    return any(dtype in HALF for dtype in dtypes)


def lowest_precision(*tensors: Tensor | None) -> torch.dtype:
    """Return the floating type of fewest digits among tensors, by which their products are."""
    dtypes = [value.dtype for value in tensors if value is not None and value.is_floating_point()]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative difference due to rounding."""
    return 0.05 if dtype in HALF else 1e-3


def widen(values: Tensor) -> Tensor:
    """Values in float32 at least, for products."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
