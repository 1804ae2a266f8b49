"""Episodes of several classes: what they show, their tokens, the task and a study of them."""

import os

import numpy as np
import pytest

from pathkernel_core.contracts.testing import check_task
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study
from pathkernel_one_shot.task import OneShotImages
from pathkernel_one_shot.tokens import assemble, label_vectors, patches, positions
from pathkernel_one_shot.ways import WayEpisodes, character_ways, class_ways

WAYS = np.random.default_rng(0).choice(np.arange(3, 11), 3, replace=False).tolist()
SMALL = {"heads": "random", "heads_per_layer": 1, "qk_width": 4, "layers": 1}


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def check_episodes(episodes, kind_of, ways):
    """The class is the one shown with the context image of the query's kind."""
    kinds = kind_of(episodes.images)
    assert (np.diff(np.sort(kinds[:, :-1], axis=1), axis=1) > 0).all()
    assert (np.sort(episodes.shown, axis=1) == np.arange(ways)).all()
    same = kinds[:, :-1] == kinds[:, -1:]
    assert (same.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(episodes.shown[same], episodes.classes)
    counts = np.bincount(episodes.classes, minlength=ways)
    assert counts.max() - counts.min() <= 1
    # neither the order of the labels nor the position of the answer gives the class away
    position = same.argmax(axis=1)
    for other in (position, episodes.shown[:, 0]):
        table = np.histogram2d(episodes.classes, other, bins=ways)[0] / len(position)
        assert abs(table - 1 / ways**2).max() < 5 / ways / np.sqrt(len(position))


@pytest.mark.parametrize("ways", WAYS)
def test_characters(ways, generator):
    episodes = character_ways(ways + 3, ways, 2000, generator)
    check_episodes(episodes, lambda images: images // 20, ways)
    assert set(np.ravel(episodes.images)) == set(range(20 * (ways + 3)))
    assert not (episodes.images[:, :-1] == episodes.images[:, -1:]).any()  # another drawing


@pytest.mark.parametrize("ways", WAYS)
def test_kinds_of_images(ways, generator):
    kinds = [np.arange(100 * kind, 100 * kind + 10 + kind) for kind in range(ways)]
    episodes = class_ways(kinds, 2000, generator)
    check_episodes(episodes, lambda images: images // 100, ways)
    assert not np.intersect1d(episodes.images[:, :-1], episodes.images[:, -1]).size
    assert set(np.ravel(episodes.images)) == set(np.concatenate(kinds))
    uses = np.unique(episodes.images[:, -1], return_counts=True)[1]
    assert uses.max() - uses.min() < 2000 / ways / 5


def test_tokens_and_targets(generator):
    images, vectors = generator.random((5, 32, 32)), generator.random((5, 192))
    shown = np.array([[3, 0, 2, 1]])
    episodes = WayEpisodes(np.array([[4, 0, 1, 2, 3]]), shown, np.array([2]))
    examples = assemble(images, episodes, vectors)
    np.testing.assert_array_equal(examples.labels, [[-1, -1, 1, -1]])
    rest = (examples.inputs - positions(5)).reshape(5, 16, 192) - patches(images)[[4, 0, 1, 2, 3]]
    expected = vectors[[4, 0, 3, 1, 2]]  # rows of −, +, ?, and the further classes
    np.testing.assert_allclose(rest, np.repeat(expected[:, None], 16, axis=1), atol=1e-12)


def test_positions_and_label_vectors_continue_those_of_two_classes():
    np.testing.assert_array_equal(positions(6)[:48], positions())
    np.testing.assert_array_equal(label_vectors(3, 5)[:3], label_vectors(3))
    assert label_vectors(3, 5).shape == (6, 192)


def test_parts_have_the_images_of_the_whole(generator):
    episodes = character_ways(9, 4, 10, generator)
    numbers, whole = episodes.renumber_images()
    np.testing.assert_array_equal(numbers[whole.images], episodes.images)
    parts = episodes.batches(4)
    assert [len(part.classes) for part in parts] == [4, 4, 2]
    for name in ("images", "shown", "classes"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(episodes, name))


@pytest.mark.parametrize("name", ["examples", "test_examples"])
@pytest.mark.parametrize("ways", WAYS)
def test_numbers_of_episodes_that_the_classes_allow(ways, name):
    for episodes in (ways, ways + 1, 3 * ways, 3 * ways + 2):
        assert getattr(OneShotImages(ways=ways, **{name: episodes}), name) == episodes
    with pytest.raises(ValueError, match=rf"^{name} must be at least {ways}, .* but is {ways - 1}"):
        OneShotImages(ways=ways, **{name: ways - 1})
    with pytest.raises(ValueError, match=rf"^{name} must be even"):
        OneShotImages(ways=2, **{name: 2 * ways + 1})


needs_data = pytest.mark.skipif(
    not os.environ.get("PATHKERNEL_DATA"),
    reason="set PATHKERNEL_DATA to a folder that holds the image archives",
)


@pytest.mark.data
@needs_data
def test_it_keeps_the_contract():
    check_task(OneShotImages(**SMALL, ways=WAYS[0], examples=20, test_examples=10))


@pytest.mark.data
@needs_data
def test_trained_heads_see_their_own_label_vectors():
    task = OneShotImages(ways=4, examples=8, test_examples=8)
    drawn = task.realise(0)
    assert drawn.outputs == 4
    assert drawn.train.inputs.shape == (8, 80, 192)
    _, vectors = task._trained_heads()
    _, two = OneShotImages()._trained_heads()
    np.testing.assert_array_equal(vectors[:3], two)


@pytest.mark.data
@needs_data
def test_sets_of_any_number_of_episodes_have_every_class():
    task = OneShotImages(**SMALL, ways=5, examples=6, test_examples=7)
    drawn = task.realise(0)
    for part, count in ((drawn.train, 6), (drawn.test_sets["mnist"], 7), (drawn.validation, 7)):
        counts = (part.labels > 0).sum(axis=0)
        assert counts.sum() == count
        assert counts.min() == 1
    (first, *_) = task.evaluation_sets(0, 9).values()
    assert sum(len(batch.labels) for batch in first) == 9
    with pytest.raises(ValueError, match="episodes must be at least 5"):
        [list(batches) for batches in task.evaluation_sets(0, 4).values()]


@pytest.mark.data
@needs_data
@pytest.mark.parametrize("likelihood", ["softmax", "squared"])
def test_study_of_five_classes(likelihood, tmp_path):
    task = OneShotImages(**SMALL, ways=5, examples=10, test_examples=10)
    study = Study(task, widths=(20,), likelihood=likelihood)
    dataset = run_study(study, tmp_path / "study").load()
    assert dataset["accuracy"].notnull().all()
    if likelihood == "softmax":
        assert dataset["class"].values.tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(dataset["probability"].sum("class"), 1)
