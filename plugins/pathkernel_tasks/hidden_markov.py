"""Hidden Markov chain classification (section 4.1): tell two kinds of chain apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pathkernel_core.arrays.backend import batches
from pathkernel_core.contracts.task import Blocks, Examples, Realisation, Task, option
from pathkernel_core.paths.contraction import Readout
from pathkernel_core.paths.layers import AttentionProduct
from pathkernel_core.system.memory import check_memory

STATES = 30  # hidden states of a chain
WIDTH = 200  # features of a token
TOKENS = STATES + 1  # a beginning-of-sequence token stands in front
_COPIES = 2  # of all tokens while they are drawn, at most
_CACHED = 32  # chains whose noise is drawn at once, and stays in cache
_HELD = 10_000  # training chains, of more than which blocks are drawn
_BLOCK = 2000  # training chains of a block
_SHARPNESS = 10.0  # inverse temperature of the softmax
_FLIP = 0.3  # probability that a chain of class +1 changes state


@dataclass(frozen=True)
class HiddenMarkov(Task):
    """Two classes of hidden Markov chains that differ in how often the state flips.

    A token is the feature vector v₊ or v₋ of its hidden state plus Gaussian noise, with a one-hot
    position appended. The plain variant has two layers of two heads: a head that looks for an equal
    preceding state, a uniform head, and a random head in each layer. The strong-noise variants keep
    the two paths that help, good and denoising, and drown the features in noise orthogonal to
    them: strong-noise with the random head of the first layer on the denoising path (Fig. 2e),
    strong-noise-uniform with an exactly uniform one in its place (Fig. 5c). More than 10,000
    training chains are drawn in blocks of 2,000.
    """

    name: ClassVar[str] = "hidden-markov"
    summary: ClassVar[str] = "Classify hidden Markov chains (paper, section 4.1)"
    widths: ClassVar[tuple[float, ...]] = (10, 30, 50, 100, 300, 500, 1000)
    temperatures: ClassVar[tuple[float, ...]] = (0.01,)

    variant: str = option(
        "plain",
        "Variant of the network and its data. plain: 4 paths, two of them adversarial; "
        "strong-noise: 2 paths, noisy features; strong-noise-uniform: the same with a uniform "
        "denoising head.",
        choices=("plain", "strong-noise", "strong-noise-uniform"),
    )
    examples: int = option(
        100, "Number of training chains, half of each class.", minimum=2, even=True
    )
    test_examples: int = option(
        1000, "Number of test chains, half of each class.", minimum=2, even=True
    )
    readout: str = option("last", "Token read out.", choices=("first", "last", "mean"))

    def realise(self, seed: int) -> Realisation:
        """Draw training chains, test chains and random heads, each from a stream of its own.

        Raises
        ------
        TooLargeError
            If the chains would not fit into memory.
        """
        blocks = self.blocks(seed)
        in_memory = self.examples if blocks is None else _BLOCK
        check_memory(
            f"{in_memory} and {self.test_examples} chains",
            8 * _COPIES * (in_memory + self.test_examples) * TOKENS * (WIDTH + TOKENS),
            "take fewer examples or test examples",
        )
        train, test, heads = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
        )
        denoising = random_head(heads)
        if self.variant == "strong-noise-uniform":
            denoising = np.zeros_like(denoising)  # equal scores: exactly uniform attention
        layers = [[same_state(), denoising], [uniform()]]
        sub_networks = {"good": ((1,), (1,))}
        if self.variant == "plain":
            layers[1].append(random_head(heads))
            sub_networks["good + denoising"] = ((1, 2), (1,))
        readout: Readout = self.readout
        return Realisation(
            layers=[AttentionProduct(_SHARPNESS * np.stack(layer)) for layer in layers],
            readout=readout,
            train=chains(self.examples, self._noise, train) if blocks is None else blocks.draw(0),
            test_sets={"test": chains(self.test_examples, self._noise, test)},
            sub_networks=sub_networks,
        )

    def blocks(self, seed: int) -> Blocks | None:
        """Training chains in blocks, each half of either class and from a stream of its own."""
        if self.examples <= _HELD:
            return None

        def draw(number: int) -> Examples:
            # a child of what the training chains of a realisation are drawn by
            stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, number)))
            return chains(min(_BLOCK, self.examples - number * _BLOCK), self._noise, stream)

        return Blocks(self.examples, _BLOCK, draw)

    @property
    def _noise(self) -> float:
        return 1.0 if self.variant == "plain" else 5.0


def state_features() -> tuple[np.ndarray, np.ndarray]:
    """Orthogonal features v₊ and v₋ of the two hidden states, of squared length 200."""
    positive = np.repeat([np.sqrt(2.0), 0.0], WIDTH // 2)
    return positive, positive[::-1].copy()


def chains(examples: int, noise: float, generator: np.random.Generator) -> Examples:
    """Balanced labelled chains as token sequences, (examples, 31, 231).

    Parameters
    ----------
    examples : int
        Even number of chains, the first half of class +1.
    noise : float
        Standard deviation σ⊥ of the noise orthogonal to v₊ and v₋; along them it is 1.
    generator : numpy.random.Generator
    """
    labels = np.repeat([1.0, -1.0], examples // 2)
    flip = np.where(labels > 0, _FLIP, 1 - _FLIP)
    flips = generator.random((examples, STATES - 1)) < flip[:, None]
    first = generator.choice([-1, 1], size=(examples, 1))
    states = np.concatenate([first, first * np.cumprod(np.where(flips, -1, 1), axis=1)], axis=1)

    positive, negative = state_features()
    tokens = np.zeros((examples, TOKENS, WIDTH + TOKENS))
    for batch in batches(examples, _CACHED):
        gaussian = generator.standard_normal((batch.stop - batch.start, STATES, WIDTH))
        for state, feature in ((1, positive), (-1, negative)):
            # a feature is constant on its half of the entries and 0 on the other, and so is the
            # projection on it: a number for each token takes the place of a vector
            half = slice(0, WIDTH // 2) if state > 0 else slice(WIDTH // 2, WIDTH)
            entry = feature[half.start]
            along = (gaussian @ feature) * entry / (feature @ feature)
            signal = np.where(states[batch] == state, entry, 0.0)
            part = tokens[batch, 1:, half]
            np.subtract(gaussian[..., half], along[..., None], out=part)
            part *= noise
            part += (signal + along)[..., None]
    tokens[:, :, WIDTH:] = np.eye(TOKENS)
    return Examples(tokens, labels)


def same_state() -> np.ndarray:
    """Head that attends to the preceding token if its hidden state is the same, else to the bos.

    Product W of keys (left) and queries (right), (231, 231).
    """
    positive, negative = state_features()
    difference = (positive - negative) / WIDTH  # ±1 on a clean token
    positions = np.zeros((TOKENS, TOKENS))
    query = np.arange(2, TOKENS)
    positions[query - 1, query] = 1.0
    positions[0, 1:] = 1.5  # the bos key wins unless both position and state agree
    return _blocks(np.outer(difference, difference), positions)


def uniform() -> np.ndarray:
    """Head that attends to all tokens alike."""
    return _blocks(np.zeros((WIDTH, WIDTH)), np.ones((TOKENS, TOKENS)))


def random_head(generator: np.random.Generator) -> np.ndarray:
    """Head with Gaussian entries in all four blocks of features and positions."""
    product = _blocks(
        generator.standard_normal((WIDTH, WIDTH)) / WIDTH,
        generator.standard_normal((TOKENS, TOKENS)),
    )
    product[:WIDTH, WIDTH:] = generator.standard_normal((WIDTH, TOKENS)) / np.sqrt(WIDTH)
    product[WIDTH:, :WIDTH] = generator.standard_normal((TOKENS, WIDTH)) / np.sqrt(WIDTH)
    return product


def _blocks(features: np.ndarray, positions: np.ndarray) -> np.ndarray:
    product = np.zeros((WIDTH + TOKENS, WIDTH + TOKENS))
    product[:WIDTH, :WIDTH] = features
    product[WIDTH:, WIDTH:] = positions
    return product
