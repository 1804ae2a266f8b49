"""Contracts of plugins, the hooks that find them, and checks for their authors.

It imports all of the core. Begin with :mod:`pathkernel_core.contracts.hooks`.
"""
