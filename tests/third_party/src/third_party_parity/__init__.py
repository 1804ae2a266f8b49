"""Parity of a few signs, as a task for pathkernel."""
