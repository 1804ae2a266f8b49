"""Models are called as they are; what their errors say of the call is told."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from torch import nn

from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import call_model, named_arguments

INPUTS = torch.arange(6.0).reshape(2, 3)


class Scaled(nn.Module):
    def forward(self, x, scale):
        return x * scale


class Renaming(Scaled):
    """Takes other names than its forward pass."""

    def __call__(self, inputs, factor=2.0):
        return super().__call__(x=inputs, scale=factor)


class Inside(nn.Module):
    """Calls another module, of its own class, as this does not take."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x if self.inner is None else self.inner(wrong=x)


def with_hook(hook):
    model = Scaled()
    model.register_forward_pre_hook(hook, with_kwargs=True)
    return model


def wrapped():
    model = Scaled()
    forward = model.forward
    model.forward = functools.wraps(forward)(lambda **given: forward(scale=2.0, **given))
    return model


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (with_hook(lambda module, args, kwargs: (args, kwargs | {"scale": 2.0})), INPUTS),
        (with_hook(lambda module, args, kwargs: (args, {"scale": 2.0})), (INPUTS,)),
        (
            with_hook(lambda module, args, kwargs: ((kwargs["inputs"], 2.0), {})),
            {"inputs": INPUTS},
        ),
        (Renaming(), {"inputs": INPUTS}),
        (Renaming(), (INPUTS, 2.0)),
        (wrapped(), {"x": INPUTS}),
    ],
)
def test_models_that_run(model, inputs):
    assert torch.equal(call_model(model, inputs), INPUTS * 2)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (Scaled(), INPUTS, "fit Scaled: missing .* 'scale'; its arguments are x, scale$"),
        (Scaled(), {"y": INPUTS}, "fit Scaled: got .* 'y'; its arguments are x, scale$"),
        (Scaled(), (INPUTS,) * 3, "fit Scaled: takes 3 .*; its arguments are x, scale$"),
        (Renaming(), {"x": INPUTS}, "fit Renaming: got .* 'x'; its arguments are inputs, factor$"),
        (
            with_hook(lambda module, args, kwargs: (args, kwargs | {"size": 2.0})),
            INPUTS,
            "fit Scaled: got an unexpected .* 'size'; its arguments are x, scale$",
        ),
        (wrapped(), {"y": INPUTS}, "fit Scaled: got .* 'y'; its arguments are x, scale$"),
        (Inside(Inside()), INPUTS, r"Inside does not run .*\(TypeError: Inside\.forward\(\) got"),
        (Inside(nn.Identity()), INPUTS, r"Inside does not run .*'wrong'"),
        (Scaled(), (INPUTS, "two"), r"Scaled does not run .*\(TypeError: "),
        (
            with_hook(lambda module, args, kwargs: len(3)),
            {"y": INPUTS},
            r"Scaled does not run .*'int' has no len",
        ),
    ],
)
def test_models_that_do_not_run(model, inputs, message):
    with pytest.raises(CaptureError, match=message) as raised:
        call_model(model, inputs)
    assert isinstance(raised.value.__cause__, TypeError)


def test_names_of_arguments():
    several = (INPUTS, 2.0, 3)
    assert [name for name, _ in named_arguments(Scaled(), several)] == ["x", "scale", ""]
    assert dict(named_arguments(Scaled(), {"scale": 2.0})) == {"scale": 2.0}
    assert dict(named_arguments(nn.DataParallel(Scaled()), INPUTS)) == {"": INPUTS}
    without = nn.Identity()
    without.forward = max  # of compiled code, which tells no signature
    assert [name for name, _ in named_arguments(without, several)] == ["", "", ""]
