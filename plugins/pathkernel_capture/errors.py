"""What capture refuses."""

from pathkernel_core.errors import PathkernelError


class CaptureError(PathkernelError, ValueError):
    """Attention of a model, or the batch that it is to be taken on, is not as capture needs it."""
