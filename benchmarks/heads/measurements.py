"""Measurements of orders of heads: a file for each model, draw and order, so that runs resume."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pathkernel as pk
from benchmarks.heads.models import head_model
from benchmarks.heads.orders import FINE_TUNED, ORDERS, Drawn, NotDefinedError, Removed
from benchmarks.heads.tables import SIZES, WHOLE
from benchmarks.heads.trials import Gained, counted_passes
from benchmarks.heads.tuning import fine_tuned
from benchmarks.measuring import one_thread
from pathkernel_core.system.atomic import replace_file

QUARTERS = (1, 2, 3)
"""Quarters of the heads that are removed."""


@dataclass(frozen=True)
class Task:
    """Orders of one model from one draw of examples; ``is_large`` picks one of its sizes."""

    model: str
    draw: int
    is_large: bool
    orders: tuple[str, ...]
    out: Path
    cache: Path | None

    @property
    def folder(self) -> Path:
        """Folder of the measurements, a file for each order."""
        return self.out / self.model / f"{SIZES[not self.is_large]}-draw{self.draw + 1}"

    def file(self, order: str) -> Path:
        """File of an order."""
        return self.folder / f"{''.join(c if c.isalnum() else '-' for c in order)}.npz"

    def missing(self) -> list[str]:
        """Orders that are not measured yet."""
        return [order for order in (WHOLE, *self.orders) if not self.file(order).exists()]


def measure_task(task: Task) -> str:
    """Measure all missing orders of a task, one file each; the text of its report."""
    started = time.process_time()
    missing = task.missing()
    if missing:
        with one_thread(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*examples are few.*")
            _measure_orders(task, missing)
    return f"{task.folder}: {len(missing)} orders, {time.process_time() - started:.0f} CPU s"


def _measure_orders(task: Task, missing: list[str]) -> None:
    task.folder.mkdir(parents=True, exist_ok=True)
    model = head_model(task.model, task.cache)
    gained, size = Gained(model), model.sizes[not task.is_large]
    counts = tuple(len(gained.heads) * quarter // 4 for quarter in QUARTERS)
    drawn = Drawn(gained, model.batches("validation", task.draw, size), counts, seed=task.draw)
    test = model.batches("test")
    for order in missing:
        if order == WHOLE:
            values = gained.measure(test, gained.without([]))
            about = {"heads": len(gained.heads), "examples": size, "kind": model.kind}
        else:
            values, about = _measured(order, drawn, test)
        print(f"{task.folder}: {order}", file=sys.stderr, flush=True)
        with replace_file(task.file(order)) as partial, open(partial, "wb") as stream:
            np.savez_compressed(stream, about=json.dumps(about | {"order": order}), **values)


def _measured(order: str, drawn: Drawn, test: list) -> tuple[dict[str, np.ndarray], dict]:
    """Values (treatment, count, P) of the test examples without the heads of an order, and cost."""
    started = time.process_time()
    batches = len(drawn.batches)
    try:
        with counted_passes(drawn.head_model.model) as passes:
            removed = ORDERS[order](drawn)
    except NotDefinedError as error:
        return {}, {"not defined": str(error)}
    searched = passes.of(batches), time.process_time() - started
    rows: dict[str, list] = {"loss": [], "accuracy": []}
    costs, heads = [], []
    for count in drawn.counts:
        each = [list(_treated(drawn, test, sets, order in FINE_TUNED)) for sets in removed[count]]
        for name, row in rows.items():
            row.append(np.mean([[values[name] for values, *_ in of] for of in each], axis=0))
        first = removed[count][0]
        own = (first.passes, first.seconds) if first.passes is not None else searched
        costs.append([np.add(own, cost) for _, *cost in each[0]])
        heads.append([[drawn.gained.heads[h] for h in sets.heads] for sets in removed[count]])
    about = {"counts": drawn.counts, "removed": heads}
    values = {name: np.swapaxes(row, 0, 1).astype(np.float32) for name, row in rows.items()}
    return values | {"cost": np.swapaxes(costs, 0, 1)}, about


def _treated(
    drawn: Drawn, test: list, removed: Removed, tunes: bool
) -> Iterator[tuple[dict[str, np.ndarray], float, float]]:
    """Values on the test examples, passes and seconds: plain, with refitted gains, fine-tuned."""
    gained = drawn.gained
    yield gained.measure(test, gained.without(removed.heads)), 0.0, 0.0
    gains, passes, seconds = removed.gains, 0.0, 0.0
    if gains is None:
        gains, passes, seconds = _refit(drawn, removed.heads)
    yield gained.measure(test, gains), passes, seconds
    if tunes:
        started = time.process_time()
        with fine_tuned(gained, gains, drawn.seed):
            seconds += time.process_time() - started
            yield gained.measure(test, gains), passes, seconds


def _refit(drawn: Drawn, heads: Sequence[int]) -> tuple[np.ndarray, float, float]:
    """Gains (ΣH_ℓ,) without some heads, and passes and seconds of their refit."""
    gained, model, started = drawn.gained, drawn.head_model, time.process_time()
    off = [gained.heads[head] for head in heads]
    with counted_passes(model.model) as passes:
        gains = pk.refit_gains(model.model, drawn.batches, model.outputs, off, loss=model.loss)
    seconds = time.process_time() - started
    labels = [f"{layer}-{number}" for layer, number in gained.heads]
    return gains.sel(head=labels).values, passes.of(len(drawn.batches)), seconds


def train_model(name: str, cache: Path | None) -> str:
    """Train a model that is not in the cache; its name."""
    with one_thread():
        head_model(name, cache)
    return name
