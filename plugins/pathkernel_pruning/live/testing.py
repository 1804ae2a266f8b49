"""Heads of a model compared with hooks on their output projections, for authors of families.

import pathkernel as pk

def test_mine():
    pk.plugins.check_heads(model, batch, "self_attn.o_proj", heads=4)
"""

from __future__ import annotations

import copy
import math
import operator
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pathkernel_core.paths.heads import every_head
from pathkernel_core.system.errors import PathkernelError
from pathkernel_datasets.variables.head_axis import scores_by_head
from pathkernel_models.heads_off import heads_off
from pathkernel_models.heads_table import list_heads
from pathkernel_models.inputs.batches import call_model, split_batch, tensors_of
from pathkernel_models.state import set_evaluation, without_fused_layers
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import SavedModel, save_model

Head = tuple[int, int]
Change = Callable[[Tensor], Tensor]
"""Takes what an output projection takes, (…, H·G), and returns its replacement."""

_ROUNDING = 1e-4  # of outputs, relative to the largest; parts of many models compute in float32
_EFFECT = 10 * _ROUNDING  # of a head on the outputs, without which they prove nothing
_ERROR = re.compile(r" \(\w*(?:Error|Exception): [^()]*(?:\([^()]*\)[^()]*)*\)")  # in a message
_NAME = re.compile(r"\b(layer \d+) \([^()]*\)")


def check_heads(
    model: nn.Module, batch: Any, projection: str | tuple[str, ...], heads: int | Sequence[int]
) -> dict[str, str]:
    """Compare heads switched off, removed and saved with hooks that do not know the family.

    The hooks change the input of every output projection: the numbers of a head become zero, their
    mean over tokens, or a multiple. What a family refuses is no fault, but other numbers are. Give
    a small model of single or double precision, with random weights large enough that every head
    matters.

    Parameters
    ----------
    model : torch.nn.Module
        Left unchanged.
    batch : tensor, mapping or tuple
        As for :func:`pathkernel.capture`. Tokens that an ``attention_mask`` of the sequence hides,
        or a ``…padding_mask``, do not count in means.
    projection : str or tuple of str
        End of the names of the output projections, such as ``"self_attn.o_proj"``, one for every
        row of :func:`pathkernel.list_heads`; or several.
    heads : int or sequence of int
        Number of heads, or that of every layer.

    Returns
    -------
    dict of str to str
        ``"off"``, ``"mean"``, ``"gains"``, ``"zero"`` and ``"smaller"`` (whole groups where heads
        share keys, or one head of a single group), ``"saved"`` and ``"loaded"``: ``"yes"``, or the
        reason of a refusal. What was loaded is named as by ``SavedModel.loaded_by``.

    Raises
    ------
    AssertionError
        If layers or numbers of heads are not those that are listed, outputs differ from those with
        the hooks, or they do not depend on a head.
    CaptureError
        If the model has no attention of a known form.
    """
    with set_evaluation(model), without_fused_layers():
        comparison = _Comparison(model, split_batch(batch)[0], projection, heads)
        answers = {
            step: _answer(check)
            for step, check in (
                ("off", comparison.check_off),
                ("mean", comparison.check_means),
                ("gains", comparison.check_gains),
                ("zero", comparison.check_zero),
                ("smaller", comparison.check_smaller),
            )
        }
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "model"
            saved: list[SavedModel] = []
            answers["saved"] = _answer(lambda: saved.append(comparison.save(place)))
            answers["loaded"] = answers["saved"]
            if saved:
                answers["loaded"] = _answer(lambda: comparison.check_loaded(saved[0]))
                if answers["loaded"] == "yes":
                    answers["loaded"] = saved[0].loaded_by
    return answers


def _answer(check: Callable[[], None]) -> str:
    """Return "yes", or the reason of a refusal."""
    try:
        check()
    except (PathkernelError, ValueError) as error:
        return reason(error)
    return "yes"


def reason(error: Exception) -> str:
    """Return the cause that the message of a refusal names, without details and remedies."""
    text = " ".join(str(error).split())
    if "it is left as it was. " in text:  # of a smaller model, whose likely cause follows
        before, _, cause = text.partition("; it is left as it was. ")
        text = cause if not cause.startswith("Leave smaller") else before
    text = re.split(r"; |\. (?=[A-Z])", _NAME.sub(r"\1", _ERROR.sub("", text)))[0]
    return text.rstrip(".")


class _Comparison:
    """A model, and its outputs with hooks on its output projections."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        projection: str | tuple[str, ...],
        heads: int | Sequence[int],
    ) -> None:
        self.model, self.inputs = model, inputs
        self.table, modules = list_heads(model), dict(model.named_modules())
        several = (projection,) if isinstance(projection, str) else projection
        ends = tuple(f".{name}" for name in several)
        names = [name for name in modules if f".{name}".endswith(ends)]
        self.projections = [modules[name] for name in names]
        assert len(names) == len(self.table), (
            f"{len(names)} modules end with {projection!r}, but list_heads shows "
            f"{len(self.table)} layers: name the output projections of these layers, or let the "
            "family describe those that are missing"
        )
        counts = [heads] * len(names) if isinstance(heads, int) else [*heads]
        assert [*self.table.heads] == counts, (
            f"layers have {[*self.table.heads]} heads, not {counts}: correct the number in the "
            "family's description"
        )
        self.counts = counts
        # another head of every layer
        self.some = [(layer, 1 + layer % count) for layer, count in enumerate(counts, start=1)]
        self.whole = self._outputs(model)
        self.last, self.expected = model, self.whole

    def check_off(self) -> None:
        """Compare every head off alone, and some of all layers."""
        every = [(n, h) for n, count in enumerate(self.counts, 1) for h in range(1, count + 1)]
        for off in (*([head] for head in every), self.some):
            expected = self._hooked({head: torch.zeros_like for head in off})
            effect = _distance(expected, self.whole)
            assert effect > _EFFECT * _largest(self.whole), (
                f"outputs change by {effect:.2g} with {_labels(off)} off, which proves nothing: "
                "give larger weights, or another batch"
            )
            with heads_off(self.model, off):
                self._compare(self.model, expected, f"{_labels(off)} off")

    def check_means(self) -> None:
        """Compare some heads of all layers at their mean."""
        with heads_off(self.model, self.some, replace="mean", batches=[self.inputs]):
            outputs = self._outputs(self.model)
        # a module may run several times in a pass
        seen: dict[Head, list[Tensor]] = {head: [] for head in self.some}

        def note(head: Head) -> Change:
            def keep(part: Tensor) -> Tensor:
                seen[head].append(part[self._tokens(part)])
                return part

            return keep

        self._hooked({head: note(head) for head in self.some})
        means = {head: torch.cat(parts).mean(dim=0) for head, parts in seen.items()}
        expected = self._hooked({head: mean.expand_as for head, mean in means.items()})
        _compare(outputs, expected, f"{_labels(self.some)} at their mean")

    def check_gains(self) -> None:
        """Compare a factor of every head."""
        axis = every_head(self.counts)
        factors = np.linspace(0.5, 1.5, len(axis))
        gains = scores_by_head(axis, factors[:, None])
        changes = (partial(operator.mul, factor) for factor in factors.tolist())
        expected = self._hooked(dict(zip(axis, changes)))
        with heads_off(self.model, [], gains=gains):
            self._compare(self.model, expected, "gains")

    def check_zero(self) -> None:
        """Compare some heads removed, without change of shapes."""
        expected = self._hooked(dict.fromkeys(self.some, torch.zeros_like))
        self._remove(self.some, expected, smaller=False)

    def check_smaller(self) -> None:
        """Compare the same heads of all layers taken out, a group of those that share keys."""
        sizes = (self.table.heads // self.table.groups).where(self.table.groups > 1, 1)
        off = [(n, h) for n, size in zip(self.table.index, sizes) for h in range(1, size + 1)]
        expected = self._hooked(dict.fromkeys(off, torch.zeros_like))
        self._remove(off, expected, smaller=True)

    def save(self, folder: Path) -> SavedModel:
        """Save the model that lost heads last."""
        return save_model(self.last, folder)

    def check_loaded(self, saved: SavedModel) -> None:
        """Compare the model that is loaded from a folder."""
        needs_model = saved.loaded_by == "load_model with model="
        given = {"model": copy.deepcopy(self.model)} if needs_model else {}
        self._compare(load_model(saved.folder, **given), self.expected, "loading by load_model")
        if saved.loaded_by == "from_pretrained":
            loaded = cast(Any, type(self.model)).from_pretrained(saved.folder)
            self._compare(loaded.eval(), self.expected, "loading by from_pretrained")

    def _remove(self, off: list[Head], expected: list[Tensor], *, smaller: bool) -> None:
        changed = copy.deepcopy(self.model)
        remove_heads(changed, off, batch=self.inputs, smaller=smaller)
        self._compare(changed, expected, f"{_labels(off)} removed")
        self.last, self.expected = changed, expected

    def _compare(self, model: nn.Module, expected: list[Tensor], what: str) -> None:
        _compare(self._outputs(model), expected, what)

    def _outputs(self, model: nn.Module) -> list[Tensor]:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)  # some models draw at random in evaluation mode, too
            outputs = tensors_of(call_model(model, self.inputs))
            return [output for output in outputs if output.is_floating_point()]

    def _tokens(self, part: Tensor) -> Tensor:
        """Return which tokens (batch, M) of what a projection takes are no padding."""
        masks = self.inputs.items() if isinstance(self.inputs, Mapping) else ()
        for name, mask in masks:
            if name.endswith("mask") and mask.shape == part.shape[:-1]:
                return ~mask.bool() if name.endswith("padding_mask") else mask.bool()
        return torch.ones(part.shape[:-1], dtype=torch.bool)

    def _hooked(self, changes: Mapping[Head, Change]) -> list[Tensor]:
        """Return outputs with the numbers of some heads changed where the projections take them."""
        ran: set[int] = set()
        with ExitStack() as hooks:
            for layer, projection in enumerate(self.projections, start=1):
                of_layer = {head: change for (n, head), change in changes.items() if n == layer}
                change = _by_head(self.counts[layer - 1], of_layer, partial(ran.add, layer))
                hooks.enter_context(_changed_inputs(self.model, projection, change))
            outputs = self._outputs(self.model)
        idle = [n for n in self.table.index if n not in ran]
        assert not idle, (
            f"the output projection of layer {idle[0]} is not run as a module, so that no hook "
            "sees what it takes: have the model's code call it, or name another module"
        )
        return outputs


def _by_head(count: int, changes: Mapping[int, Change], seen: Callable[[], None]) -> Change:
    def change_heads(states: Tensor) -> Tensor:
        seen()
        parts = [*states.chunk(count, dim=-1)]
        for head, change in changes.items():
            parts[head - 1] = change(parts[head - 1])
        return torch.cat(parts, dim=-1)

    return change_heads


@contextmanager
def _changed_inputs(model: nn.Module, projection: nn.Module, change: Change) -> Iterator[None]:
    """Change what a projection takes in every pass inside the context."""
    owner = next((module for module in model.modules() if _reads(module, projection)), None)
    if owner is None:
        handle = projection.register_forward_pre_hook(
            lambda _, given: (change(given[0]), *given[1:])
        )
    else:
        handle = owner.register_forward_hook(_project_again(change), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _reads(module: nn.Module, projection: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) and module.out_proj is projection


def _project_again(change: Change) -> Callable[..., Any]:
    """Return a hook of ``nn.MultiheadAttention``, which reads the weight of its projection."""
    inside = False

    def project(module: nn.MultiheadAttention, args: tuple, kwargs: dict, output: tuple) -> Any:
        nonlocal inside
        if inside:
            return None
        weight, bias = module.out_proj.weight, module.out_proj.bias
        passing = {"out_proj.weight": torch.eye(len(weight)).to(weight)}
        if bias is not None:
            passing["out_proj.bias"] = torch.zeros_like(bias)
        inside = True
        try:
            joined, *rest = functional_call(module, passing, args, kwargs)
        finally:
            inside = False
        return nn.functional.linear(change(joined), weight, bias), *rest

    return project


def _compare(outputs: list[Tensor], expected: list[Tensor], what: str) -> None:
    """Raise an AssertionError unless outputs are those expected to rounding."""
    shapes = [tuple(output.shape) for output in outputs]
    assert shapes == [tuple(output.shape) for output in expected], (
        f"{what}: outputs have shapes {shapes}, but with hooks "
        f"{[tuple(output.shape) for output in expected]}"
    )
    difference = _distance(outputs, expected)
    assert difference <= _ROUNDING * _largest(expected), (
        f"{what}: outputs differ by {difference:.2g} from those with hooks on the output "
        "projections: correct the order or the number of heads in the family's description, or "
        "refuse what it cannot do by a CaptureError"
    )


def _distance(outputs: list[Tensor], others: list[Tensor]) -> float:
    differences = []
    for one, other in zip(outputs, others):
        same = (one == other) | (one.isnan() & other.isnan())  # also if infinite
        difference = (one - other).abs().masked_fill(same, 0.0).nan_to_num(math.inf)
        differences += [float(difference.max())] if one.numel() else []
    return max(differences)


def _largest(outputs: list[Tensor]) -> float:
    filled = [output for output in outputs if output.numel()]
    return max(float(output.nan_to_num(0.0, 0.0, 0.0).abs().max()) for output in filled)


def _labels(heads: Sequence[Head]) -> str:
    return f"head{'s' * (len(heads) > 1)} {', '.join(f'{n}-{h}' for n, h in heads)}"
