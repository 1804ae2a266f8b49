"""Episodes of one-shot images as token sequences: patches, positions and label vectors."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np

from pathkernel_core.contracts.task import Examples
from pathkernel_one_shot.image_sources import SIZE
from pathkernel_one_shot.omniglot import DRAWINGS

PATCH = 8  # pixels along each side of a patch
PATCHES = (SIZE // PATCH) ** 2  # patches of an image
IMAGES = 3  # of an episode: two context images and the query
TOKENS = IMAGES * PATCHES
CHANNELS = 3  # equal colour channels
WIDTH = CHANNELS * PATCH**2  # entries of a token
_VARIANCE_FLOOR = 1e-5  # added to a patch's variance, so that a blank patch becomes 0
_MINUS, _PLUS, QUERY = range(3)  # rows of the label vectors


@dataclass(frozen=True)
class LabelledImages(ABC):
    """Numbers of the images of each episode, before any image is read.

    Attributes
    ----------
    images : array, shape (P, C + 1)
        Numbers of the C context images, in order, and of the query.
    """

    images: np.ndarray

    @property
    @abstractmethod
    def targets(self) -> np.ndarray:
        """Labels as a task has them: ±1, (P,), or rows of −1 with a single 1, (P, C)."""

    @abstractmethod
    def label_rows(self) -> np.ndarray:
        """Row of the label vectors that each image shows, (P, C + 1)."""

    def batches(self, size: int) -> list[Self]:
        """Split the episodes, in order; the last batch may be smaller."""
        arrays = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        rows = [slice(start, start + size) for start in range(0, len(self.images), size)]
        return [
            dataclasses.replace(self, **{name: array[batch] for name, array in arrays.items()})
            for batch in rows
        ]

    def renumber_images(self) -> tuple[np.ndarray, Self]:
        """Numbers of all images in use, ascending, and the episodes with ranks in place of them."""
        numbers, ranks = np.unique(self.images, return_inverse=True)
        # NumPy 2.0 gives the inverse the shape of the images, others a flat one
        return numbers, dataclasses.replace(self, images=ranks.reshape(self.images.shape))


@dataclass(frozen=True)
class Episodes(LabelledImages):
    """Episodes of two classes.

    Attributes
    ----------
    images : array, shape (P, 3)
        Numbers of the first context image, the second context image and the query.
    first_labels : array, shape (P,)
        Label ±1 shown with the first context image; the second shows the opposite.
    labels : array, shape (P,)
        Target ±1: the label shown with the context image of the query's class.
    """

    first_labels: np.ndarray
    labels: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """Labels ±1, (P,)."""
        return self.labels

    def label_rows(self) -> np.ndarray:
        """Row of the label vectors that each image shows, (P, 3)."""
        plus_first = self.first_labels > 0
        return np.column_stack(
            [
                np.where(plus_first, _PLUS, _MINUS),
                np.where(plus_first, _MINUS, _PLUS),
                np.full(len(plus_first), QUERY),
            ]
        )


def character_episodes(characters: int, examples: int, generator: np.random.Generator) -> Episodes:
    """Draw episodes of two different characters, half of each label.

    The query is another drawing of one of the two. A drawing's number is 20 times its character's
    (0 to ``characters`` − 1) plus its own (0 to 19). ``examples`` must be even.
    """
    first = generator.integers(characters, size=examples)
    second = (first + generator.integers(1, characters, size=examples)) % characters
    context = np.stack([first, second], axis=1)
    drawings = generator.integers(DRAWINGS, size=(examples, 2))
    answers = generator.integers(2, size=examples)
    return _episodes(with_queries(context, drawings, answers, generator), answers)


def with_queries(
    context: np.ndarray, drawings: np.ndarray, answers: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Draw a query for each context; return the numbers of all three images, (P, 3).

    Parameters
    ----------
    context, drawings : array of int, shape (P, 2)
        Characters and drawings of the context images.
    answers : array of int, shape (P,)
        Context image, 0 or 1, that shows the query's character.
    generator : numpy.random.Generator
    """
    row = np.arange(len(answers))
    shift = generator.integers(1, DRAWINGS, size=len(answers))  # never the same drawing
    query = DRAWINGS * context[row, answers] + (drawings[row, answers] + shift) % DRAWINGS
    return np.column_stack([DRAWINGS * context + drawings, query])


def two_class_episodes(
    classes: tuple[np.ndarray, np.ndarray], examples: int, generator: np.random.Generator
) -> Episodes:
    """Draw episodes of two classes, with no image both in a context and as a query.

    Half of each class, drawn at random, is reserved for queries, which are used equally often.
    ``classes`` are the numbers of the images of each class, at least two of each; ``examples`` must
    be even.
    """
    # drawn with replacement, some queries would count several times in an accuracy and many never
    shuffled = [generator.permutation(images) for images in classes]
    halves = [len(images) // 2 for images in shuffled]
    first = generator.integers(2, size=examples)
    answers = generator.integers(2, size=examples)
    query_class = np.where(answers == 0, first, 1 - first)
    context = np.empty((2, examples), dtype=np.int64)  # one image of each class
    query = np.empty(examples, dtype=np.int64)
    for label, (images, half) in enumerate(zip(shuffled, halves)):
        context[label] = generator.choice(images[half:], size=examples)
        of_label = query_class == label
        query[of_label] = np.resize(images[:half], np.count_nonzero(of_label))
    row = np.arange(examples)
    images = np.column_stack([context[first, row], context[1 - first, row], query])
    return _episodes(images, answers)


def assemble(images: np.ndarray, episodes: LabelledImages, vectors: np.ndarray) -> Examples:
    """Assemble the token sequences (P, M, 192): patches + positions + label vectors.

    Parameters
    ----------
    images : array, shape (n, 32, 32)
        Images in the order of the episodes' numbers.
    episodes : LabelledImages
        Of C classes, which have M = 16 (C + 1) tokens.
    vectors : array, shape (C + 1, 192)
        From :func:`label_vectors`.
    """
    tokens = patches(images)[episodes.images]  # (P, C + 1, 16, 192)
    shown = episodes.images.shape[1]
    tokens += positions(shown).reshape(shown, PATCHES, WIDTH)
    tokens += vectors[episodes.label_rows()][:, :, None, :]
    return Examples(tokens.reshape(-1, shown * PATCHES, WIDTH), episodes.targets)


def patches(images: np.ndarray) -> np.ndarray:
    """Standardise the 8×8 patches of grey images (n, 32, 32) to mean 0 and variance 1.

    Returns
    -------
    array, shape (n, 16, 192)
        Patches row by row; entries by row, column and colour channel. A blank patch is 0, and one
        of variance v has variance v / (v + 1e-5).
    """
    side = SIZE // PATCH
    grey = images.reshape(-1, side, PATCH, side, PATCH).swapaxes(2, 3)
    grey = grey.reshape(-1, PATCHES, PATCH**2)
    grey = grey - grey.mean(axis=-1, keepdims=True)
    grey /= np.sqrt(np.mean(grey**2, axis=-1, keepdims=True) + _VARIANCE_FLOOR)
    return np.repeat(grey, CHANNELS, axis=-1)


def positions(images: int = IMAGES) -> np.ndarray:
    """Position of each token of so many images, (16·images, 192).

    Sinusoids, of mean 0 and variance 1 over all entries of three images; those of further images
    continue them, so that heads trained on two classes see the positions that they know.
    """
    frequencies = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    angles = np.arange(images * PATCHES)[:, None] * frequencies
    encoding = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, WIDTH)
    known = encoding[:TOKENS]
    return (encoding - known.mean()) / known.std()


def label_vectors(seed: int = 0, classes: int = 2) -> np.ndarray:
    """Gaussian label vectors of −, + and ?, and of further classes, (classes + 1, 192).

    The same for training and testing. − and + are those of classes 0 and 1.
    """
    return np.random.default_rng(seed).standard_normal((classes + 1, WIDTH))


def check_episodes(name: str, episodes: int, ways: int = 2) -> None:
    """Raise ValueError unless a number of episodes is one that a task of so many classes draws.

    Two classes have equally many episodes, a number that is even and at least 2. More have equally
    many to within one, and each at least one episode.
    """
    if ways == 2 and (episodes < 2 or episodes % 2):
        raise ValueError(f"{name} must be even and at least 2, but is {episodes}")
    if episodes < ways:
        raise ValueError(
            f"{name} must be at least {ways}, an episode for each of the {ways} classes (ways), "
            f"but is {episodes}"
        )


def _episodes(images: np.ndarray, answers: np.ndarray) -> Episodes:
    labels = np.repeat([1.0, -1.0], len(images) // 2)
    return Episodes(images, np.where(answers == 0, labels, -labels), labels)
