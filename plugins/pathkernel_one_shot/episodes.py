"""Episodes of one-shot images for training: images by number, and tokens in few coordinates.

A token is patch + position + label vector. Its patch has three equal colour channels and mean 0, so
that 63 coordinates tell it. The 64th is the label that the image shows: the sign of the label times
half the difference of the two label vectors. Everything else is the same in all episodes, an offset
of each position. So tokens have 64 coordinates, and an image's patches are in a table.

The images of a batch follow from the seed and the number of the step alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import helmert

from pathkernel_one_shot.omniglot import DRAWINGS
from pathkernel_one_shot.path_form import TokenSpace
from pathkernel_one_shot.tokens import (
    CHANNELS,
    PATCH,
    PATCHES,
    TOKENS,
    Episodes,
    character_episodes,
    patches,
    positions,
    with_queries,
)

COORDINATES = PATCH**2
"""Coordinates of a token: 63 of its patch, and one of the label that its image shows."""

_ORDER, _BATCH, _VALIDATION, _TEST = range(4)  # random streams of a run
_IMAGES = 1000  # whose patches are computed together


@dataclass(frozen=True)
class TrainingEpisodes:
    """Batches of training episodes, with each pair of characters once in every epoch.

    Attributes
    ----------
    characters : int
        Number of characters to draw from.
    batch : int
        Episodes of a batch.
    seed : int
        Seed of the run.

    Raises
    ------
    ValueError
        If an epoch has not one batch.
    """

    characters: int
    batch: int
    seed: int

    def __post_init__(self):
        if self.batch < 1 or self.steps_per_epoch < 1:
            raise ValueError(
                f"batch must be between 1 and the number of pairs of characters, {self.pairs}, but "
                f"is {self.batch}"
            )

    @property
    def pairs(self) -> int:
        """Unordered pairs of different characters."""
        return self.characters * (self.characters - 1) // 2

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch. The few pairs left over differ from epoch to epoch."""
        return self.pairs // self.batch

    def batch_of(self, step: int) -> Episodes:
        """Draw the batch of a step, counted from 0 over all epochs.

        The order of the pairs is drawn for every epoch; drawings, order of the context images,
        their labels and the character of the query are drawn for every step. A drawing's number is
        20 times its character's plus its own.
        """
        # a function of the step: a training resumes at any step with the batches that it would
        # have had, and nothing of the generator's state is stored
        epoch, index = divmod(step, self.steps_per_epoch)
        order = _epoch_order(self.pairs, self.seed, epoch)
        pairs = _pairs(self.characters)[order[index * self.batch : (index + 1) * self.batch]]
        generator = _stream(self.seed, _BATCH, step)
        lower_first = generator.integers(2, size=self.batch)
        context = np.where(lower_first[:, None] == 1, pairs, pairs[:, ::-1])
        drawings = generator.integers(DRAWINGS, size=(self.batch, 2))
        answers = generator.integers(2, size=self.batch)
        first_labels = 2.0 * generator.integers(2, size=self.batch) - 1.0
        images = with_queries(context, drawings, answers, generator)
        return Episodes(images, first_labels, np.where(answers == 0, first_labels, -first_labels))


def validation_episodes(characters: int, episodes: int, seed: int, step: int) -> Episodes:
    """Draw an even number of episodes for the validation after a step, half of each label."""
    return character_episodes(characters, episodes, _stream(seed, _VALIDATION, step))


def held_out_episodes(characters: int, episodes: int, seed: int) -> Episodes:
    """Draw an even number of episodes for the test of a trained network, half of each label."""
    return character_episodes(characters, episodes, _stream(seed, _TEST, 0))


def image_coordinates(images: np.ndarray) -> np.ndarray:
    """Coordinates of the standardised patches of grey images.

    Parameters
    ----------
    images : array, shape (n, 32, 32)
        Grey values 0 to 1.

    Returns
    -------
    array, shape (n, 16, 64)
        float32; the last coordinate, for the label, is 0.
    """
    table = np.zeros((len(images), PATCHES, COORDINATES), dtype=np.float32)
    basis = _patch_basis()
    for start in range(0, len(images), _IMAGES):  # the patches of all would fill gigabytes
        rows = slice(start, start + _IMAGES)
        table[rows, :, :-1] = patches(images[rows])[..., ::CHANNELS] @ basis.T
    return table


def token_space(vectors: np.ndarray) -> TokenSpace:
    """Space of the tokens of episodes, float64, from the label vectors of −, + and ?, (3, 192)."""
    # a label vector is ½(plus + minus) ± ½(plus − minus): a shared offset and one coordinate
    minus, plus, query = vectors
    basis = np.vstack([np.repeat(_patch_basis(), CHANNELS, axis=1), (plus - minus) / 2])
    shared = np.stack([(plus + minus) / 2, (plus + minus) / 2, query])
    return TokenSpace(basis, positions() + np.repeat(shared, PATCHES, axis=0))


def episode_coordinates(table: jax.Array, images: jax.Array, first_labels: jax.Array) -> jax.Array:
    """Coordinates of the tokens of episodes; to be compiled.

    Parameters
    ----------
    table : array, shape (n, 16, 64)
        From :func:`image_coordinates`.
    images : array of int, shape (P, 3)
        Rows of the table: first and second context image, query.
    first_labels : array, shape (P,)
        Label ±1 that the first context image shows.

    Returns
    -------
    array, shape (P, 48, 64)
    """
    signs = jnp.array([1, -1, 0], table.dtype)
    label = jnp.zeros(COORDINATES, table.dtype).at[-1].set(1)
    shown = first_labels.astype(table.dtype)[:, None] * signs
    tokens = table[images] + shown[:, :, None, None] * label  # (P, 3, 16, 64)
    return tokens.reshape(-1, TOKENS, COORDINATES)


def _patch_basis() -> np.ndarray:
    """Orthonormal basis of the grey patches of mean 0, (63, 64)."""
    return helmert(PATCH**2)


def _stream(seed: int, kind: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(kind, number)))


@functools.lru_cache(maxsize=2)
def _pairs(characters: int) -> np.ndarray:
    """Lower and upper character of each pair, (pairs, 2)."""
    return np.stack(np.triu_indices(characters, 1), axis=1).astype(np.int32)


@functools.lru_cache(maxsize=2)
def _epoch_order(pairs: int, seed: int, epoch: int) -> np.ndarray:
    return _stream(seed, _ORDER, epoch).permutation(np.arange(pairs, dtype=np.int32))
