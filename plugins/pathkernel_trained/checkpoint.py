"""Checkpoints: safetensors files of a trained network, with all its weights or along its paths.

Every file is a heads file (:mod:`pathkernel_tasks.heads_file`) that also holds either the other
weights, or the products of them that the theory, comparison and pruning use, a hundredth of the
weights of a wide network. Layers are numbered from 1, and may differ in their numbers of heads H:

====================  ==============  ==============================================================
``queries.1`` …       (H, G, N_0)     queries of each layer
``keys.1`` …          (H, G, N_0)     keys of each layer
``scale``             () or (L,)      factor of the scores, 1/√G unless trained otherwise
``labels``            (3, N_0)        label vectors of −, + and ?, if the task has them
``projection``        (N, N_0)        V⁰
``values.1`` …        (H, N, N)       values of each layer
``readout``           (N,)            a
or
``width``             ()              width N of the hidden layers
``path_weights``      (n, N_0)        products w_π of the weights along the paths
``order_parameter``   (n, n)          U of the weights (Eq. 13)
``value_norms.1`` …   (H,)            Frobenius norms of the values of each layer
====================  ==============  ==============================================================

A training's file also holds the state of the optimiser and the learning curves. The header has
metadata of the network as JSON, and a checksum of them and of all arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.arrays.backend import to_host
from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.local_files import is_damage
from pathkernel_tasks.array_files import read_arrays
from pathkernel_tasks.array_guards import Shape, check_shapes, real_numbers
from pathkernel_trained.network import LAYERED, NetworkShape, Weights, join_layers, shape_of

FORMAT = "pathkernel paths 1"

_PLAIN = ("projection", "readout")
_CHECKSUM = "sha256"  # entry of the header
_HEADS_ONLY = (
    "A file that holds queries and keys only is for: pathkernel run TASK --heads; comparison and "
    "pruning take values and readout, too; the theory's score of every head is in study.zarr, "
    "as head_score. Train a network with: pathkernel train one-shot-images, "
    "or write your own with pathkernel.trained.save_checkpoint"
)


@dataclass(frozen=True)
class Checkpoint:
    """A network with all its weights, and its metadata.

    Attributes
    ----------
    weights : mapping of str to array
        Weights of any array library; PyTorch's parameters are detached. See
        :meth:`pathkernel_trained.network.NetworkShape.weight_shapes`.
    label_vectors : array, shape (3, N_0), or None
        Label vectors of −, + and ? that the network was trained with, if its task has them.
    about : mapping
        Metadata for JSON, such as ``settings`` and ``step`` of the training.
    further : mapping of str to array
        Other arrays of the file, with which a training resumes.
    scale : float, optional
        Factor of the scores, by default 1/√G.
    """

    weights: Weights
    label_vectors: np.ndarray | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    further: Mapping[str, np.ndarray] = field(default_factory=dict)
    scale: float | None = None

    def __post_init__(self):
        if self.scale is None:
            object.__setattr__(self, "scale", self.shape.scale)

    @property
    def shape(self) -> NetworkShape:
        """Sizes of the network."""
        return shape_of(self.weights)


def save_checkpoint(path: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Write a checkpoint with all its weights, and replace an older file atomically.

    Raises a ValueError if the path does not end in ``.safetensors``, and an OSError if the file
    cannot be written; an older one is then unchanged.
    """
    arrays = dict(checkpoint.further)
    for name in _PLAIN:
        arrays[name] = to_host(checkpoint.weights[name])
    for name in LAYERED:
        for number, array in enumerate(checkpoint.weights[name], start=1):
            arrays[f"{name}.{number}"] = to_host(array)
    write_network(path, arrays, checkpoint.scale, checkpoint.label_vectors, checkpoint.about)


def write_network(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    scale: float | list[float] | None,
    label_vectors: np.ndarray | None,
    about: Mapping[str, Any],
) -> None:
    """Write arrays and metadata of a network; errors as for :func:`save_checkpoint`."""
    from safetensors.numpy import save

    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"checkpoint {str(path)!r} must end in .safetensors")
    arrays = {**arrays, "scale": np.array(scale)}
    if label_vectors is not None:
        arrays["labels"] = label_vectors
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(dict(about), sort_keys=True, allow_nan=False)
    header = {"format": FORMAT, "about": text, _CHECKSUM: _checksum(arrays, text)}
    content = save(arrays, header)
    with replace_file(path) as partial:
        partial.write_bytes(content)


def _checksum(arrays: Mapping[str, np.ndarray], about: str) -> str:
    """SHA-256 of metadata as JSON, and of names, types, shapes and values of arrays."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def read_network(
    path: str | os.PathLike, *, needs_checksum: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read arrays and metadata of a network's file, and compare them with its checksum.

    Files that other programs write may have none, unless ``needs_checksum``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, or holds no network, but queries and keys only, for example.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"checkpoint {str(path)!r} must end in .safetensors. {_HEADS_ONLY}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    version = _file_version(path)
    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
        if is_network := header.get("format") == FORMAT:
            about = json.loads(header["about"])
            if not isinstance(about, dict):
                raise ValueError(f"metadata of the network must be a mapping, not {about!r:.50}")
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        if not is_damage(error):
            raise
        raise ValueError(f"checkpoint {str(path)!r} is damaged: {error}") from error
    if not is_network:
        raise ValueError(
            f"{str(path)!r} is no checkpoint of a training: its header must say {FORMAT!r}, but "
            f"says {header.get('format')!r}. {_HEADS_ONLY}"
        )
    arrays = read_arrays(path, "checkpoint")[0]
    # a training that runs may have replaced the file between its header and its arrays
    if _file_version(path) != version:
        return read_network(path, needs_checksum=needs_checksum)
    is_checked = needs_checksum or _CHECKSUM in header
    if is_checked and header.get(_CHECKSUM) != _checksum(arrays, header["about"]):
        raise ValueError(
            f"checkpoint {str(path)!r} is damaged: its values are not as they were written; "
            "restore it from a copy, or train again into another folder"
        )
    return arrays, about


def _file_version(path: Path) -> tuple[int, int]:
    """Number and time of a file, both of which change when it is replaced."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def read_checkpoint(path: str | os.PathLike, *, needs_checksum: bool = False) -> Checkpoint:
    """Read and check a checkpoint with all its weights; for the checksum see ``read_network``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, no checkpoint or one along its paths, or an array is missing, of a wrong
        shape or type, or not finite. The message names the file and the array.
    """
    arrays, about = read_network(path, needs_checksum=needs_checksum)
    if "path_weights" in arrays:
        raise ValueError(
            f"{str(path)!r} holds a network along its paths, without its weights. Train it again "
            "to have them: pathkernel train one-shot-images"
        )
    return checked_checkpoint(path, arrays, about)


def checked_checkpoint(
    path: str | os.PathLike, arrays: dict[str, np.ndarray], about: Mapping[str, Any]
) -> Checkpoint:
    """Checkpoint from the arrays of a file with all weights; raises as ``read_checkpoint``."""
    title = f"checkpoint {str(path)!r}"
    counts = [sum(key.startswith(f"{name}.") for key in arrays) for name in LAYERED]
    shapes: dict[str, Shape] = {"projection": ("N", "N_0"), "readout": ("N",), "scale": ()}
    for layer in range(1, max(1, *counts) + 1):
        shapes[f"values.{layer}"] = (f"H_{layer}", "N", "N")
        shapes |= dict.fromkeys((f"queries.{layer}", f"keys.{layer}"), (f"H_{layer}", "G", "N_0"))
    shapes |= {"labels": (3, "N_0")} if "labels" in arrays else {}
    check_shapes(title, arrays, shapes)
    for name in shapes:
        real_numbers(f"{title}: {name!r}", arrays[name], whole=False)
    weights: dict[str, Any] = {name: arrays.pop(name) for name in _PLAIN}
    for name in LAYERED:
        layers = [arrays.pop(f"{name}.{layer}") for layer in range(1, max(1, *counts) + 1)]
        weights[name] = join_layers(layers)
    scale, labels = float(arrays.pop("scale")), arrays.pop("labels", None)
    if scale <= 0:
        raise ValueError(f"{title}: 'scale' must be positive, such as 1/√G, but is {scale:g}")
    return Checkpoint(weights, labels, about, arrays, scale)
