"""Misuses of the functions of live models: each error names the argument and a remedy."""

import os
import random
import traceback

import numpy as np
import pytest
import xarray as xr

import pathkernel_core as pk

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_capture.capture import capture
from pathkernel_capture.network_choice import choose_network
from pathkernel_capture.theory_rises import theory_rises
from pathkernel_models.attention_heads import AttentionHeads
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_pruning.live.comparison import compare_heads
from pathkernel_pruning.live.head_choice import choose_heads, curvature_scores, refit_gains
from pathkernel_pruning.live.head_scores import gradient_scores, magnitude_scores
from pathkernel_pruning.live.removal import remove_heads

torch.manual_seed(0)
LAYER = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
MODEL = nn.TransformerEncoder(LAYER, 2, enable_nested_tensor=False).eval()
INPUTS, TARGETS = torch.randn(4, 3, 8), torch.randn(4)
SCORES = magnitude_scores(MODEL, INPUTS)
LABELLED = (INPUTS, TARGETS)


def outputs(batch):
    return MODEL(batch).mean(dim=(1, 2)), TARGETS


def losses(_):
    return MODEL(INPUTS).square().mean(dim=(1, 2))


def silent(_):
    pass


def switched_off(*args, **options):
    with heads_off(*args, **options):
        MODEL(INPUTS)


def described(**parts):
    return AttentionHeads(**{"count": 2, "output": nn.Linear(8, 8)} | parts)


CAPTURED = capture(MODEL, [LABELLED]).scale_tokens(3.0)
PROBLEM = pk.Problem(CAPTURED.xi, CAPTURED.labels)
SOLUTION = pk.gp_limit(PROBLEM, pk.Network(CAPTURED.heads, 10.0), 0.1)
CHOICE = {"model": MODEL, "batches": [INPUTS], "outputs": outputs, "report": silent}
COMPARED = {"model": MODEL, "measure": losses, "scores": {"first": SCORES}, "report": silent}
COMPARED |= {"random": 2, "resamples": 2}
TANGENT = {"model": MODEL, "batches": [INPUTS], "picture": "tangent", "outputs": outputs}
# name: a function, and arguments that it takes
FUNCTIONS = {
    "list": (list_heads, {"model": MODEL}),
    "off": (switched_off, {"model": MODEL, "heads": [(1, 1)]}),
    "mean": (
        switched_off,
        {"model": MODEL, "heads": [(1, 1)], "replace": "mean", "batches": [INPUTS]},
    ),
    "remove": (remove_heads, {"model": MODEL, "heads": [], "batch": INPUTS}),
    "choose": (choose_heads, CHOICE | {"count": 1}),
    "refit": (refit_gains, CHOICE | {"heads": [(1, 1)]}),
    "curvature": (
        curvature_scores,
        {name: CHOICE[name] for name in ("model", "batches", "outputs")},
    ),
    "gradient": (gradient_scores, {"model": MODEL, "batches": [INPUTS], "loss": losses}),
    "magnitude": (magnitude_scores, {"model": MODEL, "batch": INPUTS}),
    "compare": (compare_heads, COMPARED),
    "capture": (capture, {"model": MODEL, "batches": [INPUTS]}),
    "tangent": (capture, TANGENT),
    "describe": (described, {}),
    "network": (choose_network, {"train": CAPTURED, "report": silent}),
    "rises": (theory_rises, {"train": CAPTURED, "validation": CAPTURED, "solution": SOLUTION}),
}


class Thing:
    """An object of no use."""


def no_numbers():
    """Things that are no number, function, module, batch, sequence or name of an option."""
    return [None, "three", 1.5, {"a": 1}, Thing(), np.nan, {1, 2}, [None], nn.Linear]


# an argument, the functions that take it, and values that none of them does beside no_numbers
WRONG = {
    "model": ("list off remove choose refit curvature gradient magnitude compare capture", []),
    "heads": (
        "off remove refit",
        [(1, 1), [1, 2], [(1, 9)], [(3, 1)], ["1-2-3"], [(1, -1)], SCORES],
    ),
    "gains": ("off remove", [[1, 2], np.ones(4), SCORES[:2], SCORES * np.nan, SCORES * 1j]),
    "batches": ("mean choose refit curvature gradient capture tangent", [INPUTS, 3]),
    "batch": ("remove magnitude", [INPUTS.numpy(), INPUTS[:0], INPUTS[..., :5], {"x": INPUTS}]),
    "outputs": (
        "choose refit curvature tangent",
        [MODEL, lambda _: None, lambda _: (TARGETS, "a")],
    ),
    "loss": ("gradient", [lambda _: losses(_) * 1j, lambda _: losses(_).numpy(force=True)]),
    "count": ("choose", [0, 5, True, "2"]),
    "proposals": ("choose", [-1]),
    "passes": ("choose", [0, -1.0, float("nan")]),
    "prior_variance": ("choose refit", [0.0, -1.0, torch.ones(2)]),
    "seed": ("choose refit curvature compare capture tangent", [-1, "0"]),
    "report": ("choose refit compare network", []),
    "refit": ("choose", ["no"]),
    "smaller": ("remove", ["no", 1]),
    "replace": ("mean", ["median"]),
    "measure": (
        "compare",
        [lambda _: "a", lambda _: (losses(_), losses(_)), lambda _: [[1], [1, 2]]],
    ),
    "scores": ("compare", [SCORES, {"first": [1, 2]}, {"first": SCORES.astype(str)}]),
    "removed": ("compare", [3, [9], ["1"]]),
    "random": ("compare", [-1]),
    "kept": ("compare", [3]),
    "readout": ("capture", [9, [0], slice("a", None)]),
    "picture": ("capture", [["heads"]]),
    "layers": ("capture tangent", [1, [0], [3], ["1"], [1.0], [[1]], [True], [1, 1], []]),
    "masks": ("capture mean", [3, ["a"], [[[1, 0], [1]]], []]),
    "projection": ("tangent", [0, True]),
    "train": ("network rises", [SCORES]),
    "validation": ("rises", [SCORES]),
    "solution": ("rises", [SCORES]),
    "output": ("describe", [torch.ones(8, 8), nn.LayerNorm(8), nn.Conv1d(8, 8, 1)]),
    "projections": ("describe", [nn.Linear(8, 24), [nn.Linear(8, 12)] * 2]),
}
# values of no_numbers that a function takes, or leaves to a function of the user's
TAKEN = {name: ["None"] for name in ("gains", "report", "layers", "removed", "masks", "kept")}
TAKEN["passes"] = ["None"]
TAKEN["layers"] += ["{1, 2}"]
TAKEN["removed"] += ["{1, 2}"]
TAKEN["masks"] += ["[None]"]
TAKEN["kept"] += ["'three'"]
TAKEN["batches"] = ["[None]", "{1, 2}"]
FUNCTION = ("report", "measure", "loss", "outputs")  # as a class is, too
NAMED = {"batches": "a batch", "heads": "head"}


def misuses():
    generator = random.Random(0)
    for argument, (names, further) in WRONG.items():
        values = [value for value in no_numbers() if repr(value) not in TAKEN.get(argument, [])]
        if argument in FUNCTION:
            values = [value for value in values if not callable(value)]
        for name in names.split():
            for value in generator.sample(values, 3) + further:
                yield pytest.param(name, argument, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "argument", "value"), list(misuses()))
def test_misuse(name, argument, value):
    function, arguments = FUNCTIONS[name]
    arguments = dict(arguments) | {argument: value}
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**arguments)
    message = str(caught.value)
    assert argument in message or NAMED.get(argument, argument) in message
    assert "\n" not in message
    # raised by a guard, not by what Python or PyTorch cannot do
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert "pathkernel" in last.filename
    assert "tests" not in last.filename.split(os.sep)


@pytest.mark.filterwarnings("ignore:.* are few to weigh:RuntimeWarning")
def test_choices_in_place_of_their_parts():
    choice = choose_heads(**CHOICE, count=1)
    switched_off(MODEL, choice)  # with its gains
    with pytest.raises(TypeError, match=r"give its gains, choice.gains"):
        switched_off(MODEL, choice.heads, gains=choice)
    with pytest.raises(ValueError, match=r"gains has 2 draws"):
        switched_off(MODEL, choice.heads, gains=xr.concat([choice.gains] * 2, "draw"))


def test_batches_of_examples_and_labels():
    with pytest.raises(ValueError, match="a batch holds no example"):
        capture(MODEL, [INPUTS, INPUTS[:0]])
    with pytest.raises(ValueError, match="labels of some batches are names, and of others numbers"):
        capture(MODEL, [LABELLED, (INPUTS, list("abcd"))])
    with pytest.raises(ValueError, match="labels of a batch are a list of unequal rows"):
        capture(MODEL, [(INPUTS, [[1], [1, 2], [1], [2]])])
    with pytest.raises(ValueError, match=r"does not fit TransformerEncoder: .* 'inputs'; its arg"):
        capture(MODEL, [{"inputs": INPUTS}])


def test_captured_examples():
    captured = capture(MODEL, [LABELLED])
    with pytest.raises(TypeError, match="scale must be one number, but is 'a'"):
        captured.scale_tokens("a")
    with pytest.raises(TypeError, match="like must be captured examples"):
        captured.scale_tokens(30, like=3)
    with pytest.raises(TypeError, match="test must be captured examples"):
        captured.task(test=captured.xi)
    with pytest.raises(ValueError, match=r"path must end in .npz, but is 3"):
        captured.save(3)
    with pytest.raises(ValueError, match="scores have unequal rows"):
        captured.by_head([[1], [1, 2]])


def test_loaders_of_data_are_not_begun():
    """A check that began one would start its workers, and draw a seed for them."""
    loader = torch.utils.data.DataLoader(INPUTS, batch_size=2)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    begun = []
    loader.__class__ = type("Loader", (type(loader),), {"__iter__": lambda _: begun.append(1)})
    with pytest.raises(TypeError, match="outputs must be a function"):
        choose_heads(MODEL, loader, None, 1)
    assert not begun
    assert torch.equal(torch.get_rng_state(), state)
