"""Episodes of one-shot images while training: which images, and their tokens in few coordinates.

A token is patch + position + label vector. Its patch has three equal colour channels and mean 0, so
that 63 coordinates tell it. The 64th takes the label that the image shows: the sign of the label
times half the difference of the two label vectors. Everything else is the same in all episodes, an
offset of each position. So tokens have 64 coordinates, and an image's patches are in a table.

Which images make up a batch follows from the seed and the number of the step alone.
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

_CHANNELS = 3
_ORDER, _BATCH, _VALIDATION, _TEST = range(4)  # random streams of a run
_AT_ONCE = 1000  # images whose patches are computed together


@dataclass(frozen=True)
class TrainingEpisodes:
    """Batches of training episodes: in every epoch each pair of characters comes once.

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
        """Whole batches of an epoch. The few pairs left over are others in every epoch."""
        return self.pairs // self.batch

    def batch_of(self, step: int) -> Episodes:
        """Batch of a step, counted from 0 over all epochs.

        The order of the pairs is drawn for every epoch; drawings, order of the context images,
        their labels and the character of the query are drawn for every step.

        Returns
        -------
        Episodes
            An image's number is 20 times its character's, plus its drawing's.
        """
        epoch, within = divmod(step, self.steps_per_epoch)
        order = _epoch_order(self.pairs, self.seed, epoch)
        chosen = order[within * self.batch : (within + 1) * self.batch]
        generator = _stream(self.seed, _BATCH, step)
        first_is_lower = generator.integers(2, size=self.batch)
        lower, upper = (side[chosen] for side in _pairs(self.characters))
        context = np.where(
            first_is_lower[:, None] == 1, np.stack([lower, upper], 1), np.stack([upper, lower], 1)
        )
        drawings = generator.integers(DRAWINGS, size=(self.batch, 2))
        asked = generator.integers(2, size=self.batch)
        first_labels = 2.0 * generator.integers(2, size=self.batch) - 1.0
        images = with_queries(context, drawings, asked, generator)
        return Episodes(images, first_labels, np.where(asked == 0, first_labels, -first_labels))


def validation_episodes(characters: int, episodes: int, seed: int, step: int) -> Episodes:
    """Fresh episodes to validate with after so many steps, half of each label.

    Parameters
    ----------
    characters : int
        Number of characters to draw from.
    episodes : int
        Even number of episodes.
    seed, step : int
        They fix the episodes.
    """
    return character_episodes(characters, episodes, _stream(seed, _VALIDATION, step))


def held_out_episodes(characters: int, episodes: int, seed: int) -> Episodes:
    """Episodes to test a trained network with, half of each label; parameters as above."""
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
    for start in range(0, len(images), _AT_ONCE):  # the patches of all would fill gigabytes
        part = slice(start, start + _AT_ONCE)
        table[part, :, :-1] = patches(images[part])[..., ::_CHANNELS] @ basis.T
    return table


def token_space(vectors: np.ndarray) -> TokenSpace:
    """Space of the tokens of episodes, in float64.

    Parameters
    ----------
    vectors : array, shape (3, 192)
        Label vectors of −, + and ?.
    """
    minus, plus, query = vectors
    basis = np.vstack([np.repeat(_patch_basis(), _CHANNELS, axis=1), (plus - minus) / 2])
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
def _pairs(characters: int) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = np.triu_indices(characters, 1)
    return lower.astype(np.int32), upper.astype(np.int32)


@functools.lru_cache(maxsize=2)
def _epoch_order(pairs: int, seed: int, epoch: int) -> np.ndarray:
    return _stream(seed, _ORDER, epoch).permutation(np.arange(pairs, dtype=np.int32))
