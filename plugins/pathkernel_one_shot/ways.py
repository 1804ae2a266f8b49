"""Episodes of several classes, C-way and one-shot: a context image of each class, then a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pathkernel_one_shot.omniglot import DRAWINGS
from pathkernel_one_shot.tokens import QUERY, LabelledImages, with_queries


@dataclass(frozen=True)
class WayEpisodes(LabelledImages):
    """Episodes of C classes, whose numbers differ from episode to episode.

    Attributes
    ----------
    images : array, shape (P, C + 1)
        Numbers of the context images, in order, and of the query.
    shown : array of int, shape (P, C)
        Class 0 … C − 1 shown with each context image, each once.
    classes : array of int, shape (P,)
        Class shown with the context image of the query's kind.
    """

    shown: np.ndarray
    classes: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """Rows of −1 with a single 1, (P, C)."""
        return 2.0 * np.eye(self.shown.shape[1])[self.classes] - 1.0

    def label_rows(self) -> np.ndarray:
        """Row of the label vectors that each image shows, (P, C + 1)."""
        rows = self.shown + (self.shown >= QUERY)  # the query's vector is between them
        return np.column_stack([rows, np.full(len(rows), QUERY)])


def character_ways(
    characters: int, ways: int, examples: int, generator: np.random.Generator
) -> WayEpisodes:
    """Draw episodes of different characters, each class equally often to within one.

    The query is another drawing of one of them. A drawing's number is 20 times its character's (0
    to ``characters`` − 1) plus its own (0 to 19).
    """
    context = _subsets(characters, ways, examples, generator)
    drawings = generator.integers(DRAWINGS, size=(examples, ways))
    shown, classes, answers = _labels(ways, examples, generator)
    return WayEpisodes(with_queries(context, drawings, answers, generator), shown, classes)


def class_ways(
    kinds: Sequence[np.ndarray], examples: int, generator: np.random.Generator
) -> WayEpisodes:
    """Draw episodes of all kinds of images, with no image both in a context and as a query.

    ``kinds`` are the numbers of the images of each kind, at least two of each. Half of each kind,
    drawn at random, is reserved for queries, which are used equally often.
    """
    shuffled = [generator.permutation(images) for images in kinds]
    order = _subsets(len(kinds), len(kinds), examples, generator)
    shown, classes, answers = _labels(len(kinds), examples, generator)
    asked = order[np.arange(examples), answers]
    numbers = np.empty((examples, len(kinds) + 1), dtype=np.int64)
    for kind, images in enumerate(shuffled):
        half = len(images) // 2
        context = generator.choice(images[half:], size=examples)
        numbers[:, :-1] = np.where(order == kind, context[:, None], numbers[:, :-1])
        of_kind = asked == kind
        numbers[of_kind, -1] = np.resize(images[:half], np.count_nonzero(of_kind))
    return WayEpisodes(numbers, shown, classes)


def _subsets(size: int, count: int, examples: int, generator: np.random.Generator) -> np.ndarray:
    """Different numbers below ``size`` in random order, (examples, count)."""
    return np.stack([generator.choice(size, count, replace=False) for _ in range(examples)])


def _labels(
    ways: int, examples: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes that context images show, (P, C), class of the query and its position, (P,)."""
    # neither the order of the labels nor the position of the answer gives the class away
    shown = _subsets(ways, ways, examples, generator)
    classes = np.sort(np.arange(examples) % ways)
    return shown, classes, (shown == classes[:, None]).argmax(axis=1)
