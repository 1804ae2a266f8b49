"""Live PyTorch models: what is a head in any of them, switched off, observed, differentiated.

It imports the core, and of datasets the labels of heads. Begin with
:mod:`pathkernel_models.families`, which lists the models that it knows.
"""

from pathkernel_core.system.extras import import_extra

import_extra("torch", "A live model", "torch", ["torch"])
