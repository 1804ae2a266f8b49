"""Results of a study, such as samples: computed part by part, and stored in its folder.

It imports ``run``, ``selection`` and what is below. Begin with
:mod:`pathkernel_datasets.results.run_result`.
"""
