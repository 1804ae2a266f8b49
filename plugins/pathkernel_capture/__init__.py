"""Attention of a live PyTorch model: its inputs along paths, its heads scored and switched off."""

from pathkernel_core.extras import import_extra

import_extra("torch", "Capture of a live model", "torch", ["torch"])

from pathkernel_capture.capture import capture  # noqa: E402
from pathkernel_capture.captured import Captured  # noqa: E402
from pathkernel_capture.choice import NetworkChoice, choose_network  # noqa: E402
from pathkernel_capture.comparison import compare_heads  # noqa: E402
from pathkernel_capture.errors import CaptureError  # noqa: E402
from pathkernel_capture.head_choice import (  # noqa: E402
    HeadChoice,
    choose_heads,
    curvature_scores,
    refit_gains,
)
from pathkernel_capture.head_scores import gradient_scores, magnitude_scores  # noqa: E402
from pathkernel_capture.heads_table import list_heads  # noqa: E402
from pathkernel_capture.layout import AttentionHeads  # noqa: E402
from pathkernel_capture.removal import heads_off, remove_heads  # noqa: E402
from pathkernel_capture.theory_rises import theory_rises  # noqa: E402

__all__ = [
    "AttentionHeads",
    "CaptureError",
    "Captured",
    "HeadChoice",
    "NetworkChoice",
    "capture",
    "choose_heads",
    "choose_network",
    "compare_heads",
    "curvature_scores",
    "gradient_scores",
    "heads_off",
    "list_heads",
    "magnitude_scores",
    "refit_gains",
    "remove_heads",
    "theory_rises",
]
