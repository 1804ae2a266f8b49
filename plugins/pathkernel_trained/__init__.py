"""Trained networks of any task: checkpoint, own U, comparison with the theory, removal of heads."""
