"""The grid of section 4.2, 10 widths by 10 temperatures: starts from neighbours or from the limit.

    python -m benchmarks.core.grid --heads trained:2-4-512-128

Every width is minimised twice, in turn: from high to low temperature, each minimum the start of the
next one, as in studies; and each temperature from the Gaussian process limit.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import pathkernel_core as pk
from benchmarks.core.problems import BenchmarkProblem, images
from benchmarks.measuring import one_thread, timed
from pathkernel_one_shot.task import OneShotImages


def minimise(drawn: BenchmarkProblem, width: float, from_neighbour: bool) -> list[pk.Solution]:
    """Minima of one width from high to low temperature, of kernels without cached values."""
    problem, network = pk.Problem(drawn.xi, drawn.labels), pk.Network(drawn.heads, width)
    solutions: list[pk.Solution] = []
    for temperature in sorted(OneShotImages.temperatures, reverse=True):
        start = solutions[-1] if from_neighbour and solutions else None
        solutions.append(pk.minimise_action(problem, network, temperature, start=start))
    return solutions


def measure(heads: str, seed: int, rounds: int) -> None:
    """Print seconds and evaluations of every width, and how far the order parameters differ."""
    drawn = images(seed=seed, heads=heads)
    console = Console(width=120)
    table = Table(title=f"{drawn.name}, heads {heads}: seconds (evaluations) of ten temperatures")
    for heading in ("N", "from the neighbour", "from the limit", "difference of U"):
        table.add_column(heading, justify="right")
    totals = np.zeros((2, 2))  # (start, seconds and evaluations)
    for width in OneShotImages.widths:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        solutions: dict[bool, list[pk.Solution]] = {}
        for number in range(rounds):
            for from_neighbour in (True, False) if number % 2 == 0 else (False, True):
                call = partial(minimise, drawn, width, from_neighbour)
                time, solutions[from_neighbour] = timed(call)
                seconds[from_neighbour].append(time)
        row = [
            (statistics.median(seconds[start]), sum(s.evaluations for s in solutions[start]))
            for start in (True, False)
        ]
        totals += row
        difference = max(
            np.abs(near.order_parameter - far.order_parameter).max()
            / np.abs(far.order_parameter).max()
            for near, far in zip(solutions[True], solutions[False])
        )
        cells = (f"{time:.2f} ({count})" for time, count in row)
        table.add_row(f"{width:g}", *cells, f"{difference:.0e}")
    table.add_row("all", *(f"{time:.1f} ({count:.0f})" for time, count in totals), "")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", default="random", help="file of heads, such as a checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each start")
    options = parser.parse_args()
    with one_thread():
        measure(options.heads, options.seed, options.rounds)


if __name__ == "__main__":
    main()
