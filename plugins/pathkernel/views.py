"""Tables and charts of datasets."""

from __future__ import annotations

from pathkernel import names


def __getattr__(name: str) -> object:
    return names.imported(__name__, name)


def __dir__() -> list[str]:
    return names.listed_names(__name__)
