"""Samplers of the posterior, and what the theory predicts, against exact samples."""
