"""The network, its attention, and inputs along its paths (Eq. 3, 7, 10, 13).

It imports ``arrays`` and ``system``. Begin with :mod:`pathkernel_core.paths.network`. A new
attention layer is a class in ``layers``; to be learned it also needs its gradient in ``pullback``.
"""
