"""Sentences that the encoder of the example is tried on."""

import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import reviews


def test_reviews():
    """Every sentence comes once, both classes as often, and the writer's word decides."""
    sentences, labels = reviews.reviews(600, np.random.default_rng(0))
    assert len(set(sentences)) == len(sentences) == len(labels)
    assert abs(labels.mean()) < 4 / math.sqrt(len(labels))
    again, _ = reviews.reviews(600, np.random.default_rng(0))
    assert again == sentences
    for sentence, label in zip(sentences, labels):
        words = sentence.split()
        good = [word for word in words if word in reviews.GOOD]
        bad = [word for word in words if word in reviews.BAD]
        assert 1 <= len(good) + len(bad) <= 2
        if not (good and bad):
            negated = any(word in words for word in ("not", "nobody", "less"))
            assert (label > 0) == (bool(good) != negated), sentence


def test_the_first_sentences_stay_when_more_are_drawn():
    """So that validation sentences come on top of the training and test sentences."""
    more, _ = reviews.reviews(60, np.random.default_rng(0))
    assert more[:40] == reviews.reviews(40, np.random.default_rng(0))[0]
