"""Tasks whose attention must be found: their sequences, heads, and what heads are worth."""

import numpy as np
import pytest

import pathkernel_core as pk
from pathkernel_core.contracts.testing import check_task
from pathkernel_tasks.copying import Copying
from pathkernel_tasks.single_location import SingleLocation


@pytest.mark.parametrize("attention", ["ideal", "random"])
def test_single_location_follows_the_contract(attention):
    check_task(
        SingleLocation(examples=10, test_examples=8, tokens=5, token_width=4, attention=attention)
    )


@pytest.mark.parametrize("attention", ["content", "position", "random"])
def test_copying_follows_the_contract(attention):
    check_task(Copying(examples=10, test_examples=8, tokens=5, attention=attention))


def test_the_marked_token_holds_the_label():
    """A mark that no noise reaches tells the place; nothing else tells the label."""
    drawn = SingleLocation(examples=2000, mark=50.0).realise(1)
    inputs, labels = drawn.train.inputs, drawn.train.labels
    assert inputs.shape == (2000, 16, 16)
    marked = inputs[:, :, 0] > 25
    assert (marked.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(np.sign(inputs[marked][:, 1]), labels)
    counts = marked.sum(axis=0)  # anywhere alike
    assert abs(counts - 125).max() < 5 * 125**0.5
    noise = inputs[~marked]
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert noise.std() == pytest.approx(1, rel=0.01)
    assert abs(labels.mean()) < 5 / 2000**0.5
    for seed, same in ((1, True), (2, False)):
        again = SingleLocation(examples=2000, mark=50.0).realise(seed)
        assert np.array_equal(again.train.inputs, inputs) is same


def parts(examples, tag_width=4):
    """Values, tags, positions."""
    values, tags, positions = np.split(examples.inputs, [1, 1 + tag_width], axis=2)
    return values[:, :, 0], tags, positions


@pytest.mark.parametrize("agreement", [0.0, 0.3, 1.0])
def test_the_token_of_the_last_tag_holds_the_label(agreement):
    task = Copying(examples=1000, test_examples=200, agreement=agreement)
    drawn = task.realise(1)
    sets = {"train": (drawn.train, agreement)}
    sets |= {"together": (drawn.test_sets["together"], 1.0)}
    sets |= {"apart": (drawn.test_sets["apart"], 0.0)}
    for name, (examples, share) in sets.items():
        values, tags, positions = parts(examples)
        lengths = [np.linalg.norm(part, axis=2) for part in (tags, positions)]
        np.testing.assert_allclose(lengths, 2.0, err_msg=name)  # of either, √(tag width)
        np.testing.assert_array_equal(positions[0], 2 * np.eye(8))
        same = np.abs(tags[:, :-1] - tags[:, -1:]).max(axis=2) < 1e-12
        assert (same.sum(axis=1) == 1).all()
        assert not values[:, -1].any()
        np.testing.assert_array_equal(np.sign(values[:, :-1][same]), examples.labels)
        error = (share * (1 - share) / len(same)) ** 0.5
        assert same[:, 0].mean() == pytest.approx(share, abs=5 * error), name


def attended(task, seed=0):
    """Mean attention of the first head to the first token and to the token to copy."""
    drawn = task.realise(seed)
    examples = drawn.test_sets["apart"]
    omega = drawn.layers[0].attention(examples.inputs, query=task.tokens - 1)[:, 0, :, 0]
    tags = parts(examples)[1]
    copied = np.argmax(np.abs(tags[:, :-1] - tags[:, -1:]).max(axis=2) < 1e-12, axis=1)
    return omega[:, 0].mean(), omega[np.arange(len(omega)), copied].mean()


def test_heads_attend_to_what_they_are_named_after():
    first, copied = attended(Copying(attention="position"))
    assert first > 0.95
    assert copied < 0.02
    first, copied = attended(Copying(attention="content"))
    # the query holds its tag, too, and attends to itself as much
    assert copied > 0.35
    assert first < 0.05


def accuracies(task, width=30):
    drawn = task.realise(0)
    xi = pk.attentioned_inputs(drawn.train.inputs, drawn.layers, drawn.readout)
    problem, network = pk.Problem(xi, drawn.train.labels), pk.Network(drawn.heads, width)
    solution = pk.minimise_action(problem, network, 0.1)
    return {
        name: np.mean(
            np.sign(
                solution.predict_mean(
                    pk.attentioned_inputs(examples.inputs, drawn.layers, drawn.readout)
                )
            )
            == examples.labels
        )
        for name, examples in drawn.test_sets.items()
    }


def test_the_right_head_is_worth_its_place():
    assert accuracies(SingleLocation(heads=1))["test"] > 0.85
    assert accuracies(SingleLocation(heads=1, attention="random"))["test"] < 0.65
    content = accuracies(Copying(heads=1))
    position = accuracies(Copying(heads=1, attention="position", agreement=1.0))
    assert min(content.values()) > 0.9
    assert position["together"] > 0.95
    assert position["apart"] == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SingleLocation(tokens=1), "tokens"),
        (lambda: SingleLocation(mark=-1.0), "mark"),
        (lambda: SingleLocation(attention="uniform"), "attention"),
        (lambda: Copying(agreement=1.1), "agreement"),
        (lambda: Copying(tokens=2), "tokens"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
