"""Heads of trained models: which can go, chosen how, at which cost."""
