"""Trained networks along their paths: their U, its comparison with the theory, removal of heads.

It imports tasks, views and ``pathkernel_pruning``. The scores of ``prune`` are the table in
:mod:`pathkernel_trained.scores`; begin with :mod:`pathkernel_trained.path_network`.
"""
