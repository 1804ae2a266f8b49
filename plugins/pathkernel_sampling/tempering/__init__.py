"""Parallel tempering between a fitted mixture of Gaussians and a posterior of several modes.

It imports ``chains``. Begin with :mod:`pathkernel_sampling.tempering.stages`.
"""
