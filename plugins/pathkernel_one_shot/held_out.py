"""Episodes of real images, assembled at once or batch by batch.

The tokens of 10,000 episodes fill 700 MB; a set of episodes has images and their numbers instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pathkernel_core.contracts.task import Examples
from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, IdxSet, read_idx_set
from pathkernel_one_shot.image_sources import resize
from pathkernel_one_shot.omniglot import read_drawings, split_characters
from pathkernel_one_shot.tokens import (
    LabelledImages,
    assemble,
    character_episodes,
    check_episodes,
    two_class_episodes,
)
from pathkernel_one_shot.ways import character_ways, class_ways

VALIDATION = "omniglot validation"
"""Episodes of validation characters, on which heads are scored."""

TEST_SETS = ("omniglot", "fashion-mnist", "mnist")
"""Episodes that are classified: of unseen characters, and out of distribution."""

_SOURCES: dict[str, str | IdxSet] = {
    VALIDATION: "val",
    "omniglot": "test",
    "fashion-mnist": FASHION_MNIST,
    "mnist": MNIST,
}
_STREAMS = 100  # the first part of the streams' keys; the task draws from others of the same seed
_BATCH = 250


@dataclass(frozen=True, eq=False)
class EpisodeSet:
    """Episodes and the images that they show.

    Attributes
    ----------
    images : array, shape (n, 32, 32)
        Grey values 0 to 1.
    episodes : LabelledImages
        Of C classes; their numbers are rows of ``images``.
    label_vectors : array, shape (C + 1, 192)
        Label vectors of −, + and ?, and of further classes.
    """

    images: np.ndarray
    episodes: LabelledImages
    label_vectors: np.ndarray

    def batches(self) -> Iterator[Examples]:
        """Token sequences (250, M, 192) and labels, in order; the last batch may be smaller."""
        for batch in self.episodes.batches(_BATCH):
            numbers, batch = batch.renumber_images()
            yield assemble(self.images[numbers], batch, self.label_vectors)

    def examples(self) -> Examples:
        """Token sequences (P, M, 192) and labels of all episodes."""
        return assemble(self.images, self.episodes, self.label_vectors)


def episode_set(name: str, episodes: int, label_vectors: np.ndarray, seed: int = 0) -> EpisodeSet:
    """Draw the episodes of a set, as many of each label, to within one.

    Parameters
    ----------
    name : str
        :data:`VALIDATION` or one of :data:`TEST_SETS`.
    episodes : int
        Number of episodes: even for two classes, at least C for more.
    label_vectors : array, shape (C + 1, 192)
        Label vectors of −, + and ? of the network, and of further classes.
    seed : int
        Every set has its own random stream, none of them that of the study of the same seed.

    Raises
    ------
    ValueError
        If there is no such set, or the number of episodes does not fit the classes.
    pathkernel_one_shot.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    """
    names = tuple(_SOURCES)  # their order makes the streams: append new sets
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}, but is {name!r}")
    check_episodes("episodes", episodes, len(label_vectors) - 1)
    stream = np.random.SeedSequence(seed, spawn_key=(_STREAMS, names.index(name)))
    generator = np.random.default_rng(stream)
    return draw_episodes(_SOURCES[name], episodes, label_vectors, generator)


def draw_episodes(
    source: str | IdxSet, episodes: int, label_vectors: np.ndarray, generator: np.random.Generator
) -> EpisodeSet:
    """Draw episodes of a split of Omniglot's characters, or of the first C classes of a data set.

    ``source`` is ``"train"``, ``"val"``, ``"test"`` or the data set; other parameters are those of
    :func:`episode_set`.
    """
    ways = len(label_vectors) - 1
    drawn: LabelledImages
    if isinstance(source, str):
        characters = split_characters(source)
        if ways == 2:
            drawn = character_episodes(len(characters), episodes, generator)
        else:
            drawn = character_ways(len(characters), ways, episodes, generator)
        numbers, drawn = drawn.renumber_images()
        images = read_drawings(characters, numbers)
    else:
        pixels, labels = read_idx_set(source)
        classes = [np.flatnonzero(labels == number) for number in range(ways)]
        if ways == 2:
            drawn = two_class_episodes((classes[0], classes[1]), episodes, generator)
        else:
            drawn = class_ways(classes, episodes, generator)
        numbers, drawn = drawn.renumber_images()
        images = np.stack([resize(pixels[number]) for number in numbers])
    return EpisodeSet(images, drawn, label_vectors)
