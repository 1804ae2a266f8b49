"""Likelihoods of classes: see ``__main__``."""
