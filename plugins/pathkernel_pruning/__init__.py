"""Heads of a network scored, chosen, refitted, removed, compared and saved.

``heads`` works on arrays, for any network; ``live`` applies it to PyTorch models, and imports
``pathkernel_models``. Begin with :mod:`pathkernel_pruning.live.head_choice`. A new score of live
models is a function in ``live.head_scores``, one by removing heads is in
``heads.evaluated_scores``; those of trained networks are in ``pathkernel_trained.scores``.
"""
