"""The part of a dataset that tables and figures show.

It imports ``variables``. Begin with :mod:`pathkernel_datasets.selection.selection`.
"""
