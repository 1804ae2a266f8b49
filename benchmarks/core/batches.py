"""Many points at once: single evaluations in batches, and whole grids side by side.

    python -m benchmarks.core.batches
    python -m benchmarks.core.batches --part grids --heads trained:2-4-512-128

``evaluations`` measures energy and gradient per point, in kernel space for 1, 4, 10 and 100 points
together and in example and feature space, beside the choice of the cost model and the fastest in
hindsight. ``grids`` minimises the grids of the paper's two experiments, in turn: each width from
high to low temperature alone, and all widths side by side.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import pathkernel_core as pk
from benchmarks.core.problems import BenchmarkProblem, images, markov
from benchmarks.measuring import cpu_seconds, one_thread, timed
from pathkernel_core.energy import costs
from pathkernel_core.energy.problem import Problem
from pathkernel_one_shot.task import OneShotImages
from pathkernel_tasks.hidden_markov import HiddenMarkov

POINTS = (1, 4, 10, 100)
INPUTS = 64  # per path
SHAPES = [  # P, n
    (50, 2), (50, 16), (50, 64), (50, 256), (100, 4), (100, 64), (200, 16), (200, 64), (300, 16),
    (300, 32), (600, 4), (600, 16), (600, 32), (1000, 2), (1000, 8), (2000, 2), (2000, 4),
]  # fmt: skip

console = Console(width=120, highlight=False)


def measure_evaluations() -> None:
    """Print milliseconds per point of every form, and how good the choice of the model is."""
    table = Table(title=f"milliseconds of an evaluation per point, N_0 = {INPUTS}")
    headings = ("P × n", "examples", "features", *(f"kernels, B = {points}" for points in POINTS))
    for heading in (*headings, "chosen", "over the best"):
        table.add_column(heading, justify="right")
    losses = []
    for examples, paths in SHAPES:
        sizes = costs.Sizes(examples, paths, INPUTS)
        seconds = _of_forms(sizes)
        chosen, over = [], []
        for points in POINTS:
            form = costs.cheapest_form(sizes, points)
            by_form = {
                name: seconds[name, points if name == "kernels" else 1]
                for name in ("examples", "features", "kernels")
                if (name, 1) in seconds
            }
            chosen.append(form[0])
            over.append(by_form[form] / min(by_form.values()))
        losses += over
        cells = [seconds.get((name, 1)) for name in ("examples", "features")]
        cells += [seconds.get(("kernels", points)) for points in POINTS]
        table.add_row(
            f"{examples} × {paths}",
            *("–" if value is None else f"{1e3 * value:.2f}" for value in cells),
            " ".join(chosen),
            " ".join(f"{value:.2f}" for value in over),
        )
    console.print(table)
    console.print(
        "chosen: first letters of the forms for B = 1, 4, 10, 100. Over the best: their times over "
        f"those of the fastest form, median {statistics.median(losses):.2f}, "
        f"largest {max(losses):.2f}"
    )


def _of_forms(sizes: costs.Sizes) -> dict[tuple[str, int], float]:
    """CPU seconds of an evaluation per point, by form and number of points together."""
    generator = np.random.default_rng(0)
    xi = generator.standard_normal((sizes.examples, sizes.paths, INPUTS))
    labels = generator.standard_normal(sizes.examples)
    factors = [
        np.eye(sizes.paths) + 0.1 * np.tril(generator.standard_normal((sizes.paths,) * 2))
        for _ in range(max(POINTS))
    ]
    seconds: dict[tuple[str, int], float] = {}
    forms = ["examples"]
    if sizes.paths * sizes.inputs <= 2048:  # beyond it is never the fastest here
        forms.append("features")
    if sizes.kernel_elements <= sizes.most_kernels:
        forms.append("kernels")
    for name in forms:
        form = Problem(xi, labels, name).form
        seconds[name, 1] = cpu_seconds(lambda form=form: form.energy_and_gradient(factors[0], 0.1))
        if name != "kernels":
            continue
        for points in POINTS[1:]:
            arguments = factors[:points], [0.1] * points, [None] * points
            if form.pays_together(points):
                together = cpu_seconds(
                    lambda form=form, arguments=arguments: form.energies_and_gradients(*arguments)
                )
                seconds[name, points] = together / points
            else:  # then they are evaluated one after another
                seconds[name, points] = seconds[name, 1]
    return seconds


def one_by_one(drawn: BenchmarkProblem, widths: Sequence[float], temperatures: Sequence[float]):
    """Solutions of every width, from high to low temperature, each the start of the next one."""
    problem = pk.Problem(drawn.xi, drawn.labels)
    rows = []
    for width in widths:
        row: list[pk.Solution] = []
        for temperature in temperatures:
            start = row[-1] if row else None
            network = pk.Network(drawn.heads, width)
            row.append(pk.minimise_action(problem, network, temperature, start=start))
        rows.append(row)
    return rows


def side_by_side(drawn: BenchmarkProblem, widths: Sequence[float], temperatures: Sequence[float]):
    """Solutions of all widths together."""
    problem = pk.Problem(drawn.xi, drawn.labels)
    networks = [pk.Network(drawn.heads, width) for width in widths]
    return pk.minimise_actions(problem, networks, temperatures)


def measure_grids(heads: str, rounds: int) -> None:
    """Print CPU seconds and evaluations of both ways, and how far the solutions differ."""
    table = Table(title="grids: CPU seconds (evaluations)")
    for heading in ("grid", "one by one", "side by side", "ratio", "S/N differs", "U differs"):
        table.add_column(heading, justify="right")
    chains, drawn = HiddenMarkov(), images(heads=heads)
    grids = [(markov(seed), chains.widths, chains.temperatures) for seed in range(5)]
    grids.append((drawn, OneShotImages.widths, sorted(OneShotImages.temperatures, reverse=True)))
    for problem, widths, temperatures in grids:
        seconds: dict[Callable, list[float]] = {one_by_one: [], side_by_side: []}
        solutions = {}
        for number in range(rounds):
            for way in (one_by_one, side_by_side)[:: 1 if number % 2 == 0 else -1]:
                call = partial(way, problem, widths, temperatures)
                used, rows = timed(call, time.process_time)
                solutions[way] = [solution for row in rows for solution in row]
                seconds[way].append(used)
        pairs = list(zip(solutions[one_by_one], solutions[side_by_side]))
        medians = [statistics.median(seconds[way]) for way in (one_by_one, side_by_side)]
        counts = [
            sum(solution.evaluations for solution in solutions[way])
            for way in (one_by_one, side_by_side)
        ]
        action = max(abs(one.action - two.action) / max(1, abs(one.action)) for one, two in pairs)
        order_parameter = max(
            np.abs(one.order_parameter - two.order_parameter).max()
            / np.abs(one.order_parameter).max()
            for one, two in pairs
        )
        table.add_row(
            f"{problem.name}, {len(pairs)} points",
            *(f"{s:.2f} ({count})" for s, count in zip(medians, counts)),
            f"{medians[1] / medians[0]:.2f}",
            f"{action:.0e}",
            f"{order_parameter:.0e}",
        )
    console.print(table)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--part", choices=("evaluations", "grids", "all"), default="all")
    add("--heads", default="random", help="heads of the one-shot images")
    add("--rounds", type=int, default=3, help="of every grid, alternating")
    options = parser.parse_args()
    with one_thread():
        if options.part != "grids":
            measure_evaluations()
        if options.part != "evaluations":
            measure_grids(options.heads, options.rounds)


if __name__ == "__main__":
    main()
