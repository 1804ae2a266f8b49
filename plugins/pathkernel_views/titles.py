"""Titles of the axes of a study, the same in all charts."""

from __future__ import annotations

from pathkernel_datasets.study.study import describe_option

_TITLES = {
    "width": "width N",
    "temperature": "temperature T",
    "variance": "prior variance σ²",
    "input_scale": "scale of the inputs",
    "examples": "training examples P",
}


def axis_title(name: str) -> str:
    """Return the title of an axis or option, with its symbol if it has one."""
    return _TITLES.get(name, describe_option(name))
