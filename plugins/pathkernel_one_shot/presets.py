"""Networks by name: those of the paper's section 4.2, and a small one."""

from __future__ import annotations

from dataclasses import dataclass

from pathkernel_core.hooks import UnknownNameError, unknown_name
from pathkernel_trained.network import NetworkShape


@dataclass(frozen=True)
class Preset:
    """Sizes of a network, and length and regularisation of its training.

    Attributes
    ----------
    shape : NetworkShape
    epochs : float
        Passes through all pairs of training characters.
    weight_decay : float
        L2 regularisation.
    """

    shape: NetworkShape
    epochs: float
    weight_decay: float = 5e-5


PRESETS = {
    "small": Preset(NetworkShape(2, 4, 128, 32), 4),
    "2-4-512-128": Preset(NetworkShape(2, 4, 512, 128), 10),
    # with the paper's regularisation all its weights decay to zero before it begins to learn
    "3-3-512-170": Preset(NetworkShape(3, 3, 512, 170), 10, weight_decay=0.0),
    "2-8-512-64": Preset(NetworkShape(2, 8, 512, 64), 10),
}
"""Layers, heads, width, and width of queries and keys; all but the first are the paper's."""

DEFAULT = "2-4-512-128"


def preset(name: str) -> Preset:
    """Preset by name; raises UnknownNameError, which suggests the nearest, if there is none."""
    if name not in PRESETS:
        raise UnknownNameError(unknown_name("preset", name, PRESETS))
    return PRESETS[name]


def default_folder(shape: NetworkShape) -> str:
    """Default folder of a training, such as one-shot-images-2-4-512-128."""
    return f"one-shot-images-{shape.layers}-{shape.heads}-{shape.width}-{shape.qk_width}"
