"""Which heads of a trained network matter, and what is lost without the others."""
