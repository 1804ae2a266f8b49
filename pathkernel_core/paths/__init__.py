"""The network, its attention, and inputs along its paths (Eq. 3, 7, 10, 13).

It imports the packages below it, ``arrays`` and ``system``. Begin with
:mod:`pathkernel_core.paths.network`.
"""
