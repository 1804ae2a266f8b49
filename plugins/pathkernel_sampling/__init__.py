"""Samples of the posterior at finite width, to check the theory against or to replace it.

Needs ``pip install "pathkernel[sampling]"``. Submodules are imported where they are needed, so that
the command line starts without JAX.
"""
