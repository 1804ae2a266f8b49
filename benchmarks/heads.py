"""Which heads can go: orders of heads of six models, plain, refitted and fine-tuned.

``python -m benchmarks.heads`` trains the models that are not in the cache, removes a quarter, half
and three quarters of their heads in every order, on three draws of examples of two sizes, and
writes a table, a CSV file and a figure. Some orders are measured after an epoch of fine-tuning,
too. An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

import pathkernel as pk
from benchmarks.head_models import DRAWS, HEAD_MODELS, head_model
from benchmarks.head_orders import FINE_TUNED, ORDERS, Drawn, NotDefinedError, Removed
from benchmarks.head_tables import SIZES, WHOLE, write_results
from benchmarks.head_trials import Gained, counted_passes
from benchmarks.head_tuning import fine_tuned
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


def main() -> None:
    """Measure what is missing, then write tables and figure of all there is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=HEAD_MODELS, default=list(HEAD_MODELS))
    add("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    add("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="sizes of the draws")
    add("--draws", type=int, choices=range(1, DRAWS + 1), default=DRAWS, help="number of draws")
    add("--jobs", type=int, default=2, help="number of processes, of one thread each")
    add("--cache", type=Path, help="folder of trained weights")
    add("--out", type=Path, default=Path("heads"), help="folder of all measurements")
    add("--results", type=Path, default=Path(__file__).with_name("results"), help="folder written")
    options = parser.parse_args()
    orders = tuple(options.orders)
    tasks = [
        Task(name, draw, size == SIZES[0], orders, options.out, options.cache)
        for size, draw, name in product(options.sizes, range(options.draws), options.models)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        training = [pool.submit(_train, name, options.cache) for name in options.models]
        for done in as_completed(training):
            print(f"{done.result()}: ready", file=sys.stderr, flush=True)
        running = [pool.submit(measure_task, task) for task in tasks if task.missing()]
        for number, done in enumerate(as_completed(running), start=1):
            print(f"{number} of {len(running)}: {done.result()}", file=sys.stderr, flush=True)
    for file in write_results(options.out, options.models, orders, options.results):
        print(file)


def _train(name: str, cache: Path | None) -> str:
    with one_thread():
        head_model(name, cache)
    return name


if __name__ == "__main__":
    main()
