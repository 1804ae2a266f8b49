"""Exchanges of heads: against every set, within groups, stopped, and by what a refit confirms."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_head_groups import LAYERS, allowed_sets, is_allowed, structure
from test_loss_form import HEADS, network

from pathkernel_pruning.heads.exchanges import ExchangeSearch, exchanged_units
from pathkernel_pruning.heads.gain_choice import choose_heads_by_gains
from pathkernel_pruning.heads.loss_form import held_out_loss
from pathkernel_pruning.heads.set_costs import (
    Exchange,
    LossCriterion,
    PosteriorCriterion,
    best_exchanges,
)

PRIOR = 0.3


def cost_of(form, left):
    """Cost of a set by definition: the least of the second-order cost over the gains left."""
    gains = PosteriorCriterion(PRIOR).gains(form, left, 0.0)
    return form.cost(form.move_to(gains).loss, gains, PRIOR)


def cost_by_criterion(criterion, form, left):
    if isinstance(criterion, PosteriorCriterion):
        return cost_of(form, left)
    return form.move_to(left.astype(float)).loss


@pytest.mark.parametrize("criterion", [LossCriterion(), PosteriorCriterion(PRIOR)])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), data=st.data())
def test_costs_of_removals_are_those_of_the_smaller_sets(criterion, seed, data):
    form = network(seed=seed).form(np.ones(HEADS))
    left = np.array(data.draw(st.lists(st.booleans(), min_size=HEADS, max_size=HEADS)))
    left[data.draw(st.sampled_from(range(HEADS)))] = True
    costs, before = criterion.removals(form, left), cost_by_criterion(criterion, form, left)
    assert costs.whole == pytest.approx(before, abs=1e-9)
    for size in (1, 2, 3):
        for unit in itertools.combinations(np.flatnonzero(left).tolist(), size):
            smaller = left.copy()
            smaller[list(unit)] = False
            rise = cost_by_criterion(criterion, form, smaller) - before
            assert costs.unit(unit) == pytest.approx(rise, abs=1e-8)
            if size == 1:
                assert costs.singles()[unit[0]] == pytest.approx(rise, abs=1e-8)
    assert np.isinf(costs.singles()[~left]).all()


@pytest.mark.parametrize("criterion", [LossCriterion(), PosteriorCriterion(PRIOR)])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), places=st.permutations(range(HEADS)), data=st.data())
def test_a_unit_that_comes_gives_the_costs_of_the_larger_set(criterion, seed, places, data):
    off = data.draw(st.integers(1, HEADS))
    coming = data.draw(st.integers(1, off))
    gains = np.random.default_rng(seed).uniform(0.5, 1.5, HEADS)  # wherever the form is about
    form, left = network(seed=seed).form(gains), np.ones(HEADS, dtype=bool)
    left[places[:off]] = False
    costs = criterion.removals(form, left)
    for head in places[:coming]:  # one by one, and below together
        costs, left[head] = costs.with_unit((head,)), True
    expected = cost_by_criterion(criterion, form, left)
    assert costs.whole == pytest.approx(expected, abs=1e-8)
    direct = criterion.removals(form, left)
    np.testing.assert_allclose(costs.singles(), direct.singles(), atol=1e-8)
    unit = tuple(places[:coming])
    assert costs.unit(unit) == pytest.approx(direct.unit(unit), abs=1e-8)
    left[list(unit)] = False
    together = criterion.removals(form, left).with_unit(unit)
    np.testing.assert_allclose(together.singles(), direct.singles(), atol=1e-8)


@settings(max_examples=25, deadline=None)
@given(LAYERS, st.integers(0, 99), st.data())
def test_exchanges_lead_to_allowed_sets_and_are_ranked_by_their_costs(layers, seed, data):
    groups, criterion = structure(layers), PosteriorCriterion(PRIOR)
    sets = [held for of_count in allowed_sets(groups).values() for held in of_count]
    left = data.draw(st.sampled_from(sets))
    form = network(examples=20, seed=seed, heads=groups.heads).form(np.ones(sum(groups.heads)))
    ranked = best_exchanges(criterion, form, left, groups, 1000)
    assert [exchange.change for exchange in ranked] == sorted(e.change for e in ranked)
    reached = set()
    for change, coming, going in ranked:
        after = left.copy()
        after[list(coming)], after[list(going)] = True, False
        assert not left[list(coming)].any()
        assert is_allowed(after, groups)
        assert after.sum() == left.sum()
        if left.any():
            assert change == pytest.approx(cost_of(form, after) - cost_of(form, left), abs=1e-7)
        reached.add(after.tobytes())
    if all(size == 1 or count == 1 for count, size in layers):  # any pair of heads
        assert len(reached) == left.sum() * (~left).sum()


@pytest.mark.parametrize("refits", [False, True])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_no_exchange_that_the_network_confirms_is_left(loss, refits):
    for seed in range(5):
        made = network(loss, seed=seed)
        choice = choose_heads_by_gains(
            made, 3, trials=0, refits=refits, prior_variance=PRIOR, proposals=20
        )
        assert choice.is_complete
        assert np.count_nonzero(choice.gains) == HEADS - 3
        if refits:
            continue
        left = choice.gains != 0
        for coming, going in itertools.product(np.flatnonzero(~left), np.flatnonzero(left)):
            after = left.astype(float)
            after[coming], after[going] = 1.0, 0.0
            assert made.loss(after) >= made.loss(choice.gains) - 1e-8


def test_exchanges_find_the_best_set_where_one_after_another_misses_it():
    """Heads 1 and 2 each cancel half of head 0, so that the two go together or not at all."""
    found = []
    for proposals in (0, 6):
        made = network(seed=2)
        made.parts[:, :, 1] = made.parts[:, :, 2] = -made.parts[:, :, 0] / 2
        made.parts[:, :, 3:] *= 0.45
        made.targets = made.parts[:, :, 3:].sum(axis=2)
        losses = {
            off: made.loss(np.where(np.isin(range(HEADS), off), 0.0, 1.0))
            for off in itertools.combinations(range(HEADS), 3)
        }
        choice = choose_heads_by_gains(
            made, 3, trials=0, refits=False, prior_variance=PRIOR, proposals=proposals
        )
        found.append(made.loss(choice.gains) - min(losses.values()))
    assert found[1] == pytest.approx(0.0, abs=1e-12)
    assert found[0] > 0.01


def test_a_fall_within_its_error_is_no_reason_where_gains_are_refitted():
    made = network(examples=12, seed=4)
    form = made.form(np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))
    for criterion in (LossCriterion(), PosteriorCriterion(PRIOR)):
        search = ExchangeSearch(made, structure([(HEADS, 1)]), criterion, form, proposals=9)
        before = search.point
        search.run()
        if not search.exchanges:
            continue
        change = search.point.losses - before.losses
        assert search.point.cost < before.cost
        if criterion.errors:
            error = form.weight * change.std() / len(change) ** 0.5
            assert before.cost - search.point.cost > 0.5 * error


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99), refits=st.booleans(), places=st.permutations(range(HEADS)),
    started=st.integers(1, 4), more=st.integers(0, 2), proposals=st.sampled_from([0, 6]),
)  # fmt: skip
def test_a_search_goes_on_from_heads_that_are_off(
    loss, seed, refits, places, started, more, proposals
):
    made = network(loss, seed=seed)
    start, off = [(head,) for head in places[:started]], list(places[:started])
    choice = choose_heads_by_gains(
        *(made, started + more), trials=2, refits=refits, prior_variance=PRIOR, start=start,
        proposals=proposals,
    )  # fmt: skip
    whole = np.ones(HEADS)
    assert choice.whole == pytest.approx(made.loss(whole))
    assert np.flatnonzero(choice.gains == 0).tolist() == sorted(choice.heads)
    assert len(choice.heads) == started + more
    if not proposals:  # only exchanges bring a head back
        assert choice.heads[:started] == off
        assert np.isnan(choice.expected[:started]).all()
        assert np.isfinite(choice.expected[started:]).all()
    if not more and not refits:
        whole[off] = 0.0
        assert made.loss(choice.gains) <= made.loss(whole) + 1e-12
        if not proposals:
            np.testing.assert_array_equal(choice.gains, whole)


@pytest.mark.parametrize("refits", [False, True])
@pytest.mark.parametrize("budget", [1, 2, 5, 9, 20])
def test_a_budget_ends_the_search_with_a_whole_choice(budget, refits):
    made = network("cross-entropy", seed=3)
    choice = choose_heads_by_gains(
        made, 4, trials=3, refits=refits, prior_variance=PRIOR, proposals=6, budget=budget
    )
    assert len(choice.heads) == 4 == np.count_nonzero(choice.gains == 0)
    assert len(choice.units) == len(choice.expected) == len(choice.renewed)
    # what was begun ends: a round of trials, or a step with its shorter ones
    assert made.passes <= budget + HEADS + 6
    if made.passes > budget:
        assert not choice.is_complete


@pytest.mark.parametrize("refits", [False, True])
def test_a_search_that_is_interrupted_tells_its_best_choice(refits):
    made, calls = network("cross-entropy", seed=5), {"left": 0}
    losses = type(made).losses

    def interrupted(gains):
        calls["left"] -= 1
        if calls["left"] < 0:
            raise KeyboardInterrupt
        return losses(made, gains)

    made.losses, notes = interrupted, 0
    for number in range(0, 40, 3):
        calls["left"] = number
        try:
            choose_heads_by_gains(
                made, 4, trials=2, refits=refits, prior_variance=PRIOR, proposals=6
            )
        except KeyboardInterrupt as interrupt:
            (note,) = interrupt.__notes__
            labels = note.partition(": ")[2].split(", ")
            assert "best choice so far, of 4 heads" in note
            assert len({*labels}) == 4
            assert all(label.startswith("1-") for label in labels)
            notes += 1
    assert notes > 2


def test_units_after_exchanges():
    units = [(0,), (4, 6), (2,)]
    exchanges = [
        Exchange(-1.0, (4,), (5,)),
        Exchange(-1.0, (0, 2), (1, 3)),
        Exchange(-1.0, (1,), (0,)),
    ]
    assert exchanged_units(units, exchanges) == [(3, 0), (6, 5)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 99), st.integers(2, 5))
def test_held_out_losses_are_those_of_fits_to_the_other_parts(seed, count):
    made = network(examples=30, seed=seed)
    rows = np.array_split(np.arange(30), count)
    left = np.array([True, True, False, True, True, False])
    gains = left.astype(float)

    def form_of(chosen):
        part = network(examples=30, seed=seed)
        part.parts, part.targets = part.parts[chosen], part.targets[chosen]
        return part, part.form(gains)

    form = replace(made.form(gains), parts=tuple(form_of(chosen)[1] for chosen in rows))
    total = 0.0
    for chosen in rows:
        _, others = form_of(np.setdiff1d(np.arange(30), chosen))
        fitted = replace(others, temperature=form.temperature).refit_gains(left, PRIOR)
        total += len(chosen) * form_of(chosen)[0].loss(fitted)
    fitted = form.move_to(form.refit_gains(left, PRIOR))
    assert held_out_loss(fitted, left, PRIOR) == pytest.approx(total / 30)
    assert np.isnan(held_out_loss(made.form(gains), left, PRIOR))
