"""Heads of a study's trained network: scored, removed, and the outcome kept in its store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.network import Network
from pathkernel_datasets.groups import add_group, sole_writer
from pathkernel_datasets.selection import number
from pathkernel_datasets.store import StoreError, check_store, open_store
from pathkernel_datasets.study import versions
from pathkernel_pruning.compare import RANDOM_ORDERS, RESAMPLES, compare_orders, padded
from pathkernel_pruning.correlation import rank_correlations
from pathkernel_pruning.episodes import TEST_SETS, VALIDATION, EpisodeSet, episode_set
from pathkernel_pruning.heads import Scores, are_removable, removable_heads
from pathkernel_pruning.outputs import PathOutputs, path_outputs
from pathkernel_pruning.schema import labelled
from pathkernel_pruning.scores import (
    ablation_scores,
    gradient_scores,
    magnitude_scores,
    trained_scores,
)
from pathkernel_pruning.theory import sampled_scores, score_grid, theory_points, theory_scores
from pathkernel_sampling.drawn import order_parameter_draws
from pathkernel_sampling.point import GridPoint
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_tasks.one_shot_images import TOKENS, WIDTH, OneShotImages
from pathkernel_training.checkpoint import Checkpoint
from pathkernel_training.study_checkpoint import study_checkpoint

GROUP = "pruning"
EPISODES = 10_000
_TRAINED = ("trained", "gradient", "raw-gradient", "magnitude", "ablation")  # of the network


@dataclass(frozen=True)
class PruningProgress:
    """Where a comparison stands: ``done`` of ``total`` episodes, and what it does now."""

    done: int
    total: int
    doing: str


Report = Callable[[PruningProgress], None]


def prune_study(
    store: str | os.PathLike,
    *,
    checkpoint: str | os.PathLike | None = None,
    widths: Sequence[float] | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    needs: str | None = None,
    episodes: int = EPISODES,
    random: int = RANDOM_ORDERS,
    resamples: int = RESAMPLES,
    report: Report = lambda progress: None,
) -> xr.Dataset:
    """Compare orders in which the heads of a study's trained network can be removed.

    Path outputs on validation and test episodes are computed once for a network, and found in the
    store from then on. Everything goes into the store's group ``pruning``, in place of an older
    one.

    Parameters
    ----------
    store : path
        Result store of a study of one-shot images with trained heads.
    checkpoint : path, optional
        The trained network; by default the file of heads that the study names, as it is named or
        beside the store.
    widths : sequence of float, optional
        Widths N whose order parameters score heads, among the study's; by default that of largest
        log evidence, 10, and those with draws, see
        :func:`pathkernel_pruning.theory.theory_points`.
    temperature : float, optional
        Temperature T, one of the study's; by default, at every width, that of largest log evidence.
    seed : int, optional
        Seed of the study's training examples, one of the study's; by default its first. Episodes
        are drawn from it, too.
    needs : str, optional
        Kind of order, such as ``sampled``, without which nothing is computed.
    episodes : int
        Even number of episodes of each set.
    random : int
        Orders drawn at random.
    resamples : int
        Resamples of the bootstrap.
    report : callable
        Called with a PruningProgress after every batch of episodes.

    Returns
    -------
    xarray.Dataset
        As docs/pruning.md lists it.

    Raises
    ------
    StoreError
        If the store is damaged, is no study of one-shot images with trained heads, or lacks the
        point; or the checkpoint is of another network, or of one without a head to spare.
    FileNotFoundError, ValueError
        If the checkpoint is missing or damaged, a number is out of range, or there is no order of
        the kind that is needed.
    pathkernel_datasets.image_sources.ImageDataError
        If image data are missing or damaged, or cannot be downloaded.
    """
    store = Path(store)
    task = check_store(store)["task"]
    if task != OneShotImages.name:
        raise StoreError(
            f"{store} is a study of {task}; heads are pruned on episodes of {OneShotImages.name}"
        )
    file, trained = study_checkpoint(store, checkpoint)
    if not removable_heads(trained.shape.heads_per_layer):
        raise StoreError(
            f"every layer of {file} has one head only, so that none can be removed; train a "
            "network with more"
        )
    dataset = open_store(store)
    draws = order_parameter_draws(store)
    points = theory_points(dataset, widths, temperature, seed, draws)
    seed = points[0].seed
    scores = {f"theory N={number(at.width)}": theory_scores(dataset, at) for at in points}
    errors = {}
    for at in points:
        if at in draws:
            name = f"sampled N={number(at.width)}"
            scores[name], errors[name] = sampled_scores(dataset, draws[at])
    if needs is not None:
        _first_of_kind([*scores, *_TRAINED], needs)
    settings = {"heads": heads_digest(file), "episodes": episodes, "seed": seed}
    settings |= versions(("pathkernel",))
    outputs = _path_outputs(store, trained, settings, report)
    scores |= _trained_scores(trained, outputs[VALIDATION])
    total = len(outputs) * episodes
    report(PruningProgress(total, total, "comparing orders"))
    compared = compare_orders(
        scores,
        {name: outputs[name] for name in TEST_SETS},
        trained.shape,
        WIDTH,
        TOKENS,
        random=random,
        resamples=resamples,
        seed=seed,
    )
    result = xr.merge(
        [
            compared,
            _points(compared, points),
            _errors(compared, errors, trained.shape.heads_per_layer),
            _grid(dataset, compared, seed),
            _kept(outputs),
        ],
        join="exact",
        combine_attrs="override",
    )
    result.attrs = {
        "title": f"Heads removed from the trained network of {dataset.attrs['label']}",
        "label": dataset.attrs["label"],
        "heads_per_layer": list(trained.shape.heads_per_layer),
        "random_orders": random,
        "resamples": resamples,
        "settings": json.dumps(settings, sort_keys=True),
    }
    with sole_writer(store):
        add_group(store, GROUP, result)
    return result


def open_pruning(store: str | os.PathLike) -> xr.Dataset | None:
    """The comparison that a store holds, as :func:`prune_study` returns it; None if it has none.

    Raises
    ------
    StoreError
        If the path is no store of pathkernel, or the store is damaged.
    """
    check_store(Path(store))
    if not (Path(store) / GROUP / "zarr.json").exists():
        return None
    return xr.open_zarr(store, group=GROUP, chunks=None, consolidated=False)


def order_named(result: xr.Dataset, kind: str) -> str:
    """Label of the first order of a kind, such as ``theory N=10`` for ``theory``.

    Raises
    ------
    ValueError
        If the comparison has none.
    """
    return _first_of_kind([str(name) for name in result["order"].values], kind)


def _first_of_kind(names: Sequence[str], kind: str) -> str:
    for name in names:
        if name == kind or name.startswith(f"{kind} N="):
            return name
    remedy = (
        "; draw samples with: pathkernel sample, or choose --widths that have some"
        if kind == "sampled"
        else ""
    )
    raise ValueError(f"there is no order {kind!r}, only {', '.join(names)}{remedy}")


def _trained_scores(trained: Checkpoint, validation: PathOutputs) -> dict[str, Scores]:
    """Scores by the trained network itself, those of ``_TRAINED``."""
    values = (
        trained_scores(trained.weights),
        gradient_scores(validation),
        gradient_scores(validation, normalised=False),
        magnitude_scores(trained.weights),
        ablation_scores(validation),
    )
    return dict(zip(_TRAINED, values, strict=True))


def _path_outputs(
    store: Path, trained: Checkpoint, settings: Mapping[str, Any], report: Report
) -> dict[str, PathOutputs]:
    names = (VALIDATION, *TEST_SETS)
    heads = trained.shape.heads_per_layer
    held = open_pruning(store)
    if held is not None and held.attrs.get("settings") == json.dumps(settings, sort_keys=True):
        return {
            name: PathOutputs(
                heads,
                held["path_output"].sel(episode_set=name).values,
                held["episode_label"].sel(episode_set=name).values,
            )
            for name in names
        }
    total = len(names) * settings["episodes"]
    done = 0
    found = {}
    for name in names:
        report(PruningProgress(done, total, f"{name}: reading images"))
        drawn: EpisodeSet = episode_set(
            name, settings["episodes"], trained.label_vectors, settings["seed"]
        )

        def count(episodes: int, name: str = name) -> None:
            nonlocal done
            done += episodes
            report(PruningProgress(done, total, name))

        found[name] = path_outputs(trained.weights, drawn.batches(), count)
    return found


def _points(compared: xr.Dataset, points: Sequence[GridPoint]) -> xr.Dataset:
    """Width and temperature of the orders that have them, as coordinates."""
    widths, temperatures = np.full((2, compared.sizes["order"]), np.nan)
    for at in points:
        for place, name in enumerate(compared["order"].values):
            if str(name).endswith(f" N={number(at.width)}"):
                widths[place], temperatures[place] = at.width, at.temperature
    return labelled({}, {"order_width": widths, "order_temperature": temperatures})


def _errors(compared: xr.Dataset, errors: Mapping[str, Scores], heads: Sequence[int]) -> xr.Dataset:
    """Monte-Carlo errors of the scores of some orders."""
    values = np.full(compared["score"].shape, np.nan)
    for place, name in enumerate(compared["order"].values):
        if str(name) in errors:
            values[place] = padded(errors[str(name)], heads)
    return labelled({"score_error": values}, {})


def _grid(dataset: xr.Dataset, compared: xr.Dataset, seed: int) -> xr.Dataset:
    """How far theory's scores agree over the grid, and at every point with what is truly lost."""
    scores = score_grid(dataset, seed)[:, :, are_removable(dataset.attrs["heads_per_layer"])]
    agreement = rank_correlations(scores[:, :, None, None], scores)[0]
    losses = compared["ablation_drop"].values
    removable = ~np.isnan(losses[0])  # and there at all
    truth = rank_correlations(scores[:, :, None], losses[:, removable])[0]
    grid = {name: dataset[name].values for name in ("temperature", "width")}
    dual = {f"{name}_dual": values for name, values in grid.items()}
    return labelled({"theory_agreement": agreement, "theory_correlation": truth}, {**grid, **dual})


def _kept(outputs: Mapping[str, PathOutputs]) -> xr.Dataset:
    """Path outputs, so that the next comparison of the network need not compute them."""
    first = next(iter(outputs.values()))
    return labelled(
        {
            "path_output": np.stack([part.values for part in outputs.values()]),
            "episode_label": np.stack([part.labels for part in outputs.values()]),
        },
        {
            "episode_set": tuple(outputs),
            "episode": range(len(first.labels)),
            "path": Network(first.heads, 1).path_labels,
        },
    )
