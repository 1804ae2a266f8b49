"""Markov chains: their draws, their files, diagnostics and evidence.

It imports ``models``. Begin with :mod:`pathkernel_sampling.chains.run`.
"""
