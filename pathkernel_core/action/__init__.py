"""The action, its minimum, and what follows at it (Eq. 11, 32).

It imports ``energy`` and what is below. Begin with :mod:`pathkernel_core.action.minimise`.
"""
