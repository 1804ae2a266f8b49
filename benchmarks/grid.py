"""The grid of section 4.2, 10 widths by 10 temperatures: the time of each minimisation.

    python -m benchmarks.grid --heads network.safetensors

Every width is minimised twice, in turn: from high to low temperature, each minimum handed on to the
next one as its start, as studies do; and each on its own from the Gaussian process limit. The order
parameters of the two ways are compared. Without --heads the heads are random.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import pathkernel_core as pk
from benchmarks.measuring import one_thread, timed
from benchmarks.problems import images
from pathkernel_one_shot.task import OneShotImages

Minima = list[tuple[float, pk.Solution]]  # seconds and outcome, by temperature


def along(problem: pk.PathKernels, network: pk.Network, handed_on: bool) -> Minima:
    """Minima of one width from high to low temperature."""
    found: Minima = []
    for temperature in sorted(OneShotImages.temperatures, reverse=True):
        start = found[-1][1] if handed_on and found else None
        minimise = partial(pk.minimise_action, problem, network, temperature, start=start)
        found.append(timed(minimise))
    return found


def table(rows: dict[float, list[list[float]]]) -> Table:
    """Milliseconds of each minimisation, median over the rounds."""
    result = Table(title="Milliseconds of each minimisation, handed on from the left")
    result.add_column("N", justify="right")
    for temperature in sorted(OneShotImages.temperatures, reverse=True):
        result.add_column(f"T={temperature:g}", justify="right")
    for width, rounds in rows.items():
        medians = (1000 * statistics.median(seconds) for seconds in zip(*rounds))
        result.add_row(f"{width:g}", *(f"{value:.0f}" for value in medians))
    return result


def measure(heads: str, seed: int, rounds: int, widths: Sequence[float]) -> None:
    """Minimise the grid both ways and print what was found."""
    drawn = images(seed=seed, heads=heads)
    shape = pk.Network(drawn.heads, widths[0])
    console = Console(width=120)
    console.print(f"{drawn.name}: P = {len(drawn.labels)}, {shape.n_paths} paths, heads {heads}")
    seconds: dict[float, list[list[float]]] = {}
    alone: dict[float, list[list[float]]] = {}
    evaluations, apart = np.zeros(2, dtype=int), 0.0
    for width in widths:
        network = pk.Network(drawn.heads, width)
        for number in range(rounds):
            ways: dict[bool, Minima] = {}
            for handed_on in (True, False) if number % 2 == 0 else (False, True):
                # kernels afresh, so that no way profits from what the other has computed
                problem = pk.PathKernels(drawn.xi, drawn.labels)
                ways[handed_on] = along(problem, network, handed_on)
            seconds.setdefault(width, []).append([time for time, _ in ways[True]])
            alone.setdefault(width, []).append([time for time, _ in ways[False]])
        evaluations += [
            sum(solution.evaluations for _, solution in ways[handed_on])
            for handed_on in (True, False)
        ]
        for (_, one), (_, other) in zip(ways[True], ways[False]):
            scale = np.abs(other.order_parameter).max()
            distance = np.abs(one.order_parameter - other.order_parameter).max() / scale
            apart = max(apart, float(distance))
    console.print(table(seconds))
    totals = [
        sum(statistics.median(map(sum, rounds_)) for rounds_ in way.values())
        for way in (seconds, alone)
    ]
    console.print(
        f"All {len(widths) * len(OneShotImages.temperatures)}: {totals[0]:.1f} s and "
        f"{evaluations[0]} evaluations handed on, {totals[1]:.1f} s and {evaluations[1]} each on "
        f"its own: {totals[1] / totals[0]:.2f} times the time, "
        f"{evaluations[1] / evaluations[0]:.2f} times the evaluations"
    )
    console.print(f"Largest difference of an entry of U, relative to U's largest: {apart:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", default="random", help="file of heads, such as a checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")
    parser.add_argument("--rounds", type=int, default=3, help="times that each way is measured")
    arguments = parser.parse_args()
    with one_thread():
        measure(arguments.heads, arguments.seed, arguments.rounds, OneShotImages.widths)


if __name__ == "__main__":
    main()
