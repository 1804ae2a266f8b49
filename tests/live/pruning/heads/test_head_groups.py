"""Units of heads that can be taken out together, and choices among them."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loss_form import network

from pathkernel_pruning.heads import gain_choice
from pathkernel_pruning.heads.gain_choice import cheapest_unit, choose_heads_by_gains
from pathkernel_pruning.heads.group_faults import group_fault
from pathkernel_pruning.heads.head_groups import HeadGroups

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 3))  # groups, and heads of each
LAYERS = st.lists(SIZES, min_size=1, max_size=3).filter(
    lambda layers: sum(groups * size for groups, size in layers) <= 9
)


def structure(layers, keeps_layers=False):
    heads = tuple(groups * size for groups, size in layers)
    return HeadGroups(heads, tuple(groups for groups, _ in layers), keeps_layers)


def is_allowed(present, groups):
    """By definition: groups that are left have equally many heads."""
    start = 0
    for heads, count in zip(groups.heads, groups.groups):
        size = heads // count
        left = [sum(present[first : first + size]) for first in range(start, start + heads, size)]
        if len({*left} - {0}) > 1 or (groups.keeps_layers and not any(left)):
            return False
        start += heads
    return True


def allowed_sets(groups):
    """All sets of heads that are left, by the number of heads that went."""
    by_count = {}
    for present in itertools.product([True, False], repeat=sum(groups.heads)):
        if is_allowed(present, groups):
            by_count.setdefault(present.count(False), []).append(np.array(present))
    return by_count


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.booleans(), st.data())
def test_sets_and_their_numbers_are_those_of_the_definition(layers, keeps_layers, data):
    groups = structure(layers, keeps_layers)
    sets = allowed_sets(groups)
    full = np.ones(sum(groups.heads), dtype=bool)
    assert groups.counts(full) == sorted(sets)
    assert [n for n in range(-1, len(full) + 2) if groups.can_lose(full, n)] == sorted(sets)
    present = np.array(data.draw(st.tuples(*[st.booleans()] * len(full))))
    assert groups.allows(present) == is_allowed(present, groups)
    # from a set on the way those that are part of it
    start = data.draw(st.sampled_from([held for of_count in sets.values() for held in of_count]))
    parts = {
        int(start.sum() - held.sum())
        for of_count in sets.values()
        for held in of_count
        if (held <= start).all()
    }
    assert groups.counts(start) == sorted(parts)


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.booleans(), st.data())
def test_units_lead_from_allowed_sets_to_allowed_sets(layers, keeps_layers, data):
    groups = structure(layers, keeps_layers)
    sets = [held for of_count in allowed_sets(groups).values() for held in of_count]
    present = data.draw(st.sampled_from(sets))
    units = [{int(head)} for head in np.flatnonzero(groups.single_heads(present))]
    units += [{*unit} for slots in groups.blocks(present) for unit in itertools.product(*slots)]
    for unit in units:
        left = present.copy()
        left[list(unit)] = False
        assert present[list(unit)].all()
        assert is_allowed(left, groups)
    # and none is missing: any smaller set is reached by one of them, or by several
    for held in sets:
        if (held <= present).all() and (held != present).any():
            gone = {*np.flatnonzero(present & ~held).tolist()}
            assert any(unit <= gone for unit in units)


@settings(max_examples=25, deadline=None)
@given(LAYERS, st.integers(0, 3), st.booleans(), st.integers(0, 99), st.data())
def test_every_choice_can_be_taken_out(layers, trials, refits, seed, data):
    groups = structure(layers)
    made = network(examples=20, seed=seed, heads=groups.heads)
    present = np.ones(sum(groups.heads), dtype=bool)
    count = data.draw(st.sampled_from(groups.counts(present)[1:]))
    choice = choose_heads_by_gains(
        made, count, trials=trials, refits=refits, prior_variance=0.3, groups=groups
    )
    for unit in choice.units:
        present[list(unit)] = False
        assert is_allowed(present, groups)
    assert len(choice.heads) == len({*choice.heads}) == count == np.count_nonzero(~present)
    assert ((choice.gains == 0) == ~present).all()
    assert len(choice.expected) == len(choice.renewed) == len(choice.units)


@settings(max_examples=25, deadline=None)
@given(LAYERS, st.integers(0, 99), st.data())
def test_choices_among_all_sets(layers, seed, data):
    """Of one unit the best; of several within the range of all, at the form's own rise."""
    groups = structure(layers)
    made, full = network(seed=seed, heads=groups.heads), np.ones(sum(groups.heads))
    form = made.form(full)
    rises = {
        count: [form.rise(~held) for held in of_count]
        for count, of_count in allowed_sets(groups).items()
    }
    smallest = sorted(rises)[1]
    for count in {smallest, data.draw(st.sampled_from(sorted(rises)[1:]))}:
        choice = choose_heads_by_gains(
            made, count, trials=0, refits=False, prior_variance=0.3, groups=groups
        )
        gone = choice.gains == 0
        rise = form.rise(gone)
        if count == smallest:
            assert rise == pytest.approx(min(rises[count]), abs=1e-9)
        assert min(rises[count]) - 1e-9 <= rise <= max(rises[count]) + 1e-9
        if choice.renewed.count(True) == 1 or len(layers) == 1:  # else the form is another one
            assert choice.expected[-1] - choice.whole == pytest.approx(rise, abs=1e-9)


def test_a_choice_is_far_better_than_chance():
    """Greedy by units is close to the best of all sets: a tenth of the way to their mean."""
    shares = []
    for seed in range(12):
        groups = structure([[(2, 2), (3, 2), (2, 3)][seed % 3], (4, 1)])
        made, full = network(seed=seed, heads=groups.heads), np.ones(sum(groups.heads))
        made.targets = made.parts @ full + 0.3 * made.targets
        form = made.form(full)
        for count, sets in allowed_sets(groups).items():
            rises = [form.rise(~held) for held in sets]
            if len(sets) > 1:
                choice = choose_heads_by_gains(
                    made, count, trials=0, refits=False, prior_variance=0.3, groups=groups
                )
                best = min(rises)
                rise = form.rise(choice.gains == 0)
                shares.append((rise - best) / (np.mean(rises) - best))
    assert len(shares) > 50
    assert np.mean(shares) < 0.1
    assert np.mean(np.array(shares) < 1e-6) > 0.6


def test_redundant_groups_do_not_both_go():
    """The rise of a unit is that of its block: heads that cancel can only go together."""
    made = network(seed=1, heads=(6,))
    made.parts[..., 1] = -made.parts[..., 0]  # of one group, at no rise
    made.targets = made.parts @ np.ones(6)
    groups = HeadGroups((6,), (3,))
    choice = choose_heads_by_gains(
        made, 2, trials=0, refits=False, prior_variance=0.3, groups=groups
    )
    assert choice.units == [(0, 1)]
    assert choice.expected[-1] == pytest.approx(choice.whole, abs=1e-12)
    alone = made.form(np.ones(6)).rises()
    assert alone[:2].sum() > 0.1


def test_units_are_tried_at_once():
    made = network(seed=2, heads=(8,))
    groups, tried = HeadGroups((8,), (4,)), []

    def loss(gains):
        tried.append(np.flatnonzero(gains == 0).tolist())
        return type(made).loss(made, gains)

    made.loss = loss
    choice = choose_heads_by_gains(
        made, 2, trials=3, refits=False, prior_variance=0.3, groups=groups
    )
    assert len(tried) == 4  # the unit that goes by the form, and three more
    pairs = [heads for heads in tried if len(heads) == 2]  # else of a group that would be the last
    assert len(pairs) > 1
    losses = [made.loss(np.where(np.isin(range(8), heads), 0.0, 1.0)) for heads in pairs]
    assert choice.expected[-1] == pytest.approx(min(losses))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 3), st.integers(2, 4), st.integers(0, 999))
def test_the_best_head_of_every_group(size, groups, seed):
    generator = np.random.default_rng(seed)
    slots = np.arange(size * groups).reshape(groups, size).tolist()
    increments = generator.normal(size=size * groups)
    root = generator.normal(size=(size * groups,) * 2)
    pairs = root @ root.T / len(root)

    def rise(unit):
        return increments[list(unit)].sum() + sum(
            pairs[a, b] for a, b in itertools.combinations(unit, 2)
        )

    unit, value = cheapest_unit(slots, increments, pairs)
    assert value == pytest.approx(rise(unit))
    assert value == pytest.approx(min(map(rise, itertools.product(*slots))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gain_choice, "MOST_UNITS", 1)
        other, larger = cheapest_unit(slots, increments, pairs)
    assert larger == pytest.approx(rise(other))
    assert larger >= value - 1e-9
    for place, slot in enumerate(slots):  # no other head of any one group is better
        for head in slot:
            assert rise((*other[:place], head, *other[place + 1 :])) >= larger - 1e-9


def heads_named(text):
    """Numbers of heads to change, and the heads among which they are, of a message."""
    parts = re.findall(
        r"(?:(\d+) of )?heads? ((?:\d+, )*\d+(?: (?:to|and) \d+)?)(?=,| and|$)", text
    )
    for number, listed in parts:
        numbers = [int(head) for head in re.findall(r"\d+", listed)]
        if " to " in listed:
            numbers = list(range(numbers[0], numbers[1] + 1))
        yield int(number or len(numbers)), numbers


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_a_fault_names_heads_to_add_or_to_leave_out(groups, size, data):
    heads = groups * size
    lost = data.draw(st.sets(st.integers(1, heads)))
    rule = HeadGroups((heads,), (groups,))

    def can_go(numbers):
        return rule.allows(np.array([head not in numbers for head in range(1, heads + 1)]))

    fault = group_fault(heads, groups, lost)
    assert (fault == "") == can_go(lost)
    if fault:
        _, more, fewer = re.fullmatch(r"(.*); name (.*) as well, or leave out (.*)", fault).groups()
        added = [head for number, among in heads_named(more) for head in among[:number]]
        assert added
        assert not {*added} & lost
        assert can_go(lost | {*added})
        left = [head for number, among in heads_named(fewer) for head in among[-number:]]
        assert left
        assert {*left} <= lost
        assert can_go(lost - {*left})


def test_faults_in_words():
    assert group_fault(8, 2, [1, 2, 5]) == (
        "heads 1 to 4 and 5 to 8 share keys and values, so that whole groups can be taken out, or "
        "as many heads of each group that stays; name 1 of heads 6 to 8 as well, or leave out 1 of "
        "heads 1 and 2"
    )
    fault = group_fault(32, 8, [1])
    assert "heads 1 to 4, 5 to 8, 9 to 12, 13 to 16, 17 to 20, … and 29 to 32 share" in fault
    assert fault.endswith("name heads 2 to 4 as well, or leave out head 1")
    assert group_fault(4, 4, [1]) == group_fault(4, 1, [1, 3]) == ""
