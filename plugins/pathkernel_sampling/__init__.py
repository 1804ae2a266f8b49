"""Samples of the posterior at finite width, to check the theory against or to replace it.

It imports datasets and views, and needs JAX. Commands and their options are the classes in
:mod:`pathkernel_sampling.results`; a sampler is a line of ``MODELS`` in
:mod:`pathkernel_sampling.models.models`, registered in ``plugin``. Modules are imported where they
are needed, so that the command line starts without JAX.
"""
