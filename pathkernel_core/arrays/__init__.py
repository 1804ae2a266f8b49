"""Array libraries behind one namespace: exact products, checked numbers.

It imports only :mod:`pathkernel_core.system`. Begin with :mod:`pathkernel_core.arrays.backend`. A
study's ``--backend`` is loaded by ``pathkernel_datasets.study.prepared``.
"""
