"""Labels of every kind, as targets."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathkernel_tasks.labels import read_labels

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
    found = read_labels({"labels": train, "test_labels": test})
    both, values = np.concatenate([train, test]), np.concatenate(list(found.values.values()))
    assert found.kind == "classes"
    assert set(np.unique(values)) <= {-1.0, 1.0}
    assert values.shape == (len(both), len(classes)) if len(classes) > 2 else (len(both),)
    rows = values.reshape(len(both), -1)
    same = both[:, None] == both
    assert np.array_equal(same, (rows[:, None] == rows).all(axis=-1))
    if len(classes) > 2:
        assert (rows.sum(axis=1) == 2 - len(classes)).all(), "one +1, the others −1"
        assert found.names == tuple(map(str, sorted(classes)))
        assert np.array_equal(np.array(found.names)[rows.argmax(axis=1)], both.astype(str))
    else:
        assert rows[both == max(classes)].min() == 1.0, "sorted order"
    assert bool(found.note) == (sorted(map(str, classes)) != ["-1", "1"])


@given(st.permutations([0, 1] * 4), st.sampled_from([bool, int, np.uint8, float, np.float32]))
def test_zero_and_one_of_every_type(values, dtype):
    """Floating-point ones are classes on request only."""
    real = np.dtype(dtype).kind == "f"
    array = np.array(values, dtype=dtype)
    found = read_labels({"labels": array}, "classes" if real else None)
    assert np.array_equal(found.values["labels"], 2.0 * np.array(values) - 1)
    assert found.values["labels"].dtype == np.float64
    assert "became −1 and +1" in found.note
    as_targets = read_labels({"labels": array}, None if real else "targets")
    assert as_targets.kind == "targets"
    assert np.array_equal(as_targets.values["labels"], values)
    assert ("if they are classes" in as_targets.note) == real


@given(
    hnp.arrays(np.float64, st.integers(3, 8), elements=st.floats(-5, 5)),
    st.booleans(),
)
def test_real_targets_stay(values, column):
    """Those that are 0 too."""
    values[:3] = 0.25, -0.75, 0
    array = values[:, None] if column else values
    found = read_labels({"labels": array, "test_labels": array[2:3]})
    assert np.array_equal(found.values["labels"], values)
    assert np.array_equal(found.values["test_labels"], [0])
    assert found.kind == "targets"
    assert found.note == "real targets, scored by squared error"


def test_whole_numbers_as_floats_are_classes_on_request():
    array = np.array([3.0, 1.0, 2.0, 1.0, 2.0, 3.0])
    assert read_labels({"labels": array}).kind == "targets"
    found = read_labels({"labels": array}, "classes")
    assert found.names == ("1", "2", "3")
    assert found.values["labels"].argmax(axis=1).tolist() == [2, 0, 1, 0, 1, 2]


def test_whole_numbers_of_several_outputs_are_targets_without_advice():
    found = read_labels({"labels": np.array([[3, 5], [1, 2], [4, 4]])})
    assert (found.kind, found.note) == ("targets", "real targets, scored by squared error")


def test_plus_and_minus_one_need_no_note():
    for dtype, kind in ((int, None), (float, "classes")):
        found = read_labels({"labels": np.array([-1, 1, 1], dtype=dtype)}, kind)
        assert (found.kind, found.note) == ("classes", "")


def test_several_outputs():
    values = np.array([[0.5, -2.0], [1.0, 3.0]])
    found = read_labels({"labels": values})
    assert np.array_equal(found.values["labels"], values)
    assert found.kind == "targets"
    one_hot = np.eye(3, dtype=int)
    found = read_labels({"labels": one_hot, "test_labels": one_hot[:1]})
    assert np.array_equal(found.values["labels"], 2 * np.eye(3) - 1)
    assert "one-hot" in found.note
    assert found.kind == "classes"
    assert read_labels({"labels": np.eye(3)}).kind == "targets"
    signs = 2 * np.eye(3) - 1
    assert np.array_equal(read_labels({"labels": signs}, "classes").values["labels"], signs)
    marks = np.array([[1, 1], [0, 1]])
    assert read_labels({"labels": marks}).kind == "targets", "not one class each"


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 0, 0], [0], "labels holds a single class, 0"),
        (["a", "a"], ["a"], "single class"),
        ([0, 1, 0, 1], [2], r"test_labels holds the class 2, which labels lacks"),
        ([0, 1, 0, 1], [0.5], "test_labels holds 0.5, which is no whole number"),
        (["a", "b"], [0], "both be text, or both be numbers"),
        ([0, 1, 2, 3, 4, 5], [0], "6 different values among 6, too many"),
        ([0.5, np.nan], [0.5], "labels holds NaN"),
        ([0.5, 0.5], [0.5], "same number everywhere"),
        ([[0.5, 1.0]] * 2, [[0.5, 2.0]], "same number everywhere"),
        ([1j, 2j], [1j], "labels must hold classes .* complex"),
        ([[[1.0]]], [1.0], r"labels must have shape \(P,\) or \(P, C\), but has \(1, 1, 1\)"),
        ([], [1.0], r"labels must have shape"),
        ([["a", "b"]], [["a", "b"]], "labels must hold classes"),
        ([[1.0, 2.0]], [1.0], "test_labels .* must have as many outputs as labels"),
    ],
)
def test_refusals(train, test, message):
    with pytest.raises(ValueError, match=message):
        read_labels({"labels": np.array(train), "test_labels": np.array(test)})


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        ([0.5, 1.0, 0.5, 1.0], "classes", "labels holds 0.5, which is no whole number"),
        ([[1.0, 1.0], [0.0, 1.0]], "classes", "a single 1 in every row"),
        (["a", "b"], "targets", "labels holds text, which is no target"),
    ],
)
def test_what_is_not_of_the_kind_asked_for(labels, kind, message):
    with pytest.raises(ValueError, match=message):
        read_labels({"labels": np.array(labels)}, kind)
