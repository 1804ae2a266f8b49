"""Texts of Python's distribution as characters, for language models."""

from __future__ import annotations

import importlib.util

import numpy as np

SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))
"""Characters of the vocabulary; all others count as spaces."""

_MODULES = (
    *("argparse", "ast", "calendar", "codecs", "configparser", "csv", "dataclasses", "difflib"),
    *("doctest", "enum", "fractions", "functools", "gettext", "heapq", "inspect", "ipaddress"),
    *("locale", "mailbox", "optparse", "pdb", "pickle", "pprint", "random", "shutil"),
    *("statistics", "string", "tarfile", "textwrap", "threading", "tokenize", "typing", "uuid"),
)


def python_manual() -> str:
    """Chapters of Python's language reference, which its ``help`` shows."""
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs))  # sections are parts of other chapters, too


def library_code() -> str:
    """Source code of some modules of the standard library."""
    specs = (importlib.util.find_spec(name) for name in _MODULES)
    sources = [
        spec.loader.get_source(spec.name) for spec in specs if spec is not None and spec.loader
    ]
    return "\n".join(filter(None, sources))


def encode(text: str) -> np.ndarray:
    """Positions of the characters in :data:`SYMBOLS`, int64."""
    numbers = {character: number for number, character in enumerate(SYMBOLS)}
    space = numbers[" "]
    return np.array([numbers.get(character, space) for character in text], dtype=np.int64)
