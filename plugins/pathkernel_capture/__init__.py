"""Attention of a live PyTorch model: its inputs along paths, and its heads switched off."""

from pathkernel_core.extras import import_extra

import_extra("torch", "Capture of a live model", "torch", ["torch"])

from pathkernel_capture.capture import capture  # noqa: E402
from pathkernel_capture.captured import Captured  # noqa: E402
from pathkernel_capture.errors import CaptureError  # noqa: E402
from pathkernel_capture.removal import heads_off, remove_heads  # noqa: E402

__all__ = ["CaptureError", "Captured", "capture", "heads_off", "remove_heads"]
