"""Heads of any network, as arrays: scores, orders of removal, games, and choices by a loss's form.

It needs no PyTorch. Begin with :mod:`pathkernel_pruning.heads.orders`.
"""
