"""Queries and keys drawn with the order parameter or the weights.

It imports all other packages of the room. Begin with :mod:`pathkernel_sampling.attention.attend`.
"""
