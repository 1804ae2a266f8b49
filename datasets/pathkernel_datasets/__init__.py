"""Labelled studies: what a study is, its store, and how it is computed into it."""
