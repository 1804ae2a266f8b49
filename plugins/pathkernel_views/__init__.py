"""How studies look: tables, charts and the HTML report.

It imports ``pathkernel_datasets``. A chart of a study is drawn in
:mod:`pathkernel_views.study_charts` and listed, with its caption, in
:mod:`pathkernel_views.study_views`; others draw with :mod:`pathkernel_views.primitives`.
"""
