"""Analyses that ship with pathkernel."""
