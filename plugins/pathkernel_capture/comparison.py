"""Scores of the heads of a live model set against what the model loses without them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral

import numpy as np
import xarray as xr
from torch import nn

from pathkernel_capture.comparison_layout import labelled_comparison
from pathkernel_capture.evaluations import Evaluations, Measure, host_array
from pathkernel_capture.head_scores import HeadScores
from pathkernel_core.progress import Progress, Report
from pathkernel_datasets.labelling import padded_rows
from pathkernel_datasets.watching import supervised
from pathkernel_trained.correlation import interval, spearman
from pathkernel_trained.heads import Head
from pathkernel_trained.removal_games import sampled_shapley

RANDOM_ORDERS, RESAMPLES = 200, 2000
Values = Callable[..., np.ndarray]
Scored = tuple[np.ndarray, np.ndarray | None]  # scores (C, H) and their errors


def compare_heads(
    model: nn.Module,
    measure: Measure,
    scores: Mapping[str, HeadScores],
    *,
    removed: Sequence[int] | None = None,
    random: int = RANDOM_ORDERS,
    shapley: int = 0,
    greedy: int = 0,
    best_of: int = 0,
    resamples: int = RESAMPLES,
    seed: int = 0,
    kept: str | os.PathLike | None = None,
    label: str | None = None,
    report: Report | None = None,
) -> xr.Dataset:
    """Switch heads of a model off in the order of every score, and at random, and see what is lost.

    Beside the scores that are given there are those that ask the model itself, on validation
    examples: ``ablation``, the rise of the loss without each head; Shapley values of the loss;
    a greedy order; and the best of some random sets. What is lost is measured on test examples.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`pathkernel_capture.heads_off`. Afterwards it is as it was.
    measure : callable
        Takes the name of a set of examples, ``"validation"`` or ``"test"``, runs the model as it
        stands on them, and gives the loss of every example, shape (P,); or (P, C) for C draws,
        readouts or outputs that share the forward pass. Or it gives a mapping of such arrays by
        their names: first the loss, which is better the smaller it is, then what is better the
        larger it is, such as ``{"loss": …, "accuracy": …}``. Tensors or arrays. It is called once
        for every set of heads and of examples.
    scores : mapping of str to mapping of (layer, head) to float or array, shape (C,)
        Scores of all heads by their names; heads of low scores are removed first. The first is
        compared with all others. (0, 0), the path through no head, is left out.
    removed : sequence of int, optional
        How many heads are off; by default a quarter, half and three quarters of them, at least one.
    random : int
        Orders drawn at random, at least 2.
    shapley : int
        Orders of arrival from which Shapley values are estimated, each of as many evaluations as
        there are heads: even and at least 4, or 0 for none. Every order is taken backwards too.
    greedy : int
        How many heads the greedy order takes at a time, those without which the mean loss is least
        when each is off beside all before; 0 for no such order.
    best_of : int
        Of how many random sets the one of least mean loss is taken: those that the first random
        orders begin with, so at most ``random``; 0 for none.
    resamples : int
        Resamples of the bootstrap.
    seed : int
        Of random orders and resamples.
    kept : path, optional
        File (.npz) of all evaluations, written every few seconds; with it an interrupted comparison
        goes on where it stopped.
    label : str, optional
        What is compared, for titles; by default the model's class.
    report : callable, optional
        Called with a Progress before every evaluation; by default a bar shows them.

    Returns
    -------
    xarray.Dataset
        As docs/capture.md lists it.

    Raises
    ------
    CaptureError
        If the model's attention is not known, or layers share their weights.
    ValueError
        If a score lacks a head or is not finite, a name is one of those above, a number is out of
        range, the measure's values have other shapes than they should, or ``kept`` names a file of
        another model or measure.
    """
    evaluate = Evaluations(model, measure, kept)
    heads = evaluate.heads
    counts = _counts(removed, len(heads))
    _check_numbers(random, resamples, shapley, greedy, best_of, seed)
    best_name = f"best of {best_of} random"
    for name in scores:
        if name in ("ablation", "Shapley", "greedy", best_name):
            raise ValueError(f"scores holds {name!r}, which is computed here; rename it")
    given = {name: _scores(name, own, heads) for name, own in scores.items()}
    with supervised(report, threads=None) as tell:

        def values(examples: str, off: Iterable[int] = ()) -> np.ndarray:
            """Values (Q, P, C) without heads, which are numbered through the layers from 0."""
            off = [heads[place] for place in off]
            tell(Progress(evaluate.passes, None, f"{examples} examples, {len(off)} heads off"))
            return evaluate(examples, off)

        try:
            whole = values("test")
            draws = whole.shape[-1]
            table: dict[str, Scored] = {
                name: (_each_draw(name, own, draws), None) for name, own in given.items()
            }
            table |= _own_scores(values, len(heads), max(counts), shapley, greedy, seed)
            generator = np.random.default_rng(seed)
            drawn = np.array([generator.permutation(len(heads)) for _ in range(random)])
            off = {
                name: [list(np.argsort(every, axis=1, kind="stable")[:, :k]) for k in counts]
                for name, (every, _) in table.items()
            }
            if best_of:
                best = [_best(values, drawn[:best_of, :count]) for count in counts]
                off[best_name] = [[own] * draws for own in best]
            lost = np.stack([values("test", [head])[0] for head in range(len(heads))]) - whole[0]
            measured = _each(values, off)
            at_random = np.array(
                [[values("test", order[:k]).mean(axis=1) for k in counts] for order in drawn]
            )
        except KeyboardInterrupt as error:
            if kept is not None:
                error.add_note(
                    f"What was measured is kept in {kept}; the same call goes on with it."
                )
            raise
        finally:
            evaluate.write()
    known = np.array([every for every, _ in table.values()])
    errors = [np.full_like(known[0], np.nan) if own is None else own for _, own in table.values()]
    weights = _resampled(whole.shape[1], resamples, seed)
    layers = np.array([layer for layer, _ in heads])
    rises = np.moveaxis(lost, -1, 0)  # (draw, head, example)
    found = {
        "score": _by_layer(known, layers),
        "score_error": _by_layer(np.array(errors), layers),
        **_correlations(known, rises, layers, weights, seed),
    }
    missing = len(off) - len(table)  # sets that are of no score
    found = {name: _extended(values, missing) for name, values in found.items()}
    mean = measured.mean(axis=-1)  # over draws: (order, removed, quantity, example)
    gain = mean[0] - mean
    accurate = measured.mean(axis=-2)  # over examples: (order, removed, quantity, draw)
    found |= {
        "rise": _by_layer(rises.mean(axis=-1), layers),
        "rise_error": _by_layer(_error(rises), layers),
        "whole": whole.mean(axis=1),
        "measured": accurate,
        "measured_error": _error(mean),
        "difference": gain.mean(axis=-1),
        "difference_interval": interval(gain @ weights),
        "random_measured": at_random,
        "random_as_good": _as_good(at_random, accurate),
    }
    return labelled_comparison(
        found,
        {
            "order": tuple(off),
            "removed": counts,
            "quantity": evaluate.quantities,
            "draw": range(1, draws + 1),
            "layer": np.unique(layers),
            "head": range(1, max(head for _, head in heads) + 1),
            "resampled": ("examples", "heads"),
            "bound": ("lower", "upper"),
            "random_order": range(1, random + 1),
        },
        {
            "label": label or type(model).__name__,
            "heads": len(heads),
            "test_examples": whole.shape[1],
            "validation_examples": values("validation").shape[1],
            "resamples": resamples,
        },
    )


def _counts(removed: Sequence[int] | None, heads: int) -> list[int]:
    if removed is None:
        return sorted({max(1, heads * part // 4) for part in (1, 2, 3)})
    try:
        counts = [operator.index(each) for each in removed]
    except TypeError:
        counts = []
    if not counts or counts != sorted(set(counts)) or not 1 <= counts[0] <= counts[-1] <= heads:
        raise ValueError(
            f"removed must be growing numbers of the model's {heads} heads, but is {removed}"
        )
    return counts


def _check_numbers(
    random: int, resamples: int, shapley: int, greedy: int, best_of: int, seed: int
) -> None:
    given = (random, resamples, shapley, greedy, best_of, seed)
    if not all(isinstance(each, Integral) for each in given) or seed < 0:
        raise ValueError(
            "random, resamples, shapley, greedy, best_of and seed must be whole numbers, and seed "
            f"not negative, but are {', '.join(map(str, given))}"
        )
    if random < 2 or resamples < 1 or not 0 <= best_of <= random:
        raise ValueError(
            "random must be at least 2, resamples at least 1, and best_of at most random, but are "
            f"{random}, {resamples} and {best_of}"
        )
    if (shapley and (shapley < 4 or shapley % 2)) or greedy < 0:
        raise ValueError(
            "shapley must be 0, or even and at least 4, and greedy not negative, but are "
            f"{shapley} and {greedy}"
        )


def _scores(name: str, own: HeadScores, heads: Sequence[Head]) -> np.ndarray:
    """Scores (C, H) of C draws, or of one that counts for all."""
    if not isinstance(own, Mapping):
        raise ValueError(
            f"scores[{name!r}] must give the score of every (layer, head), but is a "
            f"{type(own).__name__}; of the theory's take captured.by_head(solution.head_scores)"
        )
    missing = [head for head in heads if head not in own]
    if missing:
        raise ValueError(f"scores[{name!r}] lacks (layer, head) = {missing[0]}; score every head")
    each = []
    try:
        each = [host_array(own[head]) for head in heads]
        table = np.array(np.broadcast_arrays(*each, np.empty(1))[:-1]).T
    except (ValueError, TypeError):
        table = np.array(np.nan)
    if table.ndim != 2 or not np.isfinite(table).all():
        shapes = sorted({values.shape for values in each})
        infinite = sum(np.count_nonzero(~np.isfinite(values)) for values in each)
        has = f"shapes {', '.join(map(str, shapes))} and {infinite} that are not finite"
        raise ValueError(
            f"scores[{name!r}] must hold a finite number for every head, or one for each draw, but "
            f"has {has if each else 'others than numbers'}"
        )
    return table


def _each_draw(name: str, table: np.ndarray, draws: int) -> np.ndarray:
    if len(table) not in (1, draws):
        raise ValueError(
            f"scores[{name!r}] must hold a number for every head, or one for each of {draws} "
            f"draws of the measure, but has {len(table)}"
        )
    return np.broadcast_to(table, (draws, table.shape[1]))


def _own_scores(
    values: Values, heads: int, most: int, shapley: int, greedy: int, seed: int
) -> Iterator[tuple[str, Scored]]:
    """Scores (C, H) that ask the model on validation examples, and their errors, by name."""
    whole = values("validation")[0]
    lost = np.array([values("validation", [head])[0] - whole for head in range(heads)])
    rises = np.moveaxis(lost, -1, 0)
    yield "ablation", (rises.mean(axis=-1), _error(rises))
    if shapley:
        found = []
        for draw in range(whole.shape[-1]):

            def worth(present: np.ndarray, draw: int = draw) -> np.ndarray:
                off = (np.flatnonzero(~row) for row in present)
                return -np.array([values("validation", own)[0, :, draw].mean() for own in off])

            generator = np.random.default_rng(seed)  # the same sets for every draw
            found.append(sampled_shapley(worth, heads, shapley, generator))
        yield "Shapley", tuple(np.swapaxes(found, 0, 1))
    if greedy:
        off: list[int] = []
        while len(off) < most:
            left = [head for head in range(heads) if head not in off]
            losses = [values("validation", [*off, head])[0].mean() for head in left]
            off += [left[place] for place in np.argsort(losses, kind="stable")[:greedy]]
        score = np.full(heads, float(len(off)))
        score[off] = range(len(off))
        yield "greedy", (np.tile(score, (whole.shape[-1], 1)), None)


def _best(values: Values, sets: np.ndarray) -> np.ndarray:
    """Of sets of heads the one without which the mean loss on validation examples is least."""
    return sets[np.argmin([values("validation", own)[0].mean() for own in sets])]


def _each(values: Values, off: Mapping[str, list[list[np.ndarray]]]) -> np.ndarray:
    """Test values of every order, each draw's with its own heads off.

    Of shape (order, removed, quantity, example, draw).
    """
    found = [
        [[values("test", own)[..., draw] for draw, own in enumerate(sets)] for sets in every]
        for every in off.values()
    ]
    return np.moveaxis(np.array(found), 2, -1)


def _as_good(at_random: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Share of random orders that are at least as good, (order, removed, quantity, draw)."""
    sign = np.ones((measured.shape[2], 1))
    sign[0] = -1  # the loss
    return np.mean(sign * at_random[:, None] >= sign * measured, axis=0)


def _correlations(
    scores: np.ndarray, rises: np.ndarray, layers: np.ndarray, weights: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Spearman's ρ of scores (order, C, H) with the mean of rises (C, H, P), and intervals."""
    mean = rises.mean(axis=-1)
    within = [
        spearman(scores[..., own], mean[:, own]) for own in layers == np.unique(layers)[:, None]
    ]
    resamples, heads = weights.shape[1], scores.shape[-1]
    places = np.random.default_rng(seed).integers(heads, size=(resamples, heads))
    each = [
        [
            spearman(scores[:, draw, None], (rise @ weights).T),  # (order, resamples)
            spearman(scores[:, draw, places], mean[draw, places]),
        ]
        for draw, rise in enumerate(rises)
    ]
    resampled = np.mean(each, axis=0).swapaxes(0, 1)  # (order, resampled, resamples)
    found = spearman(scores, mean)
    return {
        "rank_correlation": found,
        "rank_correlation_interval": interval(resampled),
        "layer_correlation": np.stack(within, axis=-1),
        "correlation_difference": (found[0] - found).mean(axis=-1),
        "correlation_difference_interval": interval(resampled[0] - resampled),
    }


def _resampled(examples: int, resamples: int, seed: int) -> np.ndarray:
    """Weights of examples in the resamples of a bootstrap, (P, resamples)."""
    even = np.full(examples, 1 / examples)
    return np.random.default_rng(seed).multinomial(examples, even, size=resamples).T / examples


def _error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over examples, the last axis."""
    return values.std(axis=-1) / np.sqrt(values.shape[-1])


def _by_layer(values: np.ndarray, layers: np.ndarray) -> np.ndarray:
    """Values (…, H) as (…, layer, head), NaN behind the last head of a layer."""
    rows = [np.moveaxis(values[..., layers == layer], -1, 0) for layer in np.unique(layers)]
    return np.moveaxis(padded_rows(rows), (0, 1), (-2, -1))


def _extended(values: np.ndarray, missing: int) -> np.ndarray:
    """Values (order, …) with NaN for orders that have none."""
    return np.concatenate([values, np.full((missing, *values.shape[1:]), np.nan)])
