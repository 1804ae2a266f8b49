"""Choices of heads that share keys and values: chosen, taken out, refused; as arguments."""

import copy
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.errors import CaptureError
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.head_choice import choose_heads, refit_gains
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

WIDTH, SIZE, EXAMPLES = 8, 2, 120


class GroupedAttention(nn.Module):
    """Heads of which several share keys and values."""

    def __init__(self, heads, groups):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, heads * SIZE)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, groups * SIZE) for _ in range(2))
        self.o_proj = nn.Linear(heads * SIZE, WIDTH)

    def forward(self, x):
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in projections)
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    def pathkernel_heads(self):
        heads = self.q_proj.out_features // SIZE
        return AttentionHeads(heads, self.o_proj, [self.q_proj, self.k_proj, self.v_proj])


class Grouped(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(GroupedAttention(*layer) for layer in layers)
        self.double().eval()

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


INPUTS = torch.randn(EXAMPLES, 4, WIDTH, generator=torch.Generator().manual_seed(1)).double()
TARGETS = torch.randn(EXAMPLES, generator=torch.Generator().manual_seed(2)).double()


def chosen(model, count, **options):
    def outputs(batch):
        return model(batch).mean(dim=(1, 2)), TARGETS

    return choose_heads(model, [INPUTS], outputs, count, **options)


def outputs_without(model, heads, **options):
    with torch.no_grad(), heads_off(model, heads, **options):
        return model(INPUTS)


@pytest.mark.parametrize("layers", [[(4, 2), (4, 2)], [(6, 3), (4, 4)], [(4, 1), (6, 2)]])
@pytest.mark.parametrize("part", [1, 2, 3])
def test_by_default_a_choice_can_be_taken_out(layers, part):
    model = Grouped(*layers)
    count = sum(heads for heads, _ in layers) * part // 4
    choice = chosen(model, count)
    assert choice.groups
    assert len(choice.heads) == count == len(choice.table)
    expected = outputs_without(model, choice)
    np.testing.assert_array_equal(
        expected, outputs_without(model, choice.heads, gains=choice.gains)
    )
    remove_heads(model, choice, batch=INPUTS, smaller=True)
    torch.testing.assert_close(model(INPUTS), expected, rtol=1e-9, atol=1e-12)
    left = sum(max(attention.o_proj.in_features // SIZE, 1) for attention in model.layers)
    assert left >= sum(heads for heads, _ in layers) - count


def test_heads_of_a_unit_go_together():
    choice = chosen(Grouped((4, 2), (4, 2)), 4)
    table = choice.table.groupby("unit")
    assert [int(unit) for unit in choice.table["unit"].unique()] == [*range(1, len(table) + 1)]
    assert (table["expected"].nunique() == 1).all()
    assert table.size().max() == 2
    for _, rows in table:
        assert not rows["renewed"].iloc[1:].any()
        assert {head.split("-")[0] for head in rows["head"]} <= {"1", "2"}


@pytest.mark.parametrize("more", [0, 2, 4])
def test_a_choice_from_a_start_can_be_taken_out(more):
    model = Grouped((4, 2), (6, 3), (2, 2))
    start = ["1-1", "1-3", "2-3", "2-4", "3-2"]
    choice = chosen(model, 5 + more, start=start, proposals=0)
    assert {(1, 1), (1, 3), (2, 3), (2, 4), (3, 2)} <= {*choice.heads}
    assert choice.table["unit"].iloc[:5].tolist() == [1, 1, 2, 2, 3]
    assert choice.table["expected"].iloc[:5].isna().all()
    again = chosen(model, 5 + more, start=choice.heads)
    assert again.rise.measured <= chosen(model, 5 + more, start=choice, proposals=0).rise.measured
    expected = outputs_without(model, again)
    remove_heads(model, again, batch=INPUTS, smaller=True)
    torch.testing.assert_close(model(INPUTS), expected, rtol=1e-9, atol=1e-12)


def test_a_start_that_leads_to_no_choice_is_refused():
    model = Grouped((4, 2), (6, 3))
    with pytest.raises(ValueError, match="start has 3 heads, more than count, 2"):
        chosen(model, 2, start=[(1, 1), (1, 2), (2, 1)])
    with pytest.raises(ValueError, match=r"start has heads that share .* whole groups"):
        chosen(model, 4, start=[(1, 1)])
    with pytest.raises(ValueError, match=r"with the 4 heads of start, .* can be 4, 6, 7, 8, 9, 10"):
        chosen(model, 5, start=[(1, 1), (1, 2), (1, 3), (1, 4)])
    with pytest.raises(ValueError, match="names"):
        chosen(model, 4, start=[(3, 1)])
    free = chosen(model, 3, start=[(1, 1)], groups=False, proposals=0)
    assert free.heads[0] == (1, 1)


def test_heads_may_be_free():
    model = Grouped((4, 2), (4, 2))
    free = chosen(model, 1, groups=False)
    assert not free.groups
    assert free.table["unit"].tolist() == [1]
    with pytest.raises(ValueError, match=r"count is 1, but heads that share .*; choose 2, or any"):
        chosen(model, 1)
    with pytest.raises(ValueError, match=r"choose 4 or 7, or any number with groups=False"):
        chosen(Grouped((16, 4)), 5, groups=True)
    with pytest.raises(TypeError, match="groups must be True or False, but is 2"):
        chosen(model, 2, groups=2)


def test_models_without_shared_keys_are_free():
    model = Grouped((4, 4), (4, 1))
    choices = [chosen(model, 3, groups=groups) for groups in (None, True, False)]
    assert not any(choice.groups for choice in choices)
    assert choices[0].heads == choices[1].heads == choices[2].heads
    assert choices[0].table["unit"].tolist() == [1, 2, 3]


def test_refused_before_the_model_runs():
    model = Grouped((4, 2), (4, 4), (6, 3))
    model.forward = pytest.fail
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CaptureError) as refusal:
        remove_heads(model, [(1, 2), (2, 1), (3, 1)], batch=INPUTS, smaller=True)
    assert str(refusal.value) == (
        "heads cannot be taken out of layer 1 (layers.0) (nor of layer 3): heads 1 to 2 and 3 to 4 "
        "share keys and values, so that whole groups can be taken out, or as many heads of each "
        "group that stays; name head 1 as well, or leave out head 2; choose_heads(…, groups=True) "
        "chooses heads that can, and without smaller their weights are set to zero"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    del model.forward
    remove_heads(model, [(1, 2), (2, 1), (3, 1)], batch=INPUTS)  # shapes stay
    assert not model.layers[0].o_proj.weight[:, SIZE : 2 * SIZE].any()


def test_gains_of_a_choice_stand_back():
    """Behind those that are given; and with means, as they were fitted with zeros."""
    model = Grouped((4, 2), (4, 2))
    choice = chosen(model, 2)
    plain, others = outputs_without(model, choice.heads), choice.gains.where(choice.gains == 0, 0.5)
    assert not torch.allclose(outputs_without(model, choice), plain)
    by_hand = outputs_without(model, choice.heads, gains=others)
    assert torch.equal(outputs_without(model, choice, gains=others), by_hand)
    mean = {"replace": "mean", "batches": [INPUTS]}
    means = [outputs_without(model, heads, **mean) for heads in (choice, choice.heads)]
    assert torch.equal(*means)
    removed = copy.deepcopy(model)
    remove_heads(removed, choice, batch=INPUTS, gains=others)
    torch.testing.assert_close(removed(INPUTS), by_hand, rtol=1e-9, atol=1e-12)
    unfitted = chosen(model, 2, refit=False)
    assert torch.equal(outputs_without(model, unfitted), outputs_without(model, unfitted.heads))

    def outputs(batch):
        return model(batch).mean(dim=(1, 2)), TARGETS

    one, other = (refit_gains(model, [INPUTS], outputs, heads) for heads in (choice, choice.heads))
    assert one.identical(other)


def test_a_choice_among_heads_that_were_renumbered_is_refused():
    model = Grouped((4, 2), (4, 2))
    choice = chosen(model, 2)
    remove_heads(model, choice, batch=INPUTS, smaller=True)
    for use in (
        lambda: outputs_without(model, choice),
        lambda: remove_heads(model, choice, batch=INPUTS),
    ):
        with pytest.raises(ValueError, match="among the 8 heads of another model, and this one"):
            use()


@pytest.mark.parametrize("removed", [None, [2, 4]])
def test_a_choice_is_an_order_of_a_comparison(removed):
    model = Grouped((4, 2), (4, 2))
    choice, sets = chosen(model, 4), {"validation": slice(0, 60), "test": slice(60, None)}

    def measure(name):
        return (model(INPUTS[sets[name]]).mean(dim=(1, 2)) - TARGETS[sets[name]]) ** 2

    options = {"random": 2, "resamples": 2}
    result = compare_heads(model, measure, {"chosen": choice}, removed=removed, **options)
    assert result["removed"].values.tolist() == [0, 2, 4]  # not three quarters, which it lacks
    for count in (2, 4):
        is_off = result["is_removed"].sel(order="chosen", removed=count).values.ravel() == 1
        labels = result["head"].values[is_off].tolist()
        assert sorted(labels) == sorted(choice.table["head"][:count])
        with torch.no_grad(), heads_off(model, choice.heads[:count]):
            expected = float(measure("test").mean())
        measured = result["measured"].sel(order="chosen", removed=count).squeeze()
        assert float(measured) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"'chosen'\] chooses 4 heads, but removed asks for 5"):
        compare_heads(model, measure, {"chosen": choice}, removed=[2, 5], **options)
    with pytest.raises(ValueError, match="among the 8 heads of another model, and this one has 4"):
        compare_heads(Grouped((4, 2)), measure, {"chosen": choice}, **options)


def test_a_saved_model_tells_its_choice(tmp_path):
    model, folder = Grouped((4, 2), (4, 2)), tmp_path / "smaller"
    choice = chosen(model, 4)
    remove_heads(model, choice, batch=INPUTS, smaller=True)
    with pytest.raises(TypeError, match="choice must be a HeadChoice, of choose_heads, but is a"):
        save_model(model, folder, choice=choice.heads)
    assert not folder.exists()
    save_model(model, folder, choice=choice)
    told = json.loads((folder / "pathkernel.json").read_text())["choice"]
    assert told["heads"] == choice.table["head"].tolist()
    assert told["gains"] == dict(zip(choice.gains["head"].values, choice.gains.values))
    told_rises = {name: rise for name, rise in choice.rise._asdict().items() if rise == rise}
    assert told["rise"] == told_rises
    assert {"expected", "measured"} <= told_rises.keys()
    loaded = load_model(folder, model=Grouped((4, 2), (4, 2)))
    assert torch.equal(loaded(INPUTS), model(INPUTS))
    save_model(model, folder)
    assert json.loads((folder / "pathkernel.json").read_text())["choice"] is None


def test_a_choice_of_heads_that_are_there_or_of_another_model_is_not_told(tmp_path):
    model, folder = Grouped((4, 2), (4, 2)), tmp_path / "smaller"
    choice = chosen(model, 4)
    with pytest.raises(ValueError, match=r"choice names heads that the model still has: \d-\d"):
        save_model(model, folder, choice=choice)
    with pytest.raises(ValueError, match="choice is of 8 heads, those of another model"):
        save_model(Grouped((4, 2)), folder, choice=choice)
    assert not folder.exists()
    remove_heads(model, choice, batch=INPUTS, smaller=True)
    later = chosen(model, 2)  # among those that are left, with their new numbers
    with pytest.raises(ValueError, match=r"choice names heads|those of another"):
        save_model(model, folder, choice=later)
    remove_heads(model, later, batch=INPUTS, smaller=True)
    save_model(model, folder, choice=later)
    assert len(json.loads((folder / "pathkernel.json").read_text())["choice"]["heads"]) == 2


def test_the_table_of_heads_shows_who_shares():
    table = list_heads(Grouped((4, 2), (4, 4), (6, 1)))
    assert table["groups"].tolist() == [2, 4, 1]
    assert table["sharing"].tolist() == ["1 to 2, …", "", "1 to 6"]
    assert max(map(len, str(table).splitlines())) <= 80
    assert "..." not in str(table)
