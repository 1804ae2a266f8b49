"""Labelled datasets of the theory's predictions: schema, store, sweeps, tables and figures."""
