"""Labelled studies: what a study is, its folder, and how it is computed into it."""
