"""Speed and exactness of the core: evaluations, minimisations, grids and phase boundaries."""
