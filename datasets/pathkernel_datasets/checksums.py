"""Checksums of a store: of every group, and of every piece of its study.

Zarr notices a chunk that is not as it was written; these notice one that is missing or another's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pathkernel_core.analysis import Variable

_MEANING = "checksum of all values of this piece of the study"
PIECE_CHECKSUMS = (
    Variable("checksum", ("seed", "width"), _MEANING),
    Variable("checksum_data", ("seed",), _MEANING),
)
"""Variables of every study: of pieces at a width, and of those that no width enters."""


def values_checksum(values: Mapping[str, Any]) -> int:
    """Checksum of arrays by their names, in 32 bits, which every format holds."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.asarray(values[name])
        is_text = array.dtype.kind in "TUO"
        digest.update(f"{name}{array.shape}".encode())
        digest.update(str(array.tolist()).encode() if is_text else array.tobytes())
    return int.from_bytes(digest.digest()[:4], signed=True)


def group_checksum(attributes: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Checksum of a group: of its attributes, but for those that xarray writes, and of values."""
    content = {key: entry for key, entry in attributes.items() if key != "coordinates"}
    content["checksum"] = values_checksum(values)
    text = json.dumps(content, sort_keys=True, default=lambda value: value.tolist())
    return hashlib.sha256(text.encode()).hexdigest()


def piece_checksum(values: Mapping[str, Any]) -> tuple[str, int]:
    """Variable that holds the checksum of a piece, and the checksum, by the piece's values."""
    name = next(variable.name for variable in PIECE_CHECKSUMS if variable.name in values)
    return name, values_checksum({key: values[key] for key in values if key != name})
