"""Labelled studies: what a study is, its variables, its folder, a run, and results.

It imports the core only. Begin with :mod:`pathkernel_datasets.study.study` and
:mod:`pathkernel_datasets.run.run_study`.
"""
