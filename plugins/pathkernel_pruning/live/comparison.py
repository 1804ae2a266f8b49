"""Compare scores of the heads of a live model with its loss without them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from torch import Tensor, nn

from pathkernel_core.paths.heads import Head, every_head
from pathkernel_core.system.progress import Report
from pathkernel_datasets.run.progress_bar import supervised
from pathkernel_datasets.variables.head_axis import (
    ChosenHeads,
    Scores,
    check_chosen,
    score_array,
    scores_by_head,
)
from pathkernel_models.arguments import check_function, check_report
from pathkernel_pruning.heads.orders import RANDOM_ORDERS, RESAMPLES, compare_orders
from pathkernel_pruning.heads.score_table import check_finite
from pathkernel_pruning.live.evaluations import Evaluations, Measure, Refit, host_array


def compare_heads(
    model: nn.Module,
    measure: Measure,
    scores: Mapping[str, Scores | ChosenHeads],
    *,
    removed: Sequence[int] | None = None,
    random: int = RANDOM_ORDERS,
    shapley: int = 0,
    greedy: int = 0,
    best_of: int = 0,
    resamples: int = RESAMPLES,
    seed: int = 0,
    refit: Refit | None = None,
    kept: str | os.PathLike | None = None,
    report: Report | None = None,
) -> xr.Dataset:
    """Switch heads of a model off in the order of every score, and at random, and measure it.

    Further scores come from the model itself, on validation examples: ``ablation``, the rise of
    the loss without each head; Shapley values of the loss; a greedy order; and the best of some
    random sets. Losses are measured on test examples.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_models.heads_off.heads_off`. Afterwards it is as it was.
    measure : callable
        Takes the name of a set of examples, ``"validation"`` or ``"test"``, runs the model as it
        stands on them, and gives the loss of every example, shape (P,); or (P, C) for C draws,
        readouts or outputs that share the forward pass. Or it gives a mapping of such arrays by
        their names: first the loss, which is better the smaller it is, then what is better the
        larger it is, such as ``{"loss": …, "accuracy": …}``. Tensors or arrays. It is called once
        for every set of heads and of examples.
    scores : mapping of str to xarray.DataArray, dims (head[, draw])
        Scores of all heads by their names; heads of low scores are removed first. The first is
        compared with all others. In place of an array, a mapping of (layer, head) to a number or to
        C of them. ``0-0``, the path through no head, is left out. A choice of heads stands for the
        order in which its heads go; its gains are not used, but may be fitted by ``refit``.
    removed : sequence of int, optional
        How many heads are off; by default a quarter, half and three quarters of them, at least one.
        Choices limit this to their number of heads, which by default is among them.
    random, shapley, greedy, best_of, resamples, seed
        As for :func:`pathkernel.heads.compare_orders`.
    refit : callable, optional
        Takes the heads that are off, as (layer, number), and gives the gains of all, such as
        ``lambda heads: pk.refit_gains(model, batches, outputs, heads)``. Every order but the random
        ones is then also measured with the gains so refitted, as the order ``… refitted``.
    kept : path, optional
        File (.npz) of all evaluations, written every few seconds; with it an interrupted comparison
        resumes.
    report : callable, optional
        Called with a Progress before every evaluation; by default a bar shows them.

    Notes
    -----
    Give validation and test examples of their own: scores from the examples that heads are tested
    on look better than they are. If nothing is lost without any head, the measure does not reach
    them: see that the model runs in it, on ``examples``, and is not cached. Shapley values and
    greedy orders take most of the time; begin without them.

    Returns
    -------
    xarray.Dataset
        As docs/pruning.md lists it, with the test set ``test``. Intervals are too narrow on few
        test examples: see :func:`pathkernel.heads.compare_orders`.

    Raises
    ------
    CaptureError
        If the model's attention is not known, or layers share their weights.
    ValueError
        If a score lacks a head or is not finite, a choice has fewer heads than are to be off or
        is among those of another model, a score has a name that is taken here, a number is out of
        range, the measure's values have other shapes than they should, or ``kept`` names a file of
        another model or measure.

    Examples
    --------
    >>> import pathkernel as pk
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> inputs = {"validation": torch.randn(20, 6, 8), "test": torch.randn(20, 6, 8)}
    >>> def measure(examples):
    ...     return model(inputs[examples]).square().mean(dim=(1, 2))
    >>> scores = {"magnitude": pk.magnitude_scores(model, torch.randn(5, 6, 8))}
    >>> result = pk.compare_heads(model, measure, scores, random=5, resamples=10)
    >>> result["order"].values.tolist()
    ['magnitude', 'ablation', 'random']
    """
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"scores must be a mapping of names to scores, such as {{'mine': scores}}, but is a "
            f"{type(scores).__name__}"
        )
    check_function("measure", measure, "which runs the model on a set of examples")
    if refit is not None:
        check_function("refit", refit, "which takes heads that are off and gives gains")
    check_report(report)
    evaluator = Evaluations(model, measure, kept)
    heads = every_head(evaluator.heads)
    checked, largest = {}, len(heads)
    for name, given in scores.items():
        if isinstance(given, ChosenHeads):
            largest = min(largest, len(given.heads))
            given = _ranks(name, given, heads, removed)
        if isinstance(given, Mapping):  # of tensors on any device, possibly
            given = {
                head: host_array(score) if isinstance(score, Tensor) else score
                for head, score in given.items()
            }
        checked[name] = score_array(f"scores[{name!r}]", given, heads)
        check_finite(name, checked[name])
    if removed is None:
        removed = sorted({min(max(1, len(heads) * part // 4), largest) for part in (1, 2, 3)})
    with supervised(report, threads=None) as evaluator.report:
        try:
            return compare_orders(
                evaluator,
                checked,
                "validation",
                ("test",),
                removed=removed,
                random=random,
                shapley=shapley,
                greedy=greedy,
                best_of=best_of,
                resamples=resamples,
                seed=seed,
                refitted=None if refit is None else evaluator.refit_by(refit),
            )
        except KeyboardInterrupt as error:
            if kept is not None:
                error.add_note(f"The measured values are in {kept}; the same call resumes from it.")
            raise
        finally:
            evaluator.write()


def _ranks(
    name: str, choice: ChosenHeads, heads: Sequence[Head], removed: Sequence[int] | None
) -> xr.DataArray:
    """Return scores by which heads go in the order of a choice, and all others after them."""
    check_chosen(choice, heads)
    chosen = list(choice.heads)
    asked = np.ravel([] if removed is None else removed)
    if asked.dtype.kind in "iu" and asked.max() > len(chosen):
        raise ValueError(
            f"scores[{name!r}] chooses {len(chosen)} heads, but removed asks for {asked.max()}; "
            "choose as many, or leave out the larger numbers"
        )
    ranks = [chosen.index(head) if head in chosen else len(chosen) for head in heads]
    return scores_by_head(heads, np.array(ranks, dtype=float), needs="examples")
