"""Choose heads of a live model to remove, and refit the gains of those that are left."""

from __future__ import annotations

import math
import warnings
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from torch import nn

from pathkernel_core.arrays.scalars import positive
from pathkernel_core.paths.heads import Head, every_head, head_label
from pathkernel_core.system.progress import Report
from pathkernel_datasets.run.progress_bar import supervised
from pathkernel_datasets.variables.head_axis import Heads, scores_by_head
from pathkernel_models.arguments import check_flag, check_report
from pathkernel_models.attention_module import AttentionModule
from pathkernel_models.heads_off import heads_by_layer
from pathkernel_models.inputs.outputs import Outputs
from pathkernel_pruning.heads.exchanges import PROPOSALS
from pathkernel_pruning.heads.gain_choice import TRIALS, choose_heads_by_gains
from pathkernel_pruning.heads.gain_network import PRIOR_VARIANCE, refit_remaining_gains
from pathkernel_pruning.heads.head_groups import HeadGroups, Unit
from pathkernel_pruning.heads.loss_form import LossName, held_out_loss
from pathkernel_pruning.live.gains import LiveNetwork
from pathkernel_pruning.live.smaller import fixed_by


class Rise(NamedTuple):
    """Rise of the mean loss by heads that are off.

    Attributes
    ----------
    expected : float
        Rise by the form, on the examples that the heads were chosen on.
    measured : float
        Rise of the model itself on these.
    held_out : float
        Rise on every part of the batches with gains refitted to the others, of which there are ten
        or fewer, by the form. The heads are those chosen on all. NaN for a single batch, or without
        a refit.
    """

    expected: float
    measured: float
    held_out: float


@dataclass(frozen=True, eq=False)
class HeadChoice:
    """Heads that can go, and the gains of those kept.

    Attributes
    ----------
    heads : list of (layer, number)
        In the order of their removal, both numbered from 1.
    gains : xarray.DataArray, dims (head,)
        Factors of the outputs of all heads, 0 of those that go; 1 of the others if they were not
        refitted.
    rise : Rise
        Rise of the mean loss with these gains, expected and measured.
    table : pandas.DataFrame
        A row for every head that goes, in order: ``head``, its label; ``unit``, a number from 1
        that heads which go together have in common; ``expected``, the rise of the mean loss without
        them and those above, by the form, or NaN of a head of the start or that came by an
        exchange; ``renewed``, whether the form was computed again before it.
    passes : float
        Forward and backward passes of all examples that the choice took.
    exchanges : int
        Number of exchanges made.
    is_complete : bool
        Whether the search ended by itself, and not by its budget of passes.
    groups : bool
        Whether heads that share keys and values were chosen such that they can be taken out of the
        weights; False where no heads share them.
    """

    heads: list[Head]
    gains: xr.DataArray
    rise: Rise
    table: pd.DataFrame
    passes: float
    exchanges: int
    is_complete: bool
    groups: bool = False


def choose_heads(
    model: nn.Module,
    batches: Iterable[Any],
    outputs: Outputs,
    count: int,
    *,
    groups: bool | None = None,
    start: Heads | None = None,
    loss: LossName = "squared",
    proposals: int = PROPOSALS,
    passes: float | None = None,
    refit: bool = True,
    prior_variance: float = PRIOR_VARIANCE,
    seed: int = 0,
    report: Report | None = None,
) -> HeadChoice:
    """Choose the heads of a model that can go with the least rise of its loss.

    Heads go one after another by the loss to second order in their gains, which sees redundancy
    between heads; it is computed again when a quarter of those that are left has gone. The gains of
    the rest are refitted as heads go, to be folded into the output projections by
    :func:`pathkernel_pruning.live.removal.remove_heads`. The choice is an argument of it. At the
    end heads that are off are exchanged for others, where the model's own loss confirms it.

    Where heads share keys and values (Llama, Qwen, Mistral), whole groups go, or as many heads of
    each group that stays: these can be taken out of the weights.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_models.heads_off.heads_off`. Afterwards it is as it was.
    batches : iterable
        Arguments of ``outputs``, of examples that the heads are chosen on; a few hundred, mixed and
        with balanced classes. They are kept as a list.
    outputs : callable
        Runs the model on a batch and gives the pair of its outputs, (B,) or (B, C), with gradients,
        and their targets: of the same shape, or (B,) classes for cross-entropy. B may be the number
        of examples, or of their tokens, joined. Outputs of an example may depend on others of its
        batch, as in a contrastive loss; derivatives are then differences in the gain of every head.
    count : int
        Number of heads to choose.
    groups : bool, optional
        Whether heads that share keys and values go in whole groups, or as many of each, which
        ``remove_heads(…, smaller=True)`` can take out. By default they do, unless the model keeps
        its shape anyway, as a bridge of TransformerLens. False frees every head: the loss rises
        less, and the choice serves for ``heads_off`` and weights of zero.
    start : iterable of (layer, head), of labels such as ``"2-1"``, or HeadChoice, optional
        Heads that are off from the beginning, at most ``count``, chosen in any way; such as those
        of the lowest scores, ``scores.sortby(scores)["head"][:count]``. Exchanges can bring them
        back. The gains of a choice are fitted again.
    loss : {"squared", "cross-entropy"}
        Loss of an example: the sum over outputs of squared errors, or −ln of the probability of
        its class.
    proposals : int
        Exchanges of a head that is off for one that is on, or of units of several, at which the
        model is run before the form is computed again; 0 for none.
    passes : float, optional
        Budget of passes of all examples. When they are used up the last form decides what else
        goes; the first form is computed in any case. By default the search ends by itself.
    refit : bool
        Whether to refit the gains of the heads that are left.
    prior_variance : float
        Variance of the prior of a gain about 1.
    seed : int
        Seed of random directions of outputs, taken where outputs are many.
    report : callable, optional
        Called with a Progress before every renewal; by default a bar shows them.

    Returns
    -------
    HeadChoice

    Warns
    -----
    RuntimeWarning
        If the examples are too few to refit gains, see ``Rise.held_out``, or fewer than a hundred
        in a single batch; or of some classes mainly.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, with a note of the best choice so far; the model is as it was.
    CaptureError
        If the model's attention is not known, layers share their weights, or run without gradients;
        or outputs depend on other examples in half precision, of weights or by autocast.
    ValueError
        If there is no batch, ``outputs`` gives other shapes than the loss takes, a number is out of
        range, or no groups have ``count`` heads, or those of ``start``; the message names numbers
        that they have.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 4, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> inputs, targets = torch.randn(120, 6, 8), torch.randn(120)
    >>> def outputs(batch):
    ...     return model(batch[0]).mean(dim=(1, 2)), batch[1]
    >>> choice = pk.choose_heads(model, [(inputs, targets)], outputs, 3)
    >>> len(choice.heads), int((choice.gains == 0).sum())
    (3, 3)
    """
    check_flag("refit", refit)
    if groups is not None:
        check_flag("groups", groups)
    check_report(report)
    network = LiveNetwork(model, batches, outputs, loss, seed)
    total = sum(network.heads)
    if not isinstance(count, Integral) or isinstance(count, bool) or not 0 < count <= total:
        raise ValueError(f"count must be from 1 to {total}, the number of heads, but is {count!r}")
    if not isinstance(proposals, Integral) or isinstance(proposals, bool) or proposals < 0:
        raise ValueError(f"proposals must be a whole number of at least 0, but is {proposals!r}")
    budget = math.inf if passes is None else positive("passes", passes)
    prior_variance = positive("prior_variance", prior_variance)
    together = _groups(network.layers, groups)
    _check_count(together, int(count))
    units = _units(network.layers, together, start, int(count))
    with supervised(report, threads=None) as tell:
        choice = choose_heads_by_gains(
            network,
            int(count),
            trials=TRIALS,
            refits=refit,
            prior_variance=prior_variance,
            groups=together,
            start=units,
            proposals=int(proposals),
            budget=budget,
            report=tell,
        )
        measured, held_out = network.loss(choice.gains), np.nan
        if refit:
            left = choice.gains != 0
            held_out = held_out_loss(choice.form.move_to(choice.gains), left, prior_variance)
            _warn_if_refit_fails(network, left, held_out)
    heads = every_head(network.heads)
    unit_of = [number for number, unit in enumerate(choice.units) for _ in unit]
    first = [not number or unit_of[number - 1] != unit for number, unit in enumerate(unit_of)]
    table = {
        "head": [head_label(heads[head]) for head in choice.heads],
        "unit": [unit + 1 for unit in unit_of],
        "expected": [choice.expected[unit] - choice.whole for unit in unit_of],
        "renewed": [choice.renewed[unit] and is_first for unit, is_first in zip(unit_of, first)],
    }
    return HeadChoice(
        [heads[head] for head in choice.heads],
        scores_by_head(heads, choice.gains).rename("gain"),
        Rise(choice.loss - choice.whole, measured - choice.whole, held_out - choice.whole),
        pd.DataFrame(table),
        network.passes,
        choice.exchanges,
        choice.is_complete,
        any(1 < shared < count for shared, count in zip(together.groups, together.heads)),
    )


def _warn_if_refit_fails(network: LiveNetwork, left: np.ndarray, held_out: float) -> None:
    """Warn if gains fitted to most examples serve the others worse than gains of 1."""
    if math.isnan(held_out):
        return
    plain = network.loss(left.astype(float))
    if held_out > plain:
        warnings.warn(
            f"the examples are too few to refit gains: of every part of the batches the loss is "
            f"{held_out:.4g} at gains fitted to the others, and {plain:.4g} at gains of 1; give "
            "more examples, or refit=False",
            RuntimeWarning,
            stacklevel=3,
        )


def _groups(layers: Sequence[AttentionModule], groups: bool | None) -> HeadGroups:
    """Which heads go together; by default those that share keys, where weights can be cut."""
    shared = tuple(
        layer.groups if groups or (groups is None and not fixed_by(layer)) else layer.heads
        for layer in layers
    )
    return HeadGroups(tuple(layer.heads for layer in layers), shared)


def _units(
    layers: Sequence[AttentionModule], groups: HeadGroups, start: Heads | None, count: int
) -> list[Unit]:
    """Units of the heads of a start: those of a layer with shared keys, or else single heads.

    Raises a ValueError unless they can be off, and others with them until ``count`` are.
    """
    by_layer = {} if start is None else heads_by_layer(layers, start)
    axis, units = every_head(groups.heads), list[Unit]()
    for layer, numbers in by_layer.items():
        positions = tuple(axis.index((layer, number)) for number in numbers)
        shared, heads = groups.groups[layer - 1], groups.heads[layer - 1]
        units += [positions] if 1 < shared < heads else [(position,) for position in positions]
    present = np.ones(len(axis), dtype=bool)
    present[[position for unit in units for position in unit]] = False
    off = int(np.count_nonzero(~present))
    if off > count:
        raise ValueError(f"start has {off} heads, more than count, {count}; leave out some")
    if not groups.allows(present):
        raise ValueError(
            "start has heads that share keys and values with others; give whole groups, or as many "
            "heads of each group of a layer, or groups=False"
        )
    if not groups.can_lose(present, count - off):
        counts = ", ".join(str(off + more) for more in groups.counts(present))
        raise ValueError(
            f"with the {off} heads of start, heads that share keys and values can be {counts}, but "
            f"count is {count}; choose one of these, or groups=False"
        )
    return units


def _check_count(groups: HeadGroups, count: int) -> None:
    """Raise a ValueError unless heads of groups can be ``count`` in number."""
    counts = groups.counts(np.ones(sum(groups.heads), dtype=bool))
    if count in counts:
        return
    below, above = counts[bisect(counts, count) - 1], counts[bisect(counts, count)]
    near = f"{below} or {above}" if below else f"{above}"
    raise ValueError(
        f"count is {count}, but heads that share keys and values go in whole groups, or as many of "
        f"each group; choose {near}, or any number with groups=False, whose heads cannot be taken "
        "out of the weights"
    )


def refit_gains(
    model: nn.Module,
    batches: Iterable[Any],
    outputs: Outputs,
    heads: Heads,
    *,
    loss: LossName = "squared",
    prior_variance: float = PRIOR_VARIANCE,
    seed: int = 0,
    report: Report | None = None,
) -> xr.DataArray:
    """Refit the gains of the heads that are left when others are off.

    A gain multiplies the output of a head. Its prior is normal about 1, and its posterior that of
    the linearised model, given the examples, in two steps. Whoever chose the heads, this lowers
    the loss where many are off; a step that raises it on these examples is shortened or left out.

    Parameters
    ----------
    model, batches, outputs, loss, prior_variance, seed
        As for :func:`pathkernel_pruning.live.head_choice.choose_heads`.
    heads : iterable of (layer, head), of labels such as ``"2-1"``, or HeadChoice
        Heads that are off, both numbered from 1. Gains of a choice are fitted again.
    report : callable, optional
        Called with a Progress before every step; by default a bar shows them.

    Returns
    -------
    xarray.DataArray, dims (head,)
        Gains of all heads, 0 of those that are off; for ``gains`` of
        :func:`pathkernel_models.heads_off.heads_off` and
        :func:`pathkernel_pruning.live.removal.remove_heads`.

    Raises
    ------
    CaptureError, ValueError
        As :func:`pathkernel_pruning.live.head_choice.choose_heads`; or if the model has no such
        head.
    """
    check_report(report)
    network = LiveNetwork(model, batches, outputs, loss, seed)
    axis, off = every_head(network.heads), heads_by_layer(network.layers, heads)
    gains = np.array([float(head not in off.get(layer, ())) for layer, head in axis])
    prior_variance = positive("prior_variance", prior_variance)
    with supervised(report, threads=None) as tell:
        form = refit_remaining_gains(network, gains, prior_variance, report=tell)
    return scores_by_head(axis, form.gains).rename("gain")


def curvature_scores(
    model: nn.Module,
    batches: Iterable[Any],
    outputs: Outputs,
    *,
    loss: LossName = "squared",
    seed: int = 0,
) -> xr.DataArray:
    """Score heads by the rise of the loss without them to second order, −g + ½ G.

    g is the derivative of the mean loss by the gain of a head, and G the Gauss-Newton curvature.
    For a set of heads take :func:`pathkernel_pruning.live.head_choice.choose_heads`, which sees
    their redundancy.

    Parameters
    ----------
    model, batches, outputs, loss, seed
        As for :func:`pathkernel_pruning.live.head_choice.choose_heads`.

    Returns
    -------
    xarray.DataArray, dims (head,)
        With labels such as ``2-1``, and the coordinates ``layer`` and ``number``.

    Raises
    ------
    CaptureError, ValueError
        As :func:`pathkernel_pruning.live.head_choice.choose_heads`.
    """
    network = LiveNetwork(model, batches, outputs, loss, seed)
    axis = every_head(network.heads)
    return scores_by_head(axis, network.form(np.ones(len(axis))).rises(), needs="examples")
