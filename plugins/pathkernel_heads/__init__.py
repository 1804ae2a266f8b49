"""Heads of any network: one labelled axis, scores, orders of removal, and their comparison."""
