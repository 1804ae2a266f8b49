"""Episodes that networks are scored and tested on, assembled batch by batch.

The tokens of 10,000 episodes fill 700 MB, so that only images and their numbers are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pathkernel_core.task import Examples
from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, IdxImages, IdxSet
from pathkernel_one_shot.omniglot import DRAWINGS, read_drawings, split_characters
from pathkernel_one_shot.tokens import (
    Episodes,
    assemble,
    character_episodes,
    renumbered,
    two_class_episodes,
)

VALIDATION = "omniglot validation"
"""Episodes of validation characters, on which heads are scored."""

TEST_SETS = ("omniglot", "fashion-mnist", "mnist")
"""Episodes that are classified: of unseen characters, and out of distribution."""

_IDX_SETS: dict[str, IdxSet] = {"fashion-mnist": FASHION_MNIST, "mnist": MNIST}
_SPLITS = {VALIDATION: "val", "omniglot": "test"}
_STREAMS = 100  # the first part of the streams' keys; the task draws from others of the same seed
_BATCH = 250


@dataclass(frozen=True, eq=False)
class EpisodeSet:
    """Episodes and the images that they show.

    Attributes
    ----------
    images : array, shape (n, 32, 32)
        Grey values 0 to 1.
    episodes : Episodes
        Their numbers are rows of ``images``.
    label_vectors : array, shape (3, 192)
        Label vectors of −, + and ?.
    """

    images: np.ndarray
    episodes: Episodes
    label_vectors: np.ndarray

    def batches(self) -> Iterator[Examples]:
        """Token sequences (250, 48, 192) and labels, in order; the last batch may be smaller."""
        drawn = self.episodes
        for start in range(0, len(drawn.labels), _BATCH):
            part = slice(start, start + _BATCH)
            shown, places = np.unique(drawn.images[part], return_inverse=True)
            batch = Episodes(
                places.reshape(-1, drawn.images.shape[1]),
                drawn.first_labels[part],
                drawn.labels[part],
            )
            yield assemble(self.images[shown], batch, self.label_vectors)


def episode_set(name: str, episodes: int, label_vectors: np.ndarray, seed: int = 0) -> EpisodeSet:
    """Episodes of a set, half of each label.

    Parameters
    ----------
    name : str
        :data:`VALIDATION` or one of :data:`TEST_SETS`.
    episodes : int
        Even number of episodes.
    label_vectors : array, shape (3, 192)
        Label vectors of −, + and ? of the network.
    seed : int
        Every set has a random stream of its own, and none is that of the study of the same seed.

    Raises
    ------
    ValueError
        If there is no such set, or the number of episodes is odd.
    pathkernel_one_shot.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    """
    names = (VALIDATION, *TEST_SETS)
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}, but is {name!r}")
    if episodes < 2 or episodes % 2:
        raise ValueError(f"episodes must be even and at least 2, but is {episodes}")
    stream = np.random.SeedSequence(seed, spawn_key=(_STREAMS, names.index(name)))
    generator = np.random.default_rng(stream)
    if name in _SPLITS:
        characters = split_characters()[_SPLITS[name]]
        drawn = character_episodes(len(characters), episodes, generator)
        numbers, places = np.unique(drawn.images, return_inverse=True)
        images = read_drawings([(characters[n // DRAWINGS], int(n % DRAWINGS)) for n in numbers])
    else:
        source = IdxImages(_IDX_SETS[name])
        drawn = two_class_episodes((source.of_class(0), source.of_class(1)), episodes, generator)
        numbers, places = np.unique(drawn.images, return_inverse=True)
        images = source.read(numbers)
    return EpisodeSet(images, renumbered(drawn, places), label_vectors)
