"""Draws beside the theory: tables and charts.

It imports ``chains`` and ``corrections``. Begin with :mod:`pathkernel_sampling.draws.views`.
"""
