"""The variables of a study: names, dimensions, meanings, and the functions that compute them.

It imports ``study``. Begin with :mod:`pathkernel_datasets.variables.quantities`.
"""
