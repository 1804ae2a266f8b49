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


def array_checksum(array: Any) -> str:
    """Checksum of the values of an array."""
    array = np.asarray(array)
    content = str(array.tolist()).encode() if array.dtype.kind in "TUO" else array.tobytes()
    return hashlib.sha256(f"{array.shape}".encode() + content).hexdigest()


def group_checksum(attributes: Mapping[str, Any], arrays: Mapping[str, str]) -> str:
    """Checksum of a group, by its attributes and the checksums of its arrays."""
    described = {key: entry for key, entry in attributes.items() if key != "checksum"}
    text = json.dumps({"attributes": described, "arrays": arrays}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def piece_checksum(values: Mapping[str, Any]) -> tuple[str, int]:
    """Variable that holds the checksum of a piece, and the checksum, by the piece's values."""
    name = next(variable.name for variable in PIECE_CHECKSUMS if variable.name in values)
    arrays = {key: array_checksum(values[key]) for key in values if key != name}
    digest = hashlib.sha256(json.dumps(arrays, sort_keys=True).encode()).digest()
    return name, int.from_bytes(digest[:4], signed=True)  # in 32 bits, which every format holds
