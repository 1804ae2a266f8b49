"""Episodes while training: every pair once, reproducible, and the tokens of the task."""

import dataclasses
import os

import numpy as np
import pytest

pytest.importorskip("jax", reason="training needs the extra: pip install pathkernel[training]")

from pathkernel_one_shot.episodes import (
    TrainingEpisodes,
    episode_coordinates,
    held_out_episodes,
    image_coordinates,
    token_space,
    validation_episodes,
)
from pathkernel_one_shot.omniglot import read_drawings, split_characters
from pathkernel_one_shot.tokens import assemble, label_vectors

FIELDS = ("images", "first_labels", "labels")


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


def tokens(table, episodes, vectors):
    space = token_space(vectors)
    coordinates = episode_coordinates(table, episodes.images, episodes.first_labels)
    return np.asarray(coordinates, dtype=float) @ space.basis + space.offsets


def test_every_pair_comes_once_in_an_epoch():
    episodes = TrainingEpisodes(characters=21, batch=10, seed=3)
    assert episodes.pairs == 210
    assert episodes.steps_per_epoch == 21
    orders = []
    for epoch in range(2):
        batches = [episodes.batch_of(21 * epoch + step).images // 20 for step in range(21)]
        pairs = np.sort(np.concatenate(batches)[:, :2], axis=1)
        assert len({tuple(pair) for pair in pairs.tolist()}) == 210
        assert (pairs[:, 0] < pairs[:, 1]).all()
        orders.append(pairs)
    assert not np.array_equal(*orders), "the order is drawn anew"


def test_pairs_left_over_change():
    episodes = TrainingEpisodes(characters=6, batch=14, seed=0)  # 15 pairs
    left = set()
    for epoch in range(40):
        pairs = np.sort(episodes.batch_of(epoch).images[:, :2] // 20, axis=1)
        seen = {tuple(pair) for pair in pairs.tolist()}
        assert len(seen) == 14
        left |= {(i, j) for i in range(6) for j in range(i + 1, 6)} - seen
    assert len(left) > 8


def test_labels_and_drawings():
    episodes = TrainingEpisodes(characters=60, batch=1000, seed=1)
    drawn = episodes.batch_of(0)
    character = drawn.images // 20
    asked = np.where(character[:, 2] == character[:, 0], 0, 1)
    assert np.array_equal(character[np.arange(1000), asked], character[:, 2])
    shown = drawn.images[np.arange(1000), asked]
    assert (shown != drawn.images[:, 2]).all(), "the query is another drawing"
    assert np.array_equal(drawn.labels, np.where(asked == 0, 1, -1) * drawn.first_labels)
    assert set(drawn.first_labels) == {-1.0, 1.0}
    lower_first = np.mean(character[:, 0] < character[:, 1])
    for coin in (drawn.labels, drawn.first_labels, 2 * asked - 1, drawn.labels * (2 * asked - 1)):
        assert abs(np.mean(coin)) < 0.16  # five standard deviations
    assert abs(lower_first - 0.5) < 0.08
    assert set((drawn.images % 20).ravel()) == set(range(20))


def test_a_step_is_fixed_by_seed_and_number_alone():
    forward = [TrainingEpisodes(30, 8, 5).batch_of(step) for step in range(4)]
    for step in (3, 0, 2, 1):
        assert same(TrainingEpisodes(30, 8, 5).batch_of(step), forward[step])
    assert not same(forward[0], forward[1])
    assert not same(forward[0], TrainingEpisodes(30, 8, 6).batch_of(0))


def test_held_out_episodes():
    first = validation_episodes(7, 100, seed=0, step=1000)
    assert same(first, validation_episodes(7, 100, seed=0, step=1000))
    assert not same(first, validation_episodes(7, 100, seed=0, step=2000))
    assert not same(first, validation_episodes(7, 100, seed=1, step=1000))
    tested = held_out_episodes(7, 100, seed=0)
    assert not same(first, tested)
    assert tested.images.shape == (100, 3)
    assert tested.labels.sum() == 0


@pytest.mark.parametrize(("characters", "batch"), [(5, 11), (1, 1), (5, 0)])
def test_no_whole_batch(characters, batch):
    with pytest.raises(ValueError, match=r"batch must be between 1 and .* pairs of characters"):
        TrainingEpisodes(characters, batch, 0)


def test_tokens_of_made_up_images_are_those_of_the_task():
    generator = np.random.default_rng(0)
    images = generator.random((60, 32, 32))
    images[:, :8, 8:16] = 0.3  # blank patches
    episodes = TrainingEpisodes(3, 3, 0).batch_of(0)
    vectors = label_vectors(4)
    expected = assemble(images, episodes, vectors).inputs
    actual = tokens(image_coordinates(images), episodes, vectors)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)


@pytest.mark.data
@pytest.mark.skipif(
    not os.environ.get("PATHKERNEL_DATA"),
    reason="set PATHKERNEL_DATA to a folder that holds the image archives",
)
def test_tokens_of_omniglot_are_those_of_the_task():
    characters = split_characters("val")[:30]
    table = image_coordinates(read_drawings(characters, range(600)))
    assert table.shape == (600, 16, 64)
    for episodes in (TrainingEpisodes(30, 64, 2).batch_of(3), validation_episodes(30, 64, 2, 10)):
        images = read_drawings(characters, episodes.images.ravel())
        in_turn = dataclasses.replace(episodes, images=np.arange(192).reshape(64, 3))
        expected = assemble(images, in_turn, label_vectors()).inputs
        actual = tokens(table, episodes, label_vectors())
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
