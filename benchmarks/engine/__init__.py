"""Theories of other papers by one engine: see ``__main__``."""
