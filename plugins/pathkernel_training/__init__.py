"""Training of attention networks by gradient descent, in a form whose cost hardly grows with N."""
