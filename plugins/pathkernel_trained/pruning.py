"""Heads of a study's trained network: scored, removed, and the outcome kept in its store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_core.progress import Progress, Report
from pathkernel_core.task import Examples
from pathkernel_datasets.draws import order_parameter_draws
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.identity import versions
from pathkernel_datasets.labelling import padded_rows
from pathkernel_datasets.measures import kind_of
from pathkernel_datasets.point import Point
from pathkernel_datasets.selection import number
from pathkernel_datasets.stored import StoredStudy, compute_result
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.checkpoint import FORMAT, read_checkpoint, read_header, save_checkpoint
from pathkernel_trained.correlation import rank_correlations
from pathkernel_trained.head_games import (
    AccuracyGame,
    best_removals,
    greedy_removals,
    shapley_scores,
)
from pathkernel_trained.heads import Scores, are_removable, removable_heads
from pathkernel_trained.networks import pruned_checkpoint, pruned_paths
from pathkernel_trained.orders import compare_orders, removed_heads
from pathkernel_trained.outputs import PathOutputs, path_outputs
from pathkernel_trained.path_network import PathNetwork, save_paths
from pathkernel_trained.pruning_layout import labelled_orders
from pathkernel_trained.results import Pruning
from pathkernel_trained.scores import (
    ablation_scores,
    gradient_scores,
    trained_scores,
)
from pathkernel_trained.study_checkpoint import study_checkpoint
from pathkernel_trained.theory_drops import PREDICTIONS, error_scores, theory_drops
from pathkernel_trained.theory_scores import (
    sampled_scores,
    score_grid,
    theory_order_parameter,
    theory_points,
    theory_scores,
)

# of the network
_TRAINED = ("trained", "gradient", "raw-gradient", "magnitude", "ablation", "shapley")
_JOINT = ("greedy", "best-of")  # by no score of single heads


def prune_study(
    store: str | os.PathLike,
    *,
    checkpoint: str | os.PathLike | None = None,
    widths: Sequence[float] | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    needs: str = Pruning.order,
    episodes: int = Pruning.episodes,
    sets: int = Pruning.sets,
    random: int = Pruning.random,
    resamples: int = Pruning.resamples,
    report: Report | None = None,
) -> xr.Dataset:
    """Compare orders in which the heads of a study's trained network can be removed.

    Path outputs on validation and test examples are computed once for a network, and found in the
    store from then on. Everything goes into the store's group ``pruning``, in place of an older
    one.

    Parameters
    ----------
    store : path
        Result store of a study whose heads are those of a checkpoint.
    checkpoint : path, optional
        The trained network; by default the file of heads that the study names, as it is named or
        beside the store.
    widths : sequence of float, optional
        Widths N whose order parameters score heads, among the study's; by default that which
        the choice of temperature prefers, 10, and those with draws, see
        :func:`pathkernel_trained.theory_scores.theory_points`.
    temperature : float, optional
        Temperature T, one of the study's; by default, at every width, the one that
        is chosen there.
    seed : int, optional
        Seed of the study's training examples, one of the study's; by default its first. Examples
        are drawn from it, too.
    needs : str
        Kind of order, such as ``sampled``, without which nothing is computed.
    episodes : int
        Largest number of examples of each set; even for tasks that draw half of each label.
    sets : int
        Sets of so many heads, drawn at random, of which ``best-of`` takes the best.
    random : int
        Orders drawn at random.
    resamples : int
        Resamples of the bootstrap.
    report : callable, optional
        Called with a Progress after every batch of examples.

    Returns
    -------
    xarray.Dataset
        As docs/pruning.md lists it.

    Raises
    ------
    StoreError
        If the store is damaged, its heads are not those of a checkpoint, or it lacks the point; or
        the checkpoint is of another network, or of one without a head to spare.
    FileNotFoundError, ValueError
        If the checkpoint is missing or damaged, a number is out of range, or there is no order of
        the kind that is needed.
    """
    wanted = Pruning(
        checkpoint=None if checkpoint is None else Path(checkpoint),
        widths=None if widths is None else tuple(widths),
        temperature=temperature,
        seed=seed,
        order=needs,
        episodes=episodes,
        sets=sets,
        random=random,
        resamples=resamples,
    )
    return compute_result(wanted, store, report=report).result(Pruning.name).to_dataset()


def open_pruning(store: str | os.PathLike) -> xr.Dataset | None:
    """The comparison that a store holds, as :func:`prune_study` returns it; None if it has none.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    study = StoredStudy(store)
    return study.result(Pruning.name).to_dataset() if study.holds(Pruning.name) else None


def pruned(study: StoredStudy, wanted: Pruning, report: Report) -> xr.Dataset:
    """Compare orders of removal; parameters and errors as for :func:`prune_study`."""
    if kind_of(study.dataset) == "targets":
        raise StoreError(
            f"{study.path} is a study of real targets, and heads are removed by the accuracy that "
            "is lost, which takes classes ±1; the theory's score of every head is in the store, as "
            "head_score"
        )
    file, trained = study_checkpoint(study, wanted.checkpoint)
    heads = trained.shape.heads_per_layer
    if not removable_heads(heads):
        raise StoreError(
            f"every layer of {file} has one head only, so that none can be removed; train a "
            "network with more"
        )
    dataset = study.dataset
    draws = order_parameter_draws(study)
    points = theory_points(dataset, wanted.widths, wanted.temperature, wanted.seed, draws)
    seed = points[0].seed
    scores: dict[str, Scores] = {
        f"theory N={number(at.width)}": theory_scores(dataset, at) for at in points
    }
    errors: dict[str, Scores] = {}
    for at in points:
        if at in draws:
            name = f"sampled N={number(at.width)}"
            scores[name], errors[name] = sampled_scores(dataset, draws[at])
    _first_of_kind([*scores, *PREDICTIONS, *_TRAINED, *_JOINT], wanted.order)
    settings = {"heads": heads_digest(file), "episodes": wanted.episodes, "seed": seed}
    settings |= versions(("pathkernel",))
    outputs, tokens = _path_outputs(study, file, trained, settings, report)
    scoring, *test_sets = outputs
    total = len(outputs) * wanted.episodes

    def tell(doing: str) -> None:
        report(Progress(total, total, doing))

    drops = _theory_drops(study, points[0], file, wanted, test_sets, tell)
    scores |= error_scores(drops, heads)
    tell("scoring heads")
    game = AccuracyGame(outputs[scoring])
    shapley, shapley_errors = shapley_scores(game, seed)
    scores |= _trained_scores(trained, outputs[scoring]) | {"shapley": shapley}
    if shapley_errors is not None:
        errors["shapley"] = shapley_errors
    removals = {
        "greedy": greedy_removals(game),
        f"best-of {wanted.sets}": best_removals(game, wanted.sets, seed),
    }
    tell("comparing orders")
    compared = compare_orders(
        scores,
        {name: outputs[name] for name in test_sets},
        trained.shape,
        trained.token_width,
        tokens,
        removals=removals,
        random=wanted.random,
        resamples=wanted.resamples,
        seed=seed,
    )
    result = xr.merge(
        [
            compared,
            _points(compared, points),
            _errors(compared, errors),
            drops,
            _grid(dataset, compared, seed),
            _kept(outputs),
        ],
        join="exact",
        combine_attrs="override",
    )
    result.attrs = {
        "title": f"Heads removed from the trained network of {dataset.attrs['label']}",
        "label": dataset.attrs["label"],
        "heads_per_layer": list(heads),
        "tokens": tokens,
        "random_orders": wanted.random,
        "resamples": wanted.resamples,
        "settings": json.dumps(settings, sort_keys=True),
        "theory_settings": drops.attrs["theory_settings"],
    }
    return result


def order_named(result: xr.Dataset, kind: str) -> str:
    """Label of the first order of a kind, such as ``theory N=10`` for ``theory``.

    Raises
    ------
    ValueError
        If the comparison has none.
    """
    return _first_of_kind([str(name) for name in result["order"].values], kind)


def check_removal(study: StoredStudy, wanted: Pruning) -> None:
    """Check, before any work, that a pruned network can be made and written.

    Raises
    ------
    ValueError
        If it cannot, saying why.
    """
    file, whole = study_checkpoint(study, wanted.checkpoint)
    out, remove = wanted.out, wanted.remove
    if out.suffix.lower() != ".safetensors" or not out.resolve().parent.is_dir():
        raise ValueError(f"--out {out} must end in .safetensors, in a folder that exists")
    if out.exists() and out.samefile(file):
        raise ValueError(f"--out {out} is the trained network itself; name another file")
    if out.exists() and not _is_pruned(out):
        raise ValueError(f"--out {out} is there already, and is no pruned network; name another")
    heads = whole.shape.heads_per_layer
    if remove > sum(heads) - len(heads):
        raise ValueError(
            f"--remove {remove} is too much: of {sum(heads)} heads at most "
            f"{sum(heads) - len(heads)} can go, as each of the {len(heads)} layers keeps one"
        )


def write_pruned(study: StoredStudy, wanted: Pruning, result: xr.Dataset) -> None:
    """Write the network without the heads that go first by the order that is wanted.

    It is written as the whole one is there: with all its weights, or along its paths.
    """
    name = order_named(result, wanted.order)
    file, whole = study_checkpoint(study, wanted.checkpoint)
    removed = removed_heads(result, name, wanted.remove)
    if read_header(file)[0] == FORMAT:
        save_checkpoint(wanted.out, pruned_checkpoint(read_checkpoint(file), removed))
    else:
        save_paths(wanted.out, pruned_paths(whole, removed))


def _is_pruned(file: Path) -> bool:
    try:
        return "removed_heads" in read_header(file)[1]
    except ValueError:  # no network at all
        return False


def _first_of_kind(names: Sequence[str], kind: str) -> str:
    for name in names:
        if name.partition(" ")[0] == kind:
            return name
    remedy = (
        "; draw samples with: pathkernel sample, or choose --widths that have some"
        if kind == "sampled"
        else ""
    )
    raise ValueError(f"there is no order {kind!r}, only {', '.join(names)}{remedy}")


def _trained_scores(trained: PathNetwork, held_out: PathOutputs) -> dict[str, Scores]:
    """Scores by the trained network itself, those of ``_TRAINED`` but for Shapley values."""
    values = (
        trained_scores(trained),
        gradient_scores(held_out),
        gradient_scores(held_out, normalised=False),
        trained.value_norms,
        ablation_scores(held_out),
    )
    return dict(zip(_TRAINED, values))


def _path_outputs(
    study: StoredStudy,
    file: Path,
    trained: PathNetwork,
    settings: Mapping[str, Any],
    report: Report,
) -> tuple[dict[str, PathOutputs], int]:
    """Path outputs on every set, first the one to score heads on, and the number of tokens."""
    heads = trained.shape.heads_per_layer
    held = _held(study, "settings", json.dumps(settings, sort_keys=True))
    if held is not None and "tokens" in held.attrs:
        return {
            str(name): _without_padding(heads, held.sel(episode_set=name))
            for name in held["episode_set"].values
        }, int(held.attrs["tokens"])
    episodes = settings["episodes"]
    sets = study.task(heads=str(file)).evaluation_sets(settings["seed"], episodes)
    readout = study.dataset.attrs["readout"]
    readout = readout if readout in ("first", "last", "mean") else int(readout)
    tokens, done, total = 0, 0, len(sets) * episodes
    found = {}
    for name, batches in sets.items():
        report(Progress(done, total, f"{name}: reading data"))

        def checked(batches: Iterable[Examples] = batches, name: str = name) -> Iterator[Examples]:
            nonlocal tokens, done
            for batch in batches:
                _check_labels(study, name, batch.labels)
                tokens = batch.inputs.shape[1]
                yield batch
                done += len(batch.labels)
                report(Progress(done, total, name))

        found[name] = path_outputs(trained, checked(), readout)
    return found, tokens


def _theory_drops(
    study: StoredStudy,
    at: Point,
    file: Path,
    wanted: Pruning,
    test_sets: Sequence[str],
    tell: Callable[[str], None],
) -> xr.Dataset:
    """What the theory loses with single heads, from the store if it is of the same point there."""
    temperatures = study.dataset["temperature"].values.tolist()
    if wanted.temperature is not None:
        temperatures = [at.temperature]
    settings = {"at": str(at), "temperatures": temperatures, "test_sets": test_sets}
    settings = json.dumps(settings | versions(("pathkernel",)), sort_keys=True)
    held = _held(study, "theory_settings", settings)
    if held is not None and "theory_error_rise" in held:
        kinds = ("theory_drop", "theory_accuracy", "theory_error_rise")
        names = [name for name in held if name.startswith(kinds)]
        found = held[names].load()
    else:
        tell("theory: data and attention")
        matrix = theory_order_parameter(study.dataset, at)
        here = study.rebuild(at, heads=str(file))
        found = theory_drops(here, matrix, temperatures, test_sets, tell)
    return found.assign_attrs(theory_settings=settings)


def _held(study: StoredStudy, name: str, settings: str) -> xr.Dataset | None:
    """The comparison that the store holds, if this attribute of it is the same."""
    held = study.result(Pruning.name).to_dataset() if study.holds(Pruning.name) else None
    return held if held is not None and held.attrs.get(name) == settings else None


def _check_labels(study: StoredStudy, name: str, labels: np.ndarray) -> None:
    if labels.ndim != 1 or not np.isin(labels, (-1.0, 1.0)).all():
        raise StoreError(
            f"heads are removed by the accuracy that is lost, which takes labels ±1, but {name} of "
            f"{study.dataset.attrs['task']} has others"
        )


def _points(compared: xr.Dataset, points: Sequence[Point]) -> xr.Dataset:
    """Width and temperature of the orders that have them, as coordinates."""
    widths, temperatures = np.full((2, compared.sizes["order"]), np.nan)
    for at in points:
        for place, name in enumerate(compared["order"].values):
            if str(name).endswith(f" N={number(at.width)}"):
                widths[place], temperatures[place] = at.width, at.temperature
    return labelled_orders({}, {"order_width": widths, "order_temperature": temperatures})


def _errors(compared: xr.Dataset, errors: Mapping[str, Scores]) -> xr.Dataset:
    """Monte-Carlo errors of the scores of some orders."""
    values = np.full(compared["score"].shape, np.nan)
    for place, name in enumerate(compared["order"].values):
        if str(name) in errors:
            values[place] = padded_rows(errors[str(name)])
    return labelled_orders({"score_error": values}, {})


def _grid(dataset: xr.Dataset, compared: xr.Dataset, seed: int) -> xr.Dataset:
    """How far theory's scores agree over the grid, and at every point with what is truly lost."""
    scores = score_grid(dataset, seed)[:, :, are_removable(dataset.attrs["heads_per_layer"])]
    agreement = rank_correlations(scores[:, :, None, None], scores)[0]
    losses = compared["ablation_drop"].values
    removable = ~np.isnan(losses[0])  # and there at all
    truth = rank_correlations(scores[:, :, None], losses[:, removable])[0]
    grid = {name: dataset[name].values for name in ("temperature", "width")}
    dual = {f"{name}_dual": values for name, values in grid.items()}
    return labelled_orders(
        {"theory_agreement": agreement, "theory_correlation": truth}, {**grid, **dual}
    )


def _kept(outputs: Mapping[str, PathOutputs]) -> xr.Dataset:
    """Path outputs, so that the next comparison of the network need not compute them."""
    values, labels = (
        padded_rows([getattr(part, name) for part in outputs.values()])
        for name in ("values", "labels")
    )
    first = next(iter(outputs.values()))
    return labelled_orders(
        {"path_output": values, "episode_label": labels},
        {
            "episode_set": tuple(outputs),
            "episode": range(labels.shape[1]),
            "path": Network(first.heads, 1).path_labels,
        },
    )


def _without_padding(heads: tuple[int, ...], held: xr.Dataset) -> PathOutputs:
    there = held["episode_label"].notnull().values
    return PathOutputs(
        heads, held["path_output"].values[there], held["episode_label"].values[there]
    )
