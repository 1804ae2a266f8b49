"""Heads of a study's trained network: scored, removed, and the outcome kept in its store."""

from __future__ import annotations

import json
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
from pathkernel_datasets.measures import kind_of as kind_of_labels
from pathkernel_datasets.point import Point
from pathkernel_datasets.stored import StoredStudy
from pathkernel_tasks.heads_file import heads_digest
from pathkernel_trained.checkpoint import (
    read_checkpoint,
    read_network,
    save_checkpoint,
)
from pathkernel_trained.correlation import spearman
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs, path_outputs
from pathkernel_trained.heads import are_removable, removable_heads
from pathkernel_trained.layout import labelled_orders
from pathkernel_trained.network import NetworkShape, network_cost
from pathkernel_trained.orders import compare_orders, orders_of, removed_heads
from pathkernel_trained.path_network import PathNetwork, save_paths, without_heads
from pathkernel_trained.removal_games import EXACT_PLAYERS
from pathkernel_trained.results import Pruning
from pathkernel_trained.scores import SCORES, HeadScores, Material, kind_of
from pathkernel_trained.study_checkpoint import study_checkpoint
from pathkernel_trained.theory_drops import theory_drops
from pathkernel_trained.theory_scores import (
    label,
    score_grid,
    theory_order_parameter,
    theory_points,
    theory_scores,
)

_PERMUTATIONS = 500  # that sampled Shapley values are means over


def pruned(study: StoredStudy, wanted: Pruning, report: Report) -> xr.Dataset:
    """Compare orders in which the heads of a study's trained network can be removed.

    Path outputs on validation and test examples, and the theory's losses, are taken from the store
    if it has those of the same network and settings. The dataset is as docs/pruning.md lists it.

    Raises
    ------
    StoreError
        If the store is damaged, its heads are not those of a checkpoint, or it lacks the point; or
        the checkpoint is of another network, or of one without a head to spare.
    FileNotFoundError, ValueError
        If the checkpoint is missing or damaged, a number is out of range, or there is no order of
        the kind that is needed.
    """
    if kind_of_labels(study.dataset) == "targets":
        raise StoreError(
            f"{study.path} is a study of real targets, and heads are removed by the accuracy that "
            "is lost, which takes classes ±1; the theory's score of every head is in the store, as "
            "head_score"
        )
    file, network = study_checkpoint(study, wanted.checkpoint)
    heads, dataset = network.shape.heads_per_layer, study.dataset
    if not removable_heads(heads):
        raise StoreError(
            f"every layer of {file} has one head only, so that none can be removed; train a "
            "network with more"
        )
    draws = order_parameter_draws(study)
    points = theory_points(dataset, wanted.widths, wanted.temperature, wanted.seed, draws)
    labels = {label("theory", at): at for at in points}
    labels |= {label("sampled", at): at for at in points if at in draws}
    others = [score.name for score in SCORES if score.name not in ("theory", "sampled")]
    order_named([*labels, *others], wanted.order)  # a slip should show before the work
    seed = points[0].seed
    settings = {"heads": heads_digest(file), "episodes": wanted.episodes, "seed": seed}
    settings |= versions(("pathkernel",))
    outputs, tokens = _path_outputs(study, file, network, settings, report)
    scoring, *test_sets = outputs
    total = len(outputs) * wanted.episodes

    def tell(doing: str) -> None:
        report(Progress(total, total, doing))

    drops = _theory_drops(study, points[0], file, test_sets, tell)
    tell("comparing orders")
    material = Material(dataset, points, draws, drops, network, outputs[scoring])
    scores: dict[str, HeadScores] = {}
    for score in SCORES:
        scores |= {} if score.compute is None else score.compute(material)
    compared = compare_orders(
        PathEvaluator(outputs),
        scores,
        scoring,
        test_sets,
        random=wanted.random,
        shapley="exact" if sum(heads) <= EXACT_PLAYERS else _PERMUTATIONS,
        greedy=1,
        best_of=wanted.sets,
        best=True,
        resamples=wanted.resamples,
        seed=seed,
    )
    at_points = [labels.get(str(name)) for name in compared["order"].values]
    of_orders = {
        f"order_{name}": [np.nan if at is None else getattr(at, name) for at in at_points]
        for name in ("width", "temperature")
    }
    others = [
        labelled_orders({}, of_orders),
        labelled_orders(_costs(network, compared, tokens), {}),
        drops,
        _grid(dataset, compared, points[0]),
        _stored_outputs(outputs),
    ]
    result = xr.merge([compared, *others], join="exact", compat="equals", combine_attrs="override")
    return result.assign_attrs(
        title=f"Heads removed from the trained network of {dataset.attrs['label']}",
        chance=0.5,
        tokens=tokens,
        settings=json.dumps(settings, sort_keys=True),
        theory_settings=drops.attrs["theory_settings"],
    )


def order_named(names: Sequence[str], kind: str) -> str:
    """The first of the orders that is of a kind, such as ``theory N=10`` of ``theory``."""
    for name in names:
        if kind_of(name) == kind:
            return name
    remedy = "; draw samples with: pathkernel sample, or choose --widths that have some"
    raise ValueError(
        f"there is no order {kind!r}, only {', '.join(names)}{remedy * (kind == 'sampled')}"
    )


def check_removal(study: StoredStudy, wanted: Pruning) -> None:
    """Raise a ValueError, before any work, if a pruned network cannot be made and written."""
    file, network = study_checkpoint(study, wanted.checkpoint)
    out, remove = wanted.out, wanted.remove
    if out.suffix.lower() != ".safetensors" or not out.resolve().parent.is_dir():
        raise ValueError(f"--out {out} must end in .safetensors, in a folder that exists")
    if out.exists() and out.samefile(file):
        raise ValueError(f"--out {out} is the trained network itself; name another file")
    if out.exists() and not _is_pruned(out):
        raise ValueError(f"--out {out} is there already, and is no pruned network; name another")
    heads = network.shape.heads_per_layer
    if remove > sum(heads) - len(heads):
        raise ValueError(
            f"--remove {remove} is too much: of {sum(heads)} heads at most "
            f"{sum(heads) - len(heads)} can go, as each of the {len(heads)} layers keeps one"
        )


def write_pruned(study: StoredStudy, wanted: Pruning, result: xr.Dataset) -> None:
    """Write the network without the heads that go first by the order that is wanted.

    It has all its weights if the file of the whole network has, and else is along its paths.
    """
    file, network = study_checkpoint(study, wanted.checkpoint)
    removed = removed_heads(result, order_named(orders_of(result), wanted.order), wanted.remove)
    if "path_weights" not in read_network(file)[0]:
        save_checkpoint(wanted.out, without_heads(read_checkpoint(file), removed))
    else:
        save_paths(wanted.out, without_heads(network, removed))


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
    """Path outputs on every set, first the one to score heads on, and the number of tokens."""
    heads = network.shape.heads_per_layer
    stored = _stored(study, "settings", json.dumps(settings, sort_keys=True))
    if stored is not None and "tokens" in stored.attrs:
        outputs = {}
        for name in stored["episode_set"].values:
            own = stored[["path_output", "episode_label"]].sel(episode_set=name).dropna("episode")
            outputs[str(name)] = PathOutputs(
                heads, own["path_output"].values, own["episode_label"].values
            )
        return outputs, int(stored.attrs["tokens"])
    episodes = settings["episodes"]
    sets = study.task(heads=str(file)).evaluation_sets(settings["seed"], episodes)
    readout = study.dataset.attrs["readout"]
    readout = readout if readout in ("first", "last", "mean") else int(readout)
    tokens, done, total = 0, 0, len(sets) * episodes
    outputs = {}
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

        outputs[name] = path_outputs(network, checked(), readout)
    return outputs, tokens


def _theory_drops(
    study: StoredStudy,
    at: Point,
    file: Path,
    test_sets: Sequence[str],
    tell: Callable[[str], None],
) -> xr.Dataset:
    """Losses of the theory with single heads, from the store if it has those of the point."""
    settings = {"at": str(at), "test_sets": test_sets} | versions(("pathkernel",))
    settings = json.dumps(settings, sort_keys=True)
    stored = _stored(study, "theory_settings", settings)
    if stored is not None:
        names = ("theory_accuracy", "theory_drop", "theory_drop_error", "theory_error_rise")
        drops = stored[list(names)].load()
    else:
        tell("theory: data and attention")
        matrix = theory_order_parameter(study.dataset, at)
        drops = theory_drops(study.rebuild(at, heads=str(file)), matrix, test_sets, tell)
    return drops.assign_attrs(theory_settings=settings)


def _stored(study: StoredStudy, name: str, settings: str) -> xr.Dataset | None:
    """The comparison that the store holds, if this attribute of it is the same."""
    if not study.holds(Pruning.name):
        return None
    stored = study.result(Pruning.name).to_dataset()
    return stored if stored.attrs.get(name) == settings else None


def _check_labels(study: StoredStudy, name: str, labels: np.ndarray) -> None:
    if labels.ndim != 1 or not np.isin(labels, (-1.0, 1.0)).all():
        raise StoreError(
            f"heads are removed by the accuracy that is lost, which takes labels ±1, but {name} of "
            f"{study.dataset.attrs['task']} has others"
        )


def _costs(network: PathNetwork, compared: xr.Dataset, tokens: int) -> dict[str, Any]:
    """Cost after every removal; every head costs the same, so that the number decides."""
    shape, token_width = network.shape, network.layers[0].queries.shape[2]
    heads, costs = list(shape.heads_per_layer), []
    for _ in compared["removed"].values:
        left = NetworkShape(shape.layers, tuple(heads), shape.width, shape.qk_width)
        costs.append(network_cost(left, token_width, tokens))
        heads[int(np.argmax(heads))] -= 1
    return {name: [getattr(cost, name) for cost in costs] for name in ("parameters", "flops")}


def _grid(dataset: xr.Dataset, compared: xr.Dataset, at: Point) -> xr.Dataset:
    """Agreement of the theory's scores over the grid, and at every point with the true losses."""
    removable = are_removable(dataset.attrs["heads_per_layer"])
    scores = score_grid(dataset, at.seed)[:, :, removable]
    lost = compared["lost"].isel(draw=0).values
    lost = lost[:, ~np.isnan(lost[0])]  # of heads that are there and removable
    return labelled_orders(
        {
            "theory_agreement": spearman(scores, theory_scores(dataset, at)[removable]),
            "theory_correlation": spearman(scores[:, :, None], lost),
        },
        {name: dataset[name].values for name in ("temperature", "width")},
    )


def _stored_outputs(outputs: Mapping[str, PathOutputs]) -> xr.Dataset:
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
