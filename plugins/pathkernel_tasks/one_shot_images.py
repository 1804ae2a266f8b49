"""One-shot image classification in context (section 4.2): a query asks for its kind's label."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pathkernel_core.attention import QueryKey
from pathkernel_core.task import Examples, Realisation, Task, option
from pathkernel_datasets.idx import FASHION_MNIST, MNIST, IdxImages, IdxSet
from pathkernel_datasets.image_sources import SIZE
from pathkernel_datasets.omniglot import (
    ARCHIVE_DIGESTS,
    DRAWINGS,
    SPLIT_DIGESTS,
    SPLITS,
    Character,
    read_drawings,
    split_characters,
)
from pathkernel_tasks.heads_file import check_suffix, heads_digest, read_heads

PATCH = 8  # pixels along each side of a patch
PATCHES = (SIZE // PATCH) ** 2  # patches of an image
IMAGES = 3  # of an episode: two context images and the query
TOKENS = IMAGES * PATCHES
WIDTH = 3 * PATCH**2  # entries of a token: three equal colour channels
_VARIANCE_FLOOR = 1e-5  # added to a patch's variance, so that a blank patch becomes 0
_MINUS, _PLUS, _QUERY = range(3)  # rows of the label vectors
_RANDOM_HEADS_ONLY = ("layers", "heads_per_layer", "qk_width")


@dataclass(frozen=True)
class Episodes:
    """Which images make up each episode, before any image is read.

    Attributes
    ----------
    images : array, shape (P, 3)
        Numbers of the first context image, the second context image and the query.
    first_labels : array, shape (P,)
        Label ±1 shown with the first context image; the second shows the opposite.
    labels : array, shape (P,)
        Target ±1: the label shown with the context image of the query's class.
    """

    images: np.ndarray
    first_labels: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class OneShotImages(Task):
    """Two labelled context images of different classes, then a query of one of the two classes.

    An episode is a sequence of 48 tokens, 16 patches for each of three images, with positions and
    label vectors added. Training episodes show characters of Omniglot's training split; those on
    which a temperature may be chosen, characters of its validation split. The test sets show
    characters of neither, and two data sets of other images: Fashion-MNIST (T-shirt/top against
    trouser) and MNIST (0 against 1), where no image is both a query and a context image.
    """

    name: ClassVar[str] = "one-shot-images"
    summary: ClassVar[str] = "One-shot image classification in context, paper section 4.2"
    widths: ClassVar[tuple[float, ...]] = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    temperatures: ClassVar[tuple[float, ...]] = (
        *(0.01, 0.025, 0.05, 0.075, 0.1),
        *(0.25, 0.5, 0.75, 1.0, 1.5),
    )

    heads: str = option(
        "random", "random: Gaussian heads; or a file of trained heads (.safetensors or .npz)"
    )
    layers: int = option(2, "attention layers, if heads are random")
    heads_per_layer: int = option(4, "heads of each layer, if heads are random")
    qk_width: int = option(128, "width of queries and keys, if heads are random")
    examples: int = option(600, "training episodes, half of each label")
    test_examples: int = option(
        1000, "episodes of each test set and of the validation set, half of each label"
    )
    label_seed: int = option(0, "seed of the label vectors, unless the file of heads holds them")

    def __post_init__(self):
        for name in ("examples", "test_examples"):
            value = getattr(self, name)
            if value < 2 or value % 2:
                raise ValueError(f"{name} must be even and at least 2, but is {value}")
        for name in _RANDOM_HEADS_ONLY:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but is {getattr(self, name)}")
        if self.label_seed < 0:
            raise ValueError(f"label_seed must not be negative, but is {self.label_seed}")
        if self.heads != "random":
            self._check_file_options()

    def realise(self, seed: int) -> Realisation:
        """Draw training, test and validation episodes and random heads, from separate streams.

        Raises
        ------
        pathkernel_datasets.image_sources.ImageDataError
            If image data are missing or damaged, or cannot be downloaded.
        FileNotFoundError, ValueError
            If the file of heads is missing, or is none that fits.
        """
        train, omniglot, fashion, mnist, heads, validation = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)
        )
        vectors = label_vectors(self.label_seed)
        if self.heads == "random":
            layers: Sequence[QueryKey] = [self._random_layer(heads) for _ in range(self.layers)]
        else:  # read first: a slip in the file should show before images are downloaded
            trained = read_heads(self.heads, WIDTH)
            layers = trained.layers
            vectors = vectors if trained.label_vectors is None else trained.label_vectors

        splits = split_characters()
        number = self.test_examples
        return Realisation(
            layers=layers,
            readout="mean",
            train=omniglot_examples(splits["train"], self.examples, vectors, train),
            test_sets={
                "omniglot": omniglot_examples(splits["test"], number, vectors, omniglot),
                "fashion-mnist": two_class_examples(FASHION_MNIST, number, vectors, fashion),
                "mnist": two_class_examples(MNIST, number, vectors, mnist),
            },
            validation=omniglot_examples(splits["val"], number, vectors, validation),
        )

    def provenance(self) -> dict[str, str]:
        """Digests of the images' content, and of the file of heads if there is one."""
        digests = {"omniglot characters": ",".join(SPLIT_DIGESTS[split] for split in SPLITS)}
        for folder, digest in ARCHIVE_DIGESTS.items():
            digests[f"omniglot {folder}"] = digest
        for source in (FASHION_MNIST, MNIST):
            digests[f"{source.name} images"] = source.images_digest
            digests[f"{source.name} labels"] = source.labels_digest
        if self.heads != "random":
            digests["heads"] = heads_digest(self.heads)
        return digests

    def _check_file_options(self) -> None:
        try:
            check_suffix(self.heads)
        except ValueError as error:
            raise ValueError(f'heads must be "random" or a file: {error}') from error
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name in _RANDOM_HEADS_ONLY and value != entry.default:
                raise ValueError(
                    f"{entry.name}={value} is an option of random heads, but heads names the file "
                    f"{self.heads!r}, which says how many there are. Leave {entry.name} out"
                )

    def _random_layer(self, generator: np.random.Generator) -> QueryKey:
        shape = (self.heads_per_layer, self.qk_width, WIDTH)
        return QueryKey(generator.standard_normal(shape), generator.standard_normal(shape))


def omniglot_examples(
    characters: Sequence[Character],
    examples: int,
    vectors: np.ndarray,
    generator: np.random.Generator,
) -> Examples:
    """Episodes of Omniglot characters, inputs (examples, 48, 192), half of each label.

    Parameters
    ----------
    characters : sequence of Character
        At least two.
    examples : int
        Even number of episodes.
    vectors : array, shape (3, 192)
        Label vectors of −, + and ?.
    generator : numpy.random.Generator
    """
    episodes = character_episodes(len(characters), examples, generator)
    images, places = np.unique(episodes.images, return_inverse=True)
    drawings = [(characters[image // DRAWINGS], int(image % DRAWINGS)) for image in images]
    return assemble(read_drawings(drawings), _renumber(episodes, places), vectors)


def two_class_examples(
    source: IdxSet, examples: int, vectors: np.ndarray, generator: np.random.Generator
) -> Examples:
    """Episodes of classes 0 and 1 of a data set, inputs (examples, 48, 192), half of each label.

    Parameters
    ----------
    source : IdxSet
    examples : int
        Even number of episodes.
    vectors : array, shape (3, 192)
        Label vectors of −, + and ?.
    generator : numpy.random.Generator
    """
    available = IdxImages(source)
    episodes = two_class_episodes(
        (available.of_class(0), available.of_class(1)), examples, generator
    )
    images, places = np.unique(episodes.images, return_inverse=True)
    return assemble(available.read(images), _renumber(episodes, places), vectors)


def character_episodes(characters: int, examples: int, generator: np.random.Generator) -> Episodes:
    """Episodes of two different characters, whose query is another drawing of one of them.

    Parameters
    ----------
    characters : int
        Number of characters to draw from, at least 2.
    examples : int
        Even number of episodes.
    generator : numpy.random.Generator

    Returns
    -------
    Episodes
        An image's number is 20 times its character's, plus its drawing's.
    """
    first = generator.integers(characters, size=examples)
    second = (first + generator.integers(1, characters, size=examples)) % characters
    context = np.stack([first, second], axis=1)
    drawings = generator.integers(DRAWINGS, size=(examples, 2))
    asked = generator.integers(2, size=examples)
    row = np.arange(examples)
    other = (drawings[row, asked] + generator.integers(1, DRAWINGS, size=examples)) % DRAWINGS
    query = DRAWINGS * context[row, asked] + other
    return _episodes(np.column_stack([DRAWINGS * context + drawings, query]), asked)


def two_class_episodes(
    classes: tuple[np.ndarray, np.ndarray], examples: int, generator: np.random.Generator
) -> Episodes:
    """Episodes of two classes, each of whose images is used in contexts only or as queries only.

    Half of each class, drawn at random, is set aside for queries, which are used equally often.

    Parameters
    ----------
    classes : pair of arrays
        Numbers of the images of each class, at least 2 of each.
    examples : int
        Even number of episodes.
    generator : numpy.random.Generator

    Returns
    -------
    Episodes
        Images are numbered as in ``classes``.
    """
    shuffled = [generator.permutation(images) for images in classes]
    halves = [len(images) // 2 for images in shuffled]
    first = generator.integers(2, size=examples)
    asked = generator.integers(2, size=examples)
    query_class = np.where(asked == 0, first, 1 - first)
    context = np.empty((2, examples), dtype=np.int64)  # one image of each class
    query = np.empty(examples, dtype=np.int64)
    for label, (images, half) in enumerate(zip(shuffled, halves)):
        context[label] = generator.choice(images[half:], size=examples)
        of_label = query_class == label
        query[of_label] = np.resize(images[:half], np.count_nonzero(of_label))
    row = np.arange(examples)
    return _episodes(np.column_stack([context[first, row], context[1 - first, row], query]), asked)


def assemble(images: np.ndarray, episodes: Episodes, vectors: np.ndarray) -> Examples:
    """Token sequences of episodes: patches + positions + label vectors.

    Parameters
    ----------
    images : array, shape (n, 32, 32)
        Images, in the order of the episodes' numbers.
    episodes : Episodes
    vectors : array, shape (3, 192)
        Label vectors of −, + and ?.
    """
    tokens = patches(images)[episodes.images]  # (P, 3, 16, 192)
    tokens += positions().reshape(IMAGES, PATCHES, WIDTH)
    plus_first = episodes.first_labels > 0
    shown = np.column_stack(
        [
            np.where(plus_first, _PLUS, _MINUS),
            np.where(plus_first, _MINUS, _PLUS),
            np.full(len(plus_first), _QUERY),
        ]
    )
    tokens += vectors[shown][:, :, None, :]
    return Examples(tokens.reshape(-1, TOKENS, WIDTH), episodes.labels)


def patches(images: np.ndarray) -> np.ndarray:
    """Standardised 8×8 patches of grey images, each of mean 0 and variance 1.

    Parameters
    ----------
    images : array, shape (n, 32, 32)
        Grey values 0 to 1.

    Returns
    -------
    array, shape (n, 16, 192)
        Patches row by row; entries by row, column and colour channel. A blank patch is 0, and one
        of variance v has variance v / (v + 1e-5).
    """
    side = SIZE // PATCH
    pieces = images.reshape(-1, side, PATCH, side, PATCH).swapaxes(2, 3)
    pieces = pieces.reshape(-1, PATCHES, PATCH**2)
    pieces = pieces - pieces.mean(axis=-1, keepdims=True)
    pieces /= np.sqrt(np.mean(pieces**2, axis=-1, keepdims=True) + _VARIANCE_FLOOR)
    return np.repeat(pieces, 3, axis=-1)


def positions() -> np.ndarray:
    """Position of each token, (48, 192): sinusoids, of mean 0 and variance 1 over all entries."""
    frequencies = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    angles = np.arange(TOKENS)[:, None] * frequencies
    encoding = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(TOKENS, WIDTH)
    return (encoding - encoding.mean()) / encoding.std()


def label_vectors(seed: int = 0) -> np.ndarray:
    """Gaussian label vectors of −, + and ?, (3, 192): the same for training and testing."""
    return np.random.default_rng(seed).standard_normal((3, WIDTH))


def _episodes(images: np.ndarray, asked: np.ndarray) -> Episodes:
    labels = np.repeat([1.0, -1.0], len(images) // 2)
    return Episodes(images, np.where(asked == 0, labels, -labels), labels)


def _renumber(episodes: Episodes, places: np.ndarray) -> Episodes:
    # NumPy 2.0 gives the inverse the shape of the images, others a flat one
    return dataclasses.replace(episodes, images=places.reshape(episodes.images.shape))
