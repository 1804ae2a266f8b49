"""Tasks: hidden Markov chains, attention that must be found, and data and heads of one's own.

It imports the core and ``pathkernel_datasets``. A task is a class in a module of its own, and its
options are fields declared with ``option``: begin with :mod:`pathkernel_tasks.hidden_markov`.
"""
