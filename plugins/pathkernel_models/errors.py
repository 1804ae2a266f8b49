"""Error of capture."""

from pathkernel_core.system.errors import PathkernelError


class CaptureError(PathkernelError, ValueError):
    """A model, or a batch of it, that capture does not support."""
