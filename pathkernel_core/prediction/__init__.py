"""Scores, cross-validation and derivatives of the predictor (Eq. 9, 29, 30).

It imports ``action`` and what is below. Begin with :mod:`pathkernel_core.prediction.scores`.
"""
