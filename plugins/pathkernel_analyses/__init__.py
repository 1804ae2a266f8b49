"""Analyses: variables of every study, computed at every grid point from a solution or from data.

It imports ``pathkernel_datasets``. An analysis is a class in a module of its own, registered in
``plugin``; begin with :mod:`pathkernel_analyses.alignment`.
"""
