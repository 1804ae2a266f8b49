"""Sentences that the encoder of the example is tried on, and how its orders are compared."""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import minilm
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


def test_difference_of_two_orders_on_the_same_sentences():
    """The interval is that of paired sentences: its width is that of their differences."""
    generator = np.random.default_rng(0)
    first = generator.random((1, 1000)) < 0.6
    second = first ^ (generator.random((1, 1000)) < 0.05)
    gain = first.astype(float) - second
    mean, low, high = map(float, re.findall(r"[+-][\d.]+", minilm.difference(first, second)))
    assert mean == pytest.approx(gain.mean(), abs=1e-3)
    assert high - low == pytest.approx(2 * 1.96 * gain.std() / math.sqrt(1000), rel=0.15)
