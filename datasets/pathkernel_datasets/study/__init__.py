"""What a study is: its options, its identity, and the data of a seed.

It imports the core only. Begin with :mod:`pathkernel_datasets.study.study`.
"""
