"""Heads of a live PyTorch model: scored, chosen, refitted, removed, compared, saved.

It imports ``pathkernel_models`` and ``pathkernel_pruning.heads``. Begin with
:mod:`pathkernel_pruning.live.head_choice`.
"""

from pathkernel_core.system.extras import import_extra

import_extra("torch", "Pruning of a live model", "torch", ["torch"])
