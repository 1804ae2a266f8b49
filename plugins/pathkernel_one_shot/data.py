"""Images of a training, as tables of coordinates: read once, then looked up by index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pathkernel_one_shot.episodes import image_coordinates
from pathkernel_one_shot.omniglot import (
    ARCHIVE_DIGESTS,
    DRAWINGS,
    SPLIT_DIGESTS,
    read_drawings,
    split_characters,
)
from pathkernel_one_shot.tokens import label_vectors


@dataclass(frozen=True)
class TrainingData:
    """Drawings for training and validation, and label vectors.

    Attributes
    ----------
    train : array, shape (20·characters, 16, 64)
        Coordinates of all drawings of the training characters, from
        :func:`pathkernel_one_shot.episodes.image_coordinates`.
    validation : array, shape (20·characters, 16, 64)
        Those of the validation characters.
    label_vectors : array, shape (3, 192)
        Label vectors of −, + and ?.
    provenance : mapping of str to str
        Identity of the data; a training resumes only with the same.
    """

    train: np.ndarray
    validation: np.ndarray
    label_vectors: np.ndarray
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        for name in ("train", "validation"):
            images = len(getattr(self, name))
            if images % DRAWINGS or images < 2 * DRAWINGS:
                raise ValueError(
                    f"{name} must hold {DRAWINGS} drawings of each of at least 2 characters, but "
                    f"holds {images} drawings"
                )

    @property
    def train_characters(self) -> int:
        """Number of training characters."""
        return len(self.train) // DRAWINGS

    @property
    def validation_characters(self) -> int:
        """Number of validation characters."""
        return len(self.validation) // DRAWINGS


def omniglot_data() -> TrainingData:
    """Omniglot's 1028 training and 172 validation characters.

    Raises
    ------
    pathkernel_one_shot.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    """
    digests = {f"omniglot {split} characters": SPLIT_DIGESTS[split] for split in ("train", "val")}
    digests |= {f"omniglot {folder}": digest for folder, digest in ARCHIVE_DIGESTS.items()}
    tables = (split_coordinates(split) for split in ("train", "val"))
    return TrainingData(*tables, label_vectors(), digests)


def split_coordinates(split: str) -> np.ndarray:
    """Coordinates of all drawings of a split's characters, (20·characters, 16, 64)."""
    characters = split_characters(split)
    return image_coordinates(read_drawings(characters, range(DRAWINGS * len(characters))))
