"""Which heads can go: orders of heads of six models, plain, refitted and fine-tuned.

``python -m benchmarks.heads`` trains the models that are not in the cache, removes a quarter, half
and three quarters of their heads in every order, on three draws of examples of two sizes, and
writes a table, a CSV file and a figure. Some orders are measured after an epoch of fine-tuning,
too. An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path

from benchmarks.heads.measurements import Task, measure_task, train_model
from benchmarks.heads.models import DRAWS, HEAD_MODELS
from benchmarks.heads.orders import ORDERS
from benchmarks.heads.tables import RESULTS, SIZES, write_results


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
    add("--results", type=Path, default=RESULTS, help="folder written")
    options = parser.parse_args()
    orders = tuple(options.orders)
    tasks = [
        Task(name, draw, size == SIZES[0], orders, options.out, options.cache)
        for size, draw, name in product(options.sizes, range(options.draws), options.models)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        training = [pool.submit(train_model, name, options.cache) for name in options.models]
        for done in as_completed(training):
            print(f"{done.result()}: ready", file=sys.stderr, flush=True)
        running = [pool.submit(measure_task, task) for task in tasks if task.missing()]
        for number, done in enumerate(as_completed(running), start=1):
            print(f"{number} of {len(running)}: {done.result()}", file=sys.stderr, flush=True)
    for file in write_results(options.out, options.models, orders, options.results):
        print(file)


if __name__ == "__main__":
    main()
