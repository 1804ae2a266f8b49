"""Made-up drawings to train with, so that most tests need no data set."""

import numpy as np
import pytest


def drawings(generator, characters):
    """Noisy copies of random pictures, 20 of each."""
    pictures = generator.random((characters, 1, 32, 32))
    noise = generator.random((characters, 20, 32, 32))
    return (0.8 * pictures + 0.2 * noise).reshape(-1, 32, 32)


@pytest.fixture(scope="session")
def data():
    pytest.importorskip("jax", reason="training needs the extra: pip install pathkernel[training]")
    from pathkernel_one_shot.data import TrainingData
    from pathkernel_one_shot.episodes import image_coordinates
    from pathkernel_one_shot.tokens import label_vectors

    generator = np.random.default_rng(2)
    train, validation = (image_coordinates(drawings(generator, count)) for count in (12, 4))
    return TrainingData(train, validation, label_vectors(0), {"images": "made up"})
