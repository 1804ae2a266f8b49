"""Maps of where a network uses its paths, and learning curves."""
