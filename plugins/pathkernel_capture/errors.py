"""Error of capture."""

from pathkernel_core.errors import PathkernelError


class CaptureError(PathkernelError, ValueError):
    """A model, or a batch of it, that capture does not support."""
