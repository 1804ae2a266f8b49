"""Copying: the label is a value of another token, found by what it holds or by where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import AttentionProduct, Layer
from pathkernel_core.system.memory import check_memory

_SHARPNESS = 8.0  # score of a token that a head looks for


@dataclass(frozen=True)
class Copying(Task):
    """Classes ±1 by the value of the token that holds the last token's tag.

    A token has a standard normal value, a tag and its position. Tags are random directions. The
    last token, which is read out, has no value, and the tag of one of the others: the label is the
    sign of that token's value. In a share of the training sequences, the agreement, it stands at
    the first position, so that attention to the position serves there as well as attention to the
    content. The test set ``together`` has it at the first position always, ``apart`` never. Tags
    and positions are vectors of the same length, so that the prior of heads prefers neither.
    """

    name: ClassVar[str] = "copying"
    summary: ClassVar[str] = "Copy the label of a token found by content or position"
    widths: ClassVar[tuple[float, ...]] = (10, 30, 100, 300)
    temperatures: ClassVar[tuple[float, ...]] = (0.1,)

    examples: int = option(300, "Number of training sequences.", minimum=2)
    test_examples: int = option(1000, "Number of sequences of each test set.", minimum=2)
    tokens: int = option(8, "Number of tokens of a sequence.", minimum=3)
    tag_width: int = option(4, "Number of entries of a tag.", minimum=1)
    agreement: float = option(
        0.5,
        "Share of training sequences in which the token to copy is the first.",
        minimum=0.0,
        maximum=1.0,
    )
    heads: int = option(2, "Number of heads.", minimum=1)
    attention: str = option(
        "content",
        "First head. content: attends to the last token's tag; position: to the first token; "
        "random: a draw from the prior of queries and keys, as all other heads are.",
        choices=("content", "position", "random"),
    )

    def realise(self, seed: int) -> Realisation:
        """Draw sequences and random heads, each from a stream of its own.

        Raises
        ------
        TooLargeError
            If the sequences would not fit into memory.
        """
        check_memory(
            f"{self.examples} and twice {self.test_examples} sequences",
            8 * (self.examples + 2 * self.test_examples) * self.tokens * self._width,
            "take fewer examples, test examples or tokens",
        )
        train, together, apart, heads = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)
        )
        layers: list[Layer] = [AttentionProduct(self._products(heads))]
        return Realisation(
            layers=layers,
            readout="last",
            train=self._sequences(self.examples, self.agreement, train),
            test_sets={
                "together": self._sequences(self.test_examples, 1.0, together),
                "apart": self._sequences(self.test_examples, 0.0, apart),
            },
        )

    @property
    def _width(self) -> int:
        return 1 + self.tag_width + self.tokens

    def _products(self, generator: np.random.Generator) -> np.ndarray:
        rank, width = self.tag_width, self._width
        queries, keys = generator.standard_normal((2, self.heads, rank, width))
        products = np.einsum("hgi,hgj->hij", keys, queries) / (width * rank**0.5)  # Eq. 3
        tags, first = np.arange(1, 1 + rank), 1 + rank
        score = _SHARPNESS / self.tag_width  # of tags and positions, of squared length √r²
        if self.attention != "random":
            products[0] = 0.0
        if self.attention == "content":
            products[0, tags, tags] = score
        elif self.attention == "position":
            products[0, first, first + self.tokens - 1] = score  # key: first, query: last position
        return products

    def _sequences(
        self, examples: int, agreement: float, generator: np.random.Generator
    ) -> Examples:
        length = self.tag_width**0.5
        tags = generator.standard_normal((examples, self.tokens, self.tag_width))
        tags *= length / np.linalg.norm(tags, axis=2, keepdims=True)
        copied = generator.integers(1, self.tokens - 1, size=examples)
        copied[generator.random(examples) < agreement] = 0
        tags[:, -1] = tags[np.arange(examples), copied]
        values = generator.standard_normal((examples, self.tokens))
        values[:, -1] = 0.0
        inputs = np.zeros((examples, self.tokens, self._width))
        inputs[:, :, 0], inputs[:, :, 1 : 1 + self.tag_width] = values, tags
        inputs[:, :, 1 + self.tag_width :] = length * np.eye(self.tokens)
        return Examples(inputs, np.where(values[np.arange(examples), copied] > 0, 1.0, -1.0))
