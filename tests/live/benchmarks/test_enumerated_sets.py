"""Choices of heads against the best of all sets, on networks of six heads."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="the benchmark is of PyTorch models")
pytest.importorskip("sklearn", reason="the digits are scikit-learn's")

import pathkernel as pk


@pytest.fixture(scope="module")
def drawn(checkout):
    from benchmarks.heads.enumerated_sets import Shape, digit_model
    from benchmarks.heads.orders import Drawn
    from benchmarks.heads.trials import Gained

    model = digit_model(Shape(2, 3, 6, 0), steps=30)
    batch = {name: values[:120] for name, values in model.examples["validation"].items()}
    return Drawn(Gained(model), [batch], (2,), seed=0)


@pytest.fixture(scope="module")
def enumeration(drawn):
    from benchmarks.heads.enumerated_sets import enumerate_sets

    return enumerate_sets(drawn, 2)


def loss(drawn, heads, gains=None):
    """Cross-entropy without heads, by their positions, by the model itself."""
    model, batch = drawn.head_model.model, drawn.batches[0]
    with torch.no_grad(), pk.heads_off(model, [drawn.gained.heads[h] for h in heads], gains=gains):
        return float(torch.nn.functional.cross_entropy(model(batch["images"]), batch["labels"]))


def test_every_set_has_its_loss_without_and_with_a_refit(drawn, enumeration):
    assert sorted(map(tuple, enumeration.sets.tolist())) == list(combinations(range(6), 2))
    assert enumeration.whole == pytest.approx(loss(drawn, []), rel=1e-5)
    for heads in np.random.default_rng().permuted(enumeration.sets, axis=1)[::4]:
        assert enumeration.loss(heads, False) == pytest.approx(loss(drawn, heads), rel=1e-5)
        off = [drawn.gained.heads[head] for head in heads]
        gains = pk.refit_gains(
            *(drawn.head_model.model, drawn.batches, drawn.head_model.outputs, off),
            loss="cross-entropy",
        )
        refitted = loss(drawn, heads, gains)
        assert enumeration.loss(heads, True) == pytest.approx(refitted, rel=1e-5)
        assert refitted < enumeration.loss(heads, False)


def test_a_choice_is_compared_with_the_best_set(drawn, enumeration):
    from benchmarks.heads.enumerated_sets import compare, summary
    from benchmarks.heads.orders import Removed

    def ranked(rank):
        def choice(drawn, count, refit):
            row = np.argsort(enumeration.losses(refit))[rank]
            return Removed(enumeration.sets[row].tolist(), None, 5.0)

        return choice

    rows = pd.DataFrame(compare(drawn, 2, enumeration, {"best": ranked(0), "last": ranked(-1)}))
    table = rows.set_index(["choice", "refit"])
    for refit in (False, True):
        losses = enumeration.losses(refit)
        assert table.loc[("best", refit), "set_gap"] == 0
        assert table.loc[("last", refit), "set_gap"] == pytest.approx(np.ptp(losses))
        assert table.loc[("best", refit), "best"] == pytest.approx(losses.min())
    # with the gains that the choice gives, here none
    assert table.loc[("best", False), "gap"] == pytest.approx(0, abs=1e-6)
    assert table.loc[("best", True), "gap"] > 0
    means = summary(rows)
    assert means["finds"].tolist() == [1, 0, 1, 0]
    assert (means["passes"] == 5).all()


def test_choose_heads_and_trials_are_compared(drawn, enumeration):
    from benchmarks.heads.enumerated_sets import compare

    rows = {(row["choice"], row["refit"]): row for row in compare(drawn, 2, enumeration)}
    plain, refitted = rows["greedy by trial", False], rows["greedy by trial", True]
    assert plain["passes"] == 6 + 5
    assert refitted["passes"] > plain["passes"]
    for row in (plain, refitted):
        assert row["gap"] == pytest.approx(row["set_gap"], abs=1e-6)
    for (_, refit), row in rows.items():
        assert row["set_gap"] >= 0
        assert row["gap"] < np.ptp(enumeration.losses(refit))
        assert row["passes"] > 0


def test_losses_are_cached_for_one_network(drawn, enumeration, tmp_path, monkeypatch):
    from benchmarks.heads import enumerated_sets
    from benchmarks.heads.orders import Drawn
    from benchmarks.heads.trials import Gained

    measured = []

    def measure(drawn, count):
        measured.append(count)
        return enumeration

    monkeypatch.setattr(enumerated_sets, "enumerate_sets", measure)
    for _ in range(2):
        cached = enumerated_sets.read_or_enumerate(drawn, 2, tmp_path / "sets")
    assert measured == [2]
    np.testing.assert_array_equal(cached.refitted, enumeration.refitted)
    np.testing.assert_array_equal(cached.sets, enumeration.sets)
    other = enumerated_sets.digit_model(enumerated_sets.Shape(2, 3, 6, 0), steps=5)
    drawn = Drawn(Gained(other), drawn.batches, (2,), seed=0)
    enumerated_sets.read_or_enumerate(drawn, 2, tmp_path / "sets")
    assert measured == [2, 2]  # as this is another network, of the same name
