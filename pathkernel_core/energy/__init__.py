"""The energy of a problem at an order parameter, in every form (Eq. 12, 34).

It imports ``paths`` and what is below. Begin with :mod:`pathkernel_core.energy.problem`, which
chooses a form; :mod:`pathkernel_core.energy.form` has the interface of all, each in a file.
"""
