"""One-shot image classification in context, paper section 4.2."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import QueryKey
from pathkernel_one_shot.held_out import TEST_SETS, VALIDATION, draw_episodes, episode_set
from pathkernel_one_shot.idx import FASHION_MNIST, MNIST, IdxSet
from pathkernel_one_shot.omniglot import ARCHIVE_DIGESTS, SPLIT_DIGESTS, SPLITS
from pathkernel_one_shot.tokens import WIDTH, check_episodes, label_vectors
from pathkernel_tasks.heads_file import check_heads_suffix, heads_digest, read_heads
from pathkernel_trained.bundled import bundled_digests, heads_path

_RANDOM_HEADS_ONLY = ("layers", "heads_per_layer", "qk_width")


@dataclass(frozen=True)
class OneShotImages(Task):
    """Two labelled context images of different classes, then a query of one of the two classes.

    An episode is a sequence of 48 tokens, 16 patches for each of three images, with positions and
    label vectors added; with C ``ways`` there are C context images. Training episodes show
    characters of Omniglot's training split; those on which a temperature may be chosen, characters
    of its validation split. The test sets show characters of neither, and two data sets of other
    images: Fashion-MNIST (T-shirt/top against trouser) and MNIST (0 against 1), or their first C
    classes, where no image is both a query and a context image.
    """

    name: ClassVar[str] = "one-shot-images"
    summary: ClassVar[str] = "Classify images from one example (paper, section 4.2)"
    widths: ClassVar[tuple[float, ...]] = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    temperatures: ClassVar[tuple[float, ...]] = (
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.25,
        0.5,
        0.75,
        1.0,
        1.5,
    )

    heads: str = option(
        "trained:2-4-512-128",
        f"Bundled trained network, one of {', '.join(bundled_digests())}; file of trained heads "
        "(.safetensors or .npz); or random, for Gaussian heads, which classify at chance.",
    )
    layers: int = option(2, "Number of attention layers of random heads.", minimum=1)
    heads_per_layer: int = option(4, "Number of random heads of each layer.", minimum=1)
    qk_width: int = option(128, "Width of queries and keys of random heads.", minimum=1)
    ways: int = option(
        2,
        "Number of classes of an episode, each with a context image; bundled networks were trained "
        "on two.",
        minimum=2,
        maximum=10,
    )
    examples: int = option(
        600,
        "Number of training episodes, as many of each label, to within one: even for two ways, and "
        "at least one for each of more.",
        minimum=2,
    )
    test_examples: int = option(
        1000,
        "Number of episodes of each test set and of the validation set, as many of each label, "
        "to within one: even for two ways, and at least one for each of more.",
        minimum=2,
    )
    label_seed: int = option(
        0, "Seed of the label vectors that the file of heads lacks.", minimum=0
    )

    def __post_init__(self):
        for name in ("examples", "test_examples"):
            check_episodes(name, getattr(self, name), self.ways)
        if self.heads != "random":
            self._check_file_options()

    def realise(self, seed: int) -> Realisation:
        """Draw training, test and validation episodes and random heads, from separate streams.

        Raises
        ------
        pathkernel_one_shot.image_sources.ImageDataError
            If image data are missing or damaged, or cannot be downloaded.
        FileNotFoundError, ValueError
            If the file of heads is missing, or is none that fits.
        """
        # a stream for each set, so that another number of training episodes leaves the test
        # episodes as they are; new ones are spawned last
        train, omniglot, fashion, mnist, heads, validation = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)
        )
        # read first: a slip in the file should show before images are downloaded
        trained, vectors = self._trained_heads()
        layers: Sequence[QueryKey] = trained or [
            self._random_layer(heads) for _ in range(self.layers)
        ]

        def draw_examples(
            source: str | IdxSet, number: int, generator: np.random.Generator
        ) -> Examples:
            return draw_episodes(source, number, vectors, generator).examples()

        return Realisation(
            layers=layers,
            readout="mean",
            train=draw_examples("train", self.examples, train),
            test_sets={
                "omniglot": draw_examples("test", self.test_examples, omniglot),
                "fashion-mnist": draw_examples(FASHION_MNIST, self.test_examples, fashion),
                "mnist": draw_examples(MNIST, self.test_examples, mnist),
            },
            validation=draw_examples("val", self.test_examples, validation),
        )

    def evaluation_sets(self, seed: int, examples: int) -> Mapping[str, Iterable[Examples]]:
        """Episodes of validation characters, of unseen characters, and out of distribution.

        None is an episode that the task draws from the same seed; images are read batch by batch.
        """
        _, vectors = self._trained_heads()

        def batches(name: str) -> Iterator[Examples]:
            yield from episode_set(name, examples, vectors, seed).batches()

        return {name: batches(name) for name in (VALIDATION, *TEST_SETS)}

    def provenance(self) -> dict[str, str]:
        """Digests of the content of the images, and of the file of heads if there is one."""
        digests = {"omniglot characters": ",".join(SPLIT_DIGESTS[split] for split in SPLITS)}
        for folder, digest in ARCHIVE_DIGESTS.items():
            digests[f"omniglot {folder}"] = digest
        for source in (FASHION_MNIST, MNIST):
            digests[f"{source.name} images"] = source.images_digest
            digests[f"{source.name} labels"] = source.labels_digest
        if self.heads != "random":
            digests["heads"] = heads_digest(heads_path(self.heads))
        return digests

    def _trained_heads(self) -> tuple[Sequence[QueryKey], np.ndarray]:
        """Layers of the file of heads, or none if heads are random, and the label vectors."""
        vectors = label_vectors(self.label_seed, self.ways)
        if self.heads == "random":
            return (), vectors
        trained = read_heads(heads_path(self.heads), WIDTH)
        if trained.label_vectors is not None:
            vectors[: len(trained.label_vectors)] = trained.label_vectors
        return trained.layers, vectors

    def _check_file_options(self) -> None:
        try:
            check_heads_suffix(heads_path(self.heads))
        except ValueError as error:
            raise ValueError(f'heads must be "random", a file or trained:NAME: {error}') from error
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name in _RANDOM_HEADS_ONLY and value != entry.default:
                raise ValueError(
                    f"{entry.name}={value} is an option of random heads, but heads is the file "
                    f"{self.heads!r}, which fixes its value. Leave {entry.name} out, or set heads "
                    'to "random"'
                )

    def _random_layer(self, generator: np.random.Generator) -> QueryKey:
        shape = (self.heads_per_layer, self.qk_width, WIDTH)
        return QueryKey(generator.standard_normal(shape), generator.standard_normal(shape))
