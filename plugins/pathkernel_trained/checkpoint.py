"""Checkpoints: safetensors files of a trained network, with all its weights or along its paths.

Every file is a file of heads (:mod:`pathkernel_tasks.heads_file`) that also holds either the other
weights, or all that the theory, comparison and pruning ask of them, which is a hundredth of the
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

A training's file further holds the state of the optimiser and the learning curves. The header has
facts about the network as JSON.
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
from pathkernel_tasks.array_guards import real_numbers
from pathkernel_trained.network import LAYERED, NetworkShape, Weights, join_layers, shape_of

FORMAT = "pathkernel paths 1"

_PLAIN = ("projection", "readout")
_HEADS_ONLY = (
    "A file that holds queries and keys only goes to: pathkernel run TASK --heads; comparison and "
    "pruning take values and readout, too; the theory's score of every head is in a study's store, "
    "as head_score. Train a network with: pathkernel train one-shot-images, "
    "or write your own with pathkernel_trained.checkpoint.save_checkpoint"
)


@dataclass(frozen=True)
class Checkpoint:
    """A network with all its weights, and facts about it.

    Attributes
    ----------
    weights : mapping of str to array
        Of any array library; what PyTorch would differentiate is taken detached. See
        :meth:`pathkernel_trained.network.NetworkShape.weight_shapes`.
    label_vectors : array, shape (3, N_0), or None
        Label vectors of −, + and ? that the network was trained with, if its task has them.
    about : mapping
        ``settings`` of the training, ``step`` and so on, as JSON holds it.
    further : mapping of str to array
        Other arrays of the file, of a training to resume.
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
    """Write a checkpoint with all its weights; replaces an older one in one stroke.

    Raises a ValueError if the path does not end in ``.safetensors``, and an OSError if the file
    cannot be written; an older one is then still there.
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
    """Write arrays of a network, and facts about it; errors as for :func:`save_checkpoint`."""
    from safetensors.numpy import save

    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"checkpoint {str(path)!r} must end in .safetensors")
    arrays = {**arrays, "scale": np.array(scale)}
    if label_vectors is not None:
        arrays["labels"] = label_vectors
    header = {
        "format": FORMAT,
        "about": json.dumps(dict(about), sort_keys=True, allow_nan=False),
    }
    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, header)
    with replacing(path) as partial:
        partial.write_bytes(content)


def read_network(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays of a network's file, and facts about it.

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
        if is_network := header.get("format") == FORMAT:
            about = json.loads(header["about"])
            if not isinstance(about, dict):
                raise ValueError(f"facts about the network must be a mapping, not {about!r:.50}")
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"checkpoint {str(path)!r} is damaged: {error}") from error
    if not is_network:
        raise ValueError(
            f"{str(path)!r} is no checkpoint of a training: its header must say {FORMAT!r}, but "
            f"says {header.get('format')!r}. {_HEADS_ONLY}"
        )
    return read_arrays(path, "checkpoint")[0], about


def read_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Read and check a checkpoint with all its weights.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, no checkpoint or one along its paths, or an array is missing, of a wrong
        shape or type, or not finite. The message names the file and the array.
    """
    arrays, about = read_network(path)
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
    try:
        weights: dict[str, Any] = {name: arrays.pop(name) for name in _PLAIN}
        weights |= {name: join_layers(numbered(arrays, name)) for name in LAYERED}
        shape = shape_of(weights)
        scale, labels = arrays.pop("scale"), arrays.pop("labels", None)
    except KeyError as error:
        raise ValueError(f"{title} lacks {error}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{title} is damaged: {error}") from error
    if scale.shape or not 0 < scale < np.inf:
        raise ValueError(
            f"{title}: scale must be one positive number, such as 1/√G = {shape.scale:g}, but is "
            f"{scale}"
        )
    if labels is not None and labels.shape != (3, weights["projection"].shape[1]):
        raise ValueError(
            f"{title}: labels must have one row for each of −, + and ?, not {labels.shape}"
        )
    for name, layers in (*weights.items(), ("labels", () if labels is None else labels)):
        for array in layers if isinstance(layers, tuple) else (layers,):
            real_numbers(f"{title}: {name}", array, whole=False)
    return Checkpoint(weights, labels, about, arrays, float(scale))


def numbered(arrays: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Take the arrays ``name.1``, ``name.2``, … out of those of a file; KeyError without any."""
    layers = [arrays.pop(f"{name}.1")]
    while f"{name}.{len(layers) + 1}" in arrays:
        layers.append(arrays.pop(f"{name}.{len(layers) + 1}"))
    return layers
