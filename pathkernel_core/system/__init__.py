"""Files, memory, threads, messages and progress: nothing of the theory.

It imports no other package of the core. Begin with :mod:`pathkernel_core.system.errors`.
"""
