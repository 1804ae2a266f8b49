"""Heads of a network chosen, refitted, removed, compared and saved.

``heads`` works on arrays, for any network: scores, orders of removal, choices. ``live`` applies it
to PyTorch models. It imports ``pathkernel_models``, labels and views. Begin with
:mod:`pathkernel_pruning.live.head_choice`.
"""
