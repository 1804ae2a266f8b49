"""Tables and charts of draws, compared with the theory.

It imports ``chains`` and ``corrections``. Begin with :mod:`pathkernel_sampling.draws.views`.
"""
