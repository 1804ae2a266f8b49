"""Maps of where a network uses its paths, and learning curves.

It imports datasets and views. Begin with :mod:`pathkernel_phases.results`, which has the commands
and their options.
"""
