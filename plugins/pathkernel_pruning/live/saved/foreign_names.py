"""Names in a configuration of transformers by which it has models, code or weights loaded.

Some are left out, since the model is built without them. Others decide what is built, and are
refused unless they name something of an installed library.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from pathkernel_core.system.text import printable
from pathkernel_models.errors import CaptureError

# keys by which a configuration has transformers load code or weights from elsewhere
_FOREIGN = re.compile("auto_map|implementation|quantization_config|use_kernels|custom_pipelines")
_ARCHITECTURE = re.compile(r"\w+(\.\w+)?")  # of timm; a prefix such as hf-hub: is a download


def without_foreign(value: Any) -> Any:
    """Remove all by which a configuration names code or weights to load."""
    if isinstance(value, list):
        return [without_foreign(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: False if key == "use_pretrained_backbone" else without_foreign(item)
        for key, item in value.items()
        if not _FOREIGN.search(key)
    }


def check_names(kind: str, options: dict[str, Any]) -> None:
    """Raise a CaptureError if a configuration names models that transformers would look for.

    Parameters
    ----------
    kind : str
        Name of the model's class.
    options : dict
        The configuration.
    """
    entries: list[Any] = [options]
    while entries:
        entry = entries.pop()
        if isinstance(entry, list):
            entries += entry
        if not isinstance(entry, dict):
            continue
        entries += entry.values()
        is_timm = entry.get("model_type") == "timm_backbone" or kind == "TimmBackbone"
        for key, value in entry.items():
            if not _is_own(key, value, is_timm):
                raise CaptureError(
                    f"the configuration says {key} = {printable(repr(value))[:80]}, which names "
                    f"no part of {printable(kind)[:60]} in an installed library; give the whole "
                    "model, load_model(folder, model=…)"
                )


def _is_own(key: str, value: Any, is_timm: bool) -> bool:
    """Whether an entry names nothing outside of the installed libraries."""
    if key in ("dtype", "torch_dtype") and value is not None:
        return isinstance(value, str) and isinstance(vars(torch).get(value), torch.dtype)
    if key == "backbone" and isinstance(value, str):
        return is_timm and _ARCHITECTURE.fullmatch(value) is not None
    if key == "architecture" and isinstance(value, str):
        return _ARCHITECTURE.fullmatch(value) is not None
    if key == "model_args" and value is not None:  # of timm.create_model
        return isinstance(value, dict) and all(
            name == "global_pool" or _is_numeric(item) for name, item in value.items()
        )
    return True


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, int | float | None) for item in value)
    return isinstance(value, int | float | None)
