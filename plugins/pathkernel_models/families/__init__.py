"""Families of attention modules: what is a head in each."""
