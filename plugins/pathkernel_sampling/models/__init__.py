"""Densities of weights, of order parameters, and of the labels given them (Eq. 8, 19).

It imports no other package of the room. Begin with :mod:`pathkernel_sampling.models.models`.
"""
