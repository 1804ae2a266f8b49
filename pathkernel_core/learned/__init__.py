"""Queries and keys as random variables: their posterior and its maxima.

It imports ``prediction`` and what is below. Begin with :mod:`pathkernel_core.learned.posterior`.
"""
