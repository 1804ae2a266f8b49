"""Statistical mechanics of attention paths: the core and studies by one name, loaded when used.

>>> import pathkernel
>>> network = pathkernel.Network(heads=(2, 2), widths=10)
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

_STUDIES = {
    "Study": "pathkernel_datasets.study",
    "StoredStudy": "pathkernel_datasets.stored_study",
    "compute_result": "pathkernel_datasets.stored_study",
    "by_value": "pathkernel_datasets.swept_option",
    "gains": "pathkernel_datasets.gains",
    "load_plugins": "pathkernel_core.hooks",
    "open_store": "pathkernel_datasets.store",
    "run_study": "pathkernel_datasets.sweep",
    "study_views": "pathkernel_views.study_views",
}


def __getattr__(name: str) -> Any:
    """Look a name up among the studies', or else the core's."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("pathkernel")
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _STUDIES:
        return getattr(importlib.import_module(_STUDIES[name]), name)
    core = importlib.import_module("pathkernel_core")
    if name in core.__all__:
        return getattr(core, name)
    nearest = difflib.get_close_matches(name, __dir__(), n=1)
    hint = f". Did you mean: {nearest[0]!r}?" if nearest else ""
    raise AttributeError(f"module 'pathkernel' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    core = importlib.import_module("pathkernel_core")
    return sorted([*core.__all__, *_STUDIES])
