"""Single location: the label is in one marked token among many, which attention must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pathkernel_core.contracts.task import Examples, Realisation, Task, option
from pathkernel_core.paths.layers import KeyVectors, Layer
from pathkernel_core.system.memory import check_memory

_SHARPNESS = 2.0  # score of the marked token per unit of its mark, at the head that finds it


@dataclass(frozen=True)
class SingleLocation(Task):
    """Classes ±1 by the sign of one entry of the only marked token.

    Tokens have standard normal entries. One of them, anywhere, is marked: its first entry is raised
    by the mark. The label is the sign of its second entry. All other tokens are noise, so that a
    head that attends to all alike sees the label at a strength of one over the number of tokens.
    The prior of heads is isotropic: the two entries could be any two directions.
    """

    name: ClassVar[str] = "single-location"
    summary: ClassVar[str] = "Find the marked token that holds the label"
    widths: ClassVar[tuple[float, ...]] = (10, 30, 100, 300)
    temperatures: ClassVar[tuple[float, ...]] = (0.1,)

    examples: int = option(300, "Number of training sequences.", minimum=2)
    test_examples: int = option(1000, "Number of test sequences.", minimum=2)
    tokens: int = option(16, "Number of tokens of a sequence.", minimum=2)
    token_width: int = option(16, "Number of entries of a token.", minimum=2)
    mark: float = option(4.0, "Mark, in standard deviations of the entries.", minimum=0.0)
    heads: int = option(2, "Number of heads.", minimum=1)
    attention: str = option(
        "ideal",
        "First head. ideal: attends to the mark; random: a draw from the prior, as all other "
        "heads are.",
        choices=("ideal", "random"),
    )

    def realise(self, seed: int) -> Realisation:
        """Draw training and test sequences and random heads, each from a stream of its own.

        Raises
        ------
        TooLargeError
            If the sequences would not fit into memory.
        """
        check_memory(
            f"{self.examples} and {self.test_examples} sequences",
            8 * (self.examples + self.test_examples) * self.tokens * self.token_width,
            "take fewer examples, test examples or tokens",
        )
        train, test, heads = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
        )
        vectors = heads.standard_normal((self.heads, self.token_width))
        if self.attention == "ideal":
            vectors[0] = 0.0
            vectors[0, 0] = _SHARPNESS * self.token_width**0.5  # the layer's scale is 1 / √N_0
        layers: list[Layer] = [KeyVectors(vectors)]
        return Realisation(
            layers=layers,
            readout="last",
            train=self._sequences(self.examples, train),
            test_sets={"test": self._sequences(self.test_examples, test)},
        )

    def _sequences(self, examples: int, generator: np.random.Generator) -> Examples:
        inputs = generator.standard_normal((examples, self.tokens, self.token_width))
        marked = np.arange(examples), generator.integers(self.tokens, size=examples)
        inputs[(*marked, 0)] += self.mark
        return Examples(inputs, np.where(inputs[(*marked, 1)] > 0, 1.0, -1.0))
