"""The theory's picture of a live PyTorch model: its inputs along paths, its N, T and scale.

It imports ``pathkernel_models``. Begin with :mod:`pathkernel_capture.capture`.
"""

from pathkernel_core.system.extras import import_extra

import_extra("torch", "Capture of a live model", "torch", ["torch"])
