"""Labels of every kind, as targets."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_tasks.labels import targets

pytestmark = pytest.mark.version

CLASSES = st.one_of(
    st.lists(st.integers(-5, 300), min_size=2, max_size=6, unique=True),
    st.lists(st.text("abcxyz", min_size=1, max_size=4), min_size=2, max_size=6, unique=True),
)


@given(CLASSES, st.data())
def test_classes_can_be_read_back(classes, data):
    """Whatever the classes are called, equal labels get equal targets and others do not."""
    drawn = st.lists(st.sampled_from(classes), min_size=1, max_size=20)
    train = np.array(classes * 3)
    test = np.array(data.draw(drawn), dtype=train.dtype)
    mapped, note = targets({"labels": train, "test_labels": test})
    both, values = np.concatenate([train, test]), np.concatenate(list(mapped.values()))
    assert set(np.unique(values)) <= {-1.0, 1.0}
    assert values.shape == (len(both), len(classes)) if len(classes) > 2 else (len(both),)
    rows = values.reshape(len(both), -1)
    same = both[:, None] == both
    assert np.array_equal(same, (rows[:, None] == rows).all(axis=-1))
    if len(classes) > 2:
        assert (rows.sum(axis=1) == 2 - len(classes)).all(), "one +1, the others −1"
    else:
        assert rows[both == max(classes)].min() == 1.0, "sorted order"
    assert bool(note) == (sorted(map(str, classes)) != ["-1", "1"])


@given(st.permutations([0, 1] * 4), st.sampled_from([bool, int, float, np.uint8, np.float32]))
def test_zero_and_one_of_every_type(values, dtype):
    array = np.array(values, dtype=dtype)
    mapped, note = targets({"labels": array})
    assert np.array_equal(mapped["labels"], 2.0 * np.array(values) - 1)
    assert mapped["labels"].dtype == np.float64
    assert "became −1 and +1" in note


@given(
    hnp.arrays(np.float64, st.integers(3, 8), elements=st.floats(0.1, 5) | st.floats(-5, -0.1)),
    st.booleans(),
)
def test_real_targets_stay(values, column):
    values[:2] = 0.25, -0.75
    array = values[:, None] if column else values
    mapped, note = targets({"labels": array, "test_labels": array[:1]})
    assert np.array_equal(mapped["labels"], values)
    assert np.array_equal(mapped["test_labels"], values[:1])
    assert "right sign" in note


def test_plus_and_minus_one_need_no_note():
    for dtype in (int, float):
        labels = np.array([-1, 1, 1], dtype=dtype)
        assert targets({"labels": labels})[1] == ""


def test_several_outputs():
    labels = np.array([[0.5, -2.0], [1.0, 3.0]])
    mapped, note = targets({"labels": labels})
    assert np.array_equal(mapped["labels"], labels)
    assert note == ""
    one_hot = np.eye(3, dtype=int)
    mapped, note = targets({"labels": one_hot, "test_labels": one_hot[:1]})
    assert np.array_equal(mapped["labels"], 2 * np.eye(3) - 1)
    assert "one-hot" in note


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 0, 0], [0], "labels holds a single class, 0"),
        (["a", "a"], ["a"], "single class"),
        ([0, 1, 0, 1], [2], r"test_labels holds the class 2, which labels lacks"),
        ([0, 1, 0, 1], [0.5], "test_labels holds the class 0.5"),
        (["a", "b"], [0], "both be text, or both be numbers"),
        ([0, 1, 2, 3, 4, 5], [0], "6 different values among 6, too many"),
        ([0.5, np.nan], [0.5], "labels holds NaN"),
        ([0.5, 0.0, 1.5], [0.5], "labels holds real-valued targets of which some are exactly 0"),
        ([0.5, 0.7], [0.0], "test_labels holds real-valued targets of which some are exactly 0"),
        ([0.5, 0.5], [0.5], "same number everywhere"),
        ([1j, 2j], [1j], "labels must hold classes .* complex"),
        ([[[1.0]]], [1.0], r"labels must have shape \(P,\) or \(P, C\), but has \(1, 1, 1\)"),
        ([], [1.0], r"labels must have shape"),
        ([["a", "b"]], [["a", "b"]], "labels must hold classes"),
        ([[1.0, 2.0]], [1.0], "test_labels .* must have as many outputs as labels"),
    ],
)
def test_refusals(train, test, message):
    with pytest.raises(ValueError, match=message):
        targets({"labels": np.array(train), "test_labels": np.array(test)})
