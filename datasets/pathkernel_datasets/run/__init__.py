"""A run: pieces that a folder lacks are computed, here or by workers, and published.

It imports ``folder`` and what is below. Begin with :mod:`pathkernel_datasets.run.run_study`.
"""
