"""The folder of a study: its pieces, its plain Zarr, locks, and what is damaged.

It imports ``variables`` and ``study``. Begin with :mod:`pathkernel_datasets.folder.study_folder`.
"""
