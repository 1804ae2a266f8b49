"""Minima followed through parameters: crossings, spinodals, and their curves.

It imports ``action`` and what is below. Begin with :mod:`pathkernel_core.phases.coexistence`.
"""
