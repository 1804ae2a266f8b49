"""Learned attention: its density, its samplers and linear attention."""
