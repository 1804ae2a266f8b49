"""The next order in 1/N, around the saddle of the exact hierarchy.

It imports ``models`` and ``chains``. Begin with
:mod:`pathkernel_sampling.corrections.next_order.next_order`.
"""
