"""Heads of a study's trained network scored and removed: the dataset, and the pruned network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.contracts.task import Examples
from pathkernel_core.paths.heads import every_head
from pathkernel_core.paths.network import Network
from pathkernel_core.system.progress import Progress, Report
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.draws import order_parameter_draws
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.study.identity import versions
from pathkernel_datasets.study.study import task_failures
from pathkernel_datasets.variables.labelling import padded_rows
from pathkernel_datasets.variables.measures import label_kind
from pathkernel_pruning.heads.correlation import spearman
from pathkernel_pruning.heads.heads import are_removable
from pathkernel_pruning.heads.measuring import refitted_order
from pathkernel_pruning.heads.orders import compare_orders, orders_of, removed_heads
from pathkernel_pruning.heads.removal_games import EXACT_PLAYERS
from pathkernel_pruning.heads.score_table import score_name
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.checkpoint import read_checkpoint, read_network, save_checkpoint
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs, path_outputs
from pathkernel_trained.gains import refitted_evaluator, refitted_gains
from pathkernel_trained.network import network_cost
from pathkernel_trained.path_network import PathNetwork, save_paths, without_heads
from pathkernel_trained.pruning_options import PruningOptions
from pathkernel_trained.pruning_variables import PRUNING_VARIABLES
from pathkernel_trained.scores import SCORES, ScoreSources, computed_scores
from pathkernel_trained.study_checkpoint import study_checkpoint
from pathkernel_trained.theory_drops import theory_drops
from pathkernel_trained.theory_scores import (
    order_label,
    score_grid,
    theory_order_parameter,
    theory_points,
    theory_scores,
)

NAME = "pruning"
"""Name of the result."""

_PERMUTATIONS = 500  # of heads, for sampled Shapley values


def prune_study(study: StoredStudy, options: PruningOptions, report: Report) -> xr.Dataset:
    """Compare orders in which the heads of a study's trained network can be removed.

    Path outputs on validation and test examples, and the theory's losses, are read from the result
    if it has those of the same network and settings. docs/pruning.md lists the dataset.

    Raises
    ------
    StudyError
        If the study is damaged, its heads are not those of a checkpoint, or it lacks the point; or
        the checkpoint is of another network, or no head of it can be removed.
    FileNotFoundError, ValueError
        If the checkpoint is missing or damaged, a number is out of range, or there is no order of
        the kind that ``options`` name.
    """
    dataset = study.dataset
    if label_kind(dataset) == "targets":
        raise StudyError(
            f"{study.path} is a study of real targets, and heads are removed by the accuracy that "
            "is lost, which takes classes ±1; the theory's score of every head is in study.zarr, "
            "as head_score"
        )
    file, network = study_checkpoint(study, options.checkpoint)
    heads = network.shape.heads_per_layer
    if not are_removable(heads).any():
        raise StudyError(
            f"every layer of {file} has one head only, so that none can be removed; train a "
            "network with more"
        )
    draws = order_parameter_draws(study)
    points = theory_points(dataset, options.widths, options.temperature, options.seed, draws)
    labels = {
        order_label(score.name, point): point
        for score in SCORES
        for point in points
        if score.of_points and (score.name != "sampled" or point in draws)
    }
    kinds = [score.name for score in SCORES if not score.of_points]
    order_named([*labels, *kinds], options.order)  # an error is raised before the work
    seed = points[0].seed
    settings = {"heads": heads_digest(file), "episodes": options.episodes, "seed": seed}
    settings |= versions(("pathkernel",))
    stored = study.result(NAME).to_dataset() if study.holds(NAME) else xr.Dataset()
    # running the network over all test sets takes most of the time, and depends on few options:
    # path outputs are kept in the result, and a second comparison begins with them
    if stored.attrs.get("settings") == json.dumps(settings, sort_keys=True):
        outputs, tokens = _read_outputs(stored)
    else:
        outputs, tokens = _path_outputs(study, file, network, settings, report)
    validation, *test_sets = outputs
    total = len(outputs) * options.episodes

    def tell(activity: str) -> None:
        report(Progress(total, total, activity))

    theory_settings = {"at": str(points[0]), "test_sets": test_sets} | versions(("pathkernel",))
    theory_settings = json.dumps(theory_settings, sort_keys=True)
    if stored.attrs.get("theory_settings") == theory_settings:
        names = ("theory_accuracy", "theory_drop", "theory_drop_error", "theory_error_rise")
        drops = stored[list(names)].load()
    else:
        tell("theory: data and attention")
        matrix = theory_order_parameter(dataset, points[0])
        drops = theory_drops(study.rebuild(points[0], heads=str(file)), matrix, test_sets, tell)
    tell("comparing orders")
    sources = ScoreSources(dataset, points, draws, drops, network, outputs[validation])
    evaluator = PathEvaluator(outputs)
    compared = compare_orders(
        evaluator,
        computed_scores(sources),
        validation,
        test_sets,
        random=options.random,
        shapley="exact" if sum(heads) <= EXACT_PLAYERS else _PERMUTATIONS,
        greedy=1,
        best_of=options.sets,
        best=True,
        resamples=options.resamples,
        seed=seed,
        refitted=refitted_evaluator(evaluator, validation) if options.refit else None,
    )
    labels |= {refitted_order(label): point for label, point in labels.items()}
    order_points = [labels.get(str(name)) for name in compared["order"].values]
    of_orders = {
        f"order_{name}": [
            np.nan if point is None else getattr(point, name) for point in order_points
        ]
        for name in ("width", "temperature")
    }
    token_width = network.layers[0].queries.shape[2]
    costs = [
        network_cost(network.shape, token_width, tokens, int(count))
        for count in compared["removed"].values
    ]
    parts = [
        compared,
        PRUNING_VARIABLES.dataset(
            {name: [getattr(cost, name) for cost in costs] for name in ("parameters", "flops")},
            of_orders,
        ),
        drops,
        _grid(dataset, compared, points[0]),
        _stored_outputs(outputs),
    ]
    result = xr.merge(parts, join="exact", compat="equals", combine_attrs="override")
    return result.assign_attrs(
        title=f"Heads removed from the trained network of {dataset.attrs['task']}",
        chance=0.5,
        tokens=tokens,
        settings=json.dumps(settings, sort_keys=True),
        theory_settings=theory_settings,
    )


def order_named(names: Sequence[str], kind: str) -> str:
    """Return the first order of a kind, such as ``theory N=10`` of ``theory``.

    Raises a ValueError if there is none.
    """
    for name in names:
        if score_name(name) == kind:
            return name
    remedy = "; draw samples with: pathkernel sample, or choose --widths that have some"
    raise ValueError(
        f"there is no order {kind!r}, only {', '.join(names)}{remedy * (kind == 'sampled')}"
    )


def check_removal(study: StoredStudy, options: PruningOptions) -> None:
    """Raise a ValueError, before any work, if a pruned network cannot be made and written."""
    file, network = study_checkpoint(study, options.checkpoint)
    out, remove = options.out, options.remove
    if out.suffix.lower() != ".safetensors" or not out.resolve().parent.is_dir():
        raise ValueError(f"--out {out} must end in .safetensors, in a folder that exists")
    if out.exists() and out.samefile(file):
        raise ValueError(f"--out {out} is the trained network itself; name another file")
    if out.exists() and not _is_pruned(out):
        raise ValueError(f"--out {out} exists, and is no pruned network; name another file")
    heads = network.shape.heads_per_layer
    if remove > sum(heads) - len(heads):
        raise ValueError(
            f"--remove {remove} is too large: of {sum(heads)} heads at most "
            f"{sum(heads) - len(heads)} can be removed, as each of the {len(heads)} layers keeps "
            "one"
        )


def write_pruned(study: StoredStudy, options: PruningOptions, result: xr.Dataset) -> None:
    """Write the network without the first heads of the order that ``options`` name.

    It has all its weights if the trained network's file has, and else is stored along its paths;
    gains that are refitted are multiplied into either.
    """
    file, network = study_checkpoint(study, options.checkpoint)
    order = order_named(orders_of(result), options.order)
    removed = removed_heads(result, order, options.remove)
    gains = None
    if options.refit:
        validation = next(iter(_read_outputs(result)[0].values()))
        gains = refitted_gains(
            validation, np.array([head not in removed for head in every_head(validation.heads)])
        )
    if "path_weights" in read_network(file)[0]:
        save_paths(options.out, without_heads(network, removed, gains=gains))
    else:
        save_checkpoint(options.out, without_heads(read_checkpoint(file), removed, gains=gains))


def _is_pruned(file: Path) -> bool:
    try:
        return "removed_heads" in read_network(file)[1]
    except ValueError:  # no network at all
        return False


def _path_outputs(
    study: StoredStudy,
    file: Path,
    network: PathNetwork,
    settings: Mapping[str, Any],
    report: Report,
) -> tuple[dict[str, PathOutputs], int]:
    """Path outputs on every set of examples, validation first, and the number of tokens."""
    task = study.task(heads=str(file))
    with task_failures(task, f"cannot draw seed {settings['seed']}"):
        sets = task.evaluation_sets(settings["seed"], settings["episodes"])
    readout = study.dataset.attrs["readout"]
    readout = readout if readout in ("first", "last", "mean") else int(readout)
    outputs, tokens, completed, total = {}, 0, 0, len(sets) * settings["episodes"]

    def check_batches(name: str, batches: Iterable[Examples]) -> Iterator[Examples]:
        nonlocal tokens, completed
        for batch in batches:
            if batch.labels.ndim != 1 or not np.isin(batch.labels, (-1.0, 1.0)).all():
                raise StudyError(
                    "heads are removed by the accuracy that is lost, which takes labels ±1, but "
                    f"{name} of {study.dataset.attrs['task']} has others"
                )
            tokens = batch.inputs.shape[1]
            yield batch
            completed += len(batch.labels)
            report(Progress(completed, total, name))

    for name, batches in sets.items():
        report(Progress(completed, total, f"{name}: reading data"))
        outputs[name] = path_outputs(network, check_batches(name, batches), readout)
    return outputs, tokens


def _read_outputs(stored: xr.Dataset) -> tuple[dict[str, PathOutputs], int]:
    """Path outputs that an earlier comparison has stored, and the number of tokens."""
    outputs, heads = {}, tuple(stored.attrs["heads_per_layer"])
    stored = stored[["path_output", "episode_label"]].load()
    for name in stored["episode_set"].values:
        episodes = stored.sel(episode_set=name).dropna("episode")
        values, labels = episodes["path_output"].values, episodes["episode_label"].values
        outputs[str(name)] = PathOutputs(heads, values, labels)
    return outputs, int(stored.attrs["tokens"])


def _grid(dataset: xr.Dataset, compared: xr.Dataset, point: Point) -> xr.Dataset:
    """Rank correlation of the theory's scores over the grid with those of a point, and with losses.

    Losses are those of the network on the test sets with one head off.
    """
    removable = are_removable(dataset.attrs["heads_per_layer"])
    scores = score_grid(dataset, point.seed)[:, :, removable]
    lost = compared["lost"].isel(draw=0).values
    lost = lost[:, removable]
    return PRUNING_VARIABLES.dataset(
        {
            "theory_agreement": spearman(scores, theory_scores(dataset, point)[removable]),
            "theory_correlation": spearman(scores[:, :, None], lost),
        },
        {name: dataset[name].values for name in ("temperature", "width")},
    )


def _stored_outputs(outputs: Mapping[str, PathOutputs]) -> xr.Dataset:
    """Path outputs, from which the same network can be compared again."""
    values, labels = (
        padded_rows([getattr(part, name) for part in outputs.values()])
        for name in ("values", "labels")
    )
    first = next(iter(outputs.values()))
    return PRUNING_VARIABLES.dataset(
        {"path_output": values, "episode_label": labels},
        {
            "episode_set": tuple(outputs),
            "episode": range(labels.shape[1]),
            "path": Network(first.heads, 1).path_labels,
        },
    )
