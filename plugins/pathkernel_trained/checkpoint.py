"""Checkpoints: safetensors files of a network, and of a training to go on with.

Arrays of a network, layers numbered from 1; queries, keys, scale and labels are those of a heads
file (:mod:`pathkernel_tasks.heads_file`), so that a checkpoint is one:

==================  ==================  ============================================================
``projection``      (N, N_0)            V⁰
``values.1`` …      (H, N, N)           values of each layer
``queries.1`` …     (H, G, N_0)         queries of each layer
``keys.1`` …        (H, G, N_0)         keys of each layer
``readout``         (N,)                a
``scale``           ()                  factor of the scores, 1/√G unless trained otherwise
``labels``          (3, N_0)            label vectors of −, + and ?, if the task has them
==================  ==================  ============================================================

Layers may have different numbers of heads H. A training's file further holds the state of the
optimiser and the learning curves. What is known about the network is JSON in the header of the
file. Files are written beside their place and moved into it, so that there is a whole one at any
moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pathkernel_core.backend import to_host
from pathkernel_datasets.atomic import replacing
from pathkernel_tasks.array_files import read_arrays
from pathkernel_trained.network import LAYERED, NetworkShape, Weights, join_layers, shape_of

FORMAT = "pathkernel network 1"
PATHS = "pathkernel paths 1"
"""Format of a file of :mod:`pathkernel_trained.path_network`."""

_PLAIN = ("projection", "readout")
_HEADS_ONLY = (
    "A file that holds queries and keys only goes to: pathkernel run TASK --heads; comparison and "
    "pruning take values and readout, too; the theory's score of every head is in a study's store, "
    "as head_score. Train a network with: pathkernel train one-shot-images, "
    "or write your own with pathkernel_trained.checkpoint.save_checkpoint"
)


@dataclass(frozen=True)
class Checkpoint:
    """A network and what is known about it.

    Attributes
    ----------
    weights : mapping of str to array
        Of any array library; what PyTorch would differentiate is taken detached. See
        :meth:`pathkernel_trained.network.NetworkShape.weight_shapes`.
    label_vectors : array, shape (3, N_0), or None
        Label vectors of −, + and ? that the network was trained with, if its task has them.
    about : mapping
        ``settings`` of the training, ``step``, ``validation_accuracy`` and so on, as JSON holds it.
    further : mapping of str to array
        Other arrays of the file, of a training to go on with.
    scale : float, optional
        Factor of the scores; 1/√G if left out.
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
    """Write a checkpoint; replaces an older one in one stroke.

    Raises
    ------
    ValueError
        If the path does not end in ``.safetensors``.
    OSError
        If the file cannot be written; an older one is then still there.
    """
    arrays = dict(checkpoint.further)
    for name in _PLAIN:
        arrays[name] = np.ascontiguousarray(to_host(checkpoint.weights[name]))
    for name in LAYERED:
        for number, array in enumerate(checkpoint.weights[name], start=1):
            arrays[f"{name}.{number}"] = np.ascontiguousarray(to_host(array))
    arrays["scale"] = np.array(checkpoint.scale)
    if checkpoint.label_vectors is not None:
        arrays["labels"] = np.ascontiguousarray(checkpoint.label_vectors)
    write_network(path, arrays, FORMAT, checkpoint.about)


def write_network(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    file_format: str,
    about: Mapping[str, Any],
) -> None:
    """Write arrays of a network, and what is known about it; errors as for ``save_checkpoint``."""
    from safetensors.numpy import save

    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"checkpoint {str(path)!r} must end in .safetensors")
    known = json.dumps(dict(about), sort_keys=True, allow_nan=False)
    content = save(dict(arrays), metadata={"format": file_format, "about": known})
    with replacing(path) as partial:
        partial.write_bytes(content)


def read_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Read and check a checkpoint.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged or no checkpoint, or an array is missing, of a wrong shape or type, or not
        finite. The message names the file and the array.
    """
    found, about = read_header(path)
    if found != FORMAT:
        raise ValueError(
            f"{str(path)!r} holds a network along its paths, without its weights. Train it again "
            "to have them: pathkernel train one-shot-images"
        )
    arrays, _ = read_arrays(path, "checkpoint")
    try:
        weights = {name: arrays.pop(name) for name in _PLAIN}
        for name in LAYERED:
            layers = []
            while f"{name}.{len(layers) + 1}" in arrays:
                layers.append(arrays.pop(f"{name}.{len(layers) + 1}"))
            if not layers:
                raise KeyError(f"{name}.1")
            weights[name] = join_layers(layers)
        shape = shape_of(weights)
        scale, labels = arrays.pop("scale"), arrays.pop("labels", None)
        if scale.shape or not 0 < scale < np.inf:
            raise ValueError(
                f"scale must be one positive number, such as 1/√G = {shape.scale:g}, but is {scale}"
            )
        if labels is not None and labels.shape != (3, weights["projection"].shape[1]):
            raise ValueError(f"labels must have one row for each of −, + and ?, not {labels.shape}")
    except KeyError as error:
        raise ValueError(f"checkpoint {str(path)!r} lacks {error}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"checkpoint {str(path)!r} is damaged: {error}") from error
    held_labels = () if labels is None else labels
    for name, held in (*weights.items(), ("labels", held_labels)):
        for array in held if isinstance(held, tuple) else (held,):
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ValueError(
                    f"checkpoint {str(path)!r}: {name} must hold finite floating-point numbers"
                )
    return Checkpoint(weights, labels, about, arrays, float(scale))


def read_header(path: str | os.PathLike) -> tuple[str, dict[str, Any]]:
    """Format of a network's file, ``FORMAT`` or ``PATHS``, and what is known about the network.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, or holds no network but, for example, queries and keys only.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"checkpoint {str(path)!r} must end in .safetensors. {_HEADS_ONLY}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
        if header.get("format") in (FORMAT, PATHS):
            about = json.loads(header["about"])
            if not isinstance(about, dict):
                raise ValueError(f"what is known about it must be a mapping, not {about!r:.50}")
            return header["format"], about
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"checkpoint {str(path)!r} is damaged: {error}") from error
    raise ValueError(
        f"{str(path)!r} is no checkpoint of a training: its header must say {FORMAT!r}, but says "
        f"{header.get('format')!r}. {_HEADS_ONLY}"
    )
