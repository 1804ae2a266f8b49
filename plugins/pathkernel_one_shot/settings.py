"""Settings of a training, for Python and ``pathkernel train one-shot-images``; needs no JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pathkernel_core.contracts.hooks import UnknownNameError, unknown_name
from pathkernel_core.contracts.options import Options, option
from pathkernel_trained.network import NetworkShape

_PATHS = 4096  # the values of more take gigabytes in a step


@dataclass(frozen=True)
class Training(Options):
    """Train on one-shot classification (paper, section 4.2).

    All weights are trained on episodes of Omniglot's training characters. The folder gets the
    network with the best accuracy on the validation characters, the latest state, and the learning
    curves. Running the same command again resumes the training; more epochs extend a finished one.

    Parameters
    ----------
    layers, heads : int
        Attention layers L, and heads H of each layer.
    width, qk_width : int
        Width N of the hidden layers, and width G of queries and keys.
    epochs : float
        Passes through all pairs of training characters.
    weight_decay : float
        Its product with the weights is added to the gradient (L2 regularisation).
    seed : int
        Seed of the initial weights and of all episodes.
    test_episodes : int
        Even number of test episodes.
    learning_rate : float
        Constant step size of Adam.
    batch : int
        Episodes of a step.
    interval : int
        Steps over which the loss is averaged for the learning curve.
    validate_every : int
        Steps between validations. The end of a run is validated too.
    validation_episodes : int
        Even number of fresh episodes of each validation.

    Raises
    ------
    ValueError, TypeError
        If a setting is out of range or has another type, or the network has too many paths.
    """

    layers: int = option(2, "Attention layers L.", minimum=1)
    heads: int = option(4, "Heads H of each layer.", minimum=1)
    width: int = option(512, "Width N of the hidden layers.", minimum=1)
    qk_width: int = option(128, "Width G of queries and keys.", minimum=1)
    epochs: float = option(
        10.0, "Passes through all pairs of training characters, such as 10 or 0.5.", above=0
    )
    weight_decay: float = option(5e-5, "L2 regularisation of all weights.", minimum=0)
    seed: int = option(0, "Seed of the initial weights and of all episodes.", minimum=0)
    test_episodes: int = option(
        10_000, "Number of test episodes, which show unseen characters.", minimum=2, even=True
    )
    learning_rate: float = option(3e-4, "Step size of Adam.", above=0, flags=None)
    batch: int = option(128, "Episodes of a step.", minimum=1, flags=None)
    interval: int = option(
        100, "Steps over which the learning curve averages the loss.", minimum=1, flags=None
    )
    validate_every: int = option(1000, "Steps between validations.", minimum=1, flags=None)
    validation_episodes: int = option(
        12_928, "Number of episodes of each validation.", minimum=2, even=True, flags=None
    )

    def __post_init__(self):
        paths = math.prod(self.shape.heads_per_layer)
        if paths > _PATHS:
            raise ValueError(
                f"a network of {self.layers} layers of {self.heads} heads has {paths} paths, more "
                f"than the {_PATHS} that can be trained path by path; take fewer layers or heads"
            )

    @property
    def shape(self) -> NetworkShape:
        """Sizes of the network."""
        return NetworkShape(self.layers, self.heads, self.width, self.qk_width)

    @property
    def folder(self) -> str:
        """Default folder, such as one-shot-images-2-4-512-128."""
        return f"one-shot-images-{self.layers}-{self.heads}-{self.width}-{self.qk_width}"


PRESETS = {
    "small": Training(2, 4, 128, 32, epochs=4),
    "2-4-512-128": Training(2, 4, 512, 128),
    # with the paper's regularisation all its weights decay to zero before it begins to learn
    "3-3-512-170": Training(3, 3, 512, 170, weight_decay=0),
    "2-8-512-64": Training(2, 8, 512, 64),
}
"""Layers, heads, width, and width of queries and keys; all but the first are the paper's."""

DEFAULT = "2-4-512-128"

OF_PRESETS = ("layers", "heads", "width", "qk_width", "epochs", "weight_decay")
"""Settings in which presets differ."""


def preset(name: str) -> Training:
    """Preset by name.

    Raises
    ------
    UnknownNameError
        If there is none; the message suggests the nearest.
    """
    if name not in PRESETS:
        raise UnknownNameError(unknown_name("preset", name, PRESETS))
    return PRESETS[name]
