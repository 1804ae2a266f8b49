"""Models in folders: what is written, how it is compared, and how a model is built from it."""
