"""Mixed precision: descents that begin in float32, beside those in float64 alone.

    python -m benchmarks.core.precision
    python -m benchmarks.core.precision --part large --heads 32,32 --widths 1000,100

``grid`` minimises forty problems of 4 to 1,024 paths, at three widths and four temperatures, with
NumPy and PyTorch: CPU seconds of both in turn, evaluations, whether the cost model takes mixed
precision, and how far actions and U differ. Its last lines list the problems that fell back.
``large`` does so at 600 examples of 64 inputs, T = 0.1; and compares single evaluations, the floor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import pathkernel_core as pk
from benchmarks.core.costs import numbers
from benchmarks.measuring import cpu_seconds, installed, one_thread, some_factor, timed, to_library

SHAPES = {  # heads: P, N_0
    (2, 2): (100, 64),
    (4, 4): (300, 64),
    (8, 8): (300, 32),
    (16, 16): (200, 32),
    (32, 32): (60, 8),
}
WIDTHS = (1000, 100, 10)
TEMPERATURES = (1.0, 0.1, 0.01, 0.001)
_SAME_ACTION, _SAME_U = 1e-10, 1e-7  # relative differences

Case = tuple[str, pk.Problem, pk.Network, float]
console = Console(width=120, highlight=False)


def random_problem(
    heads: Sequence[int], examples: int, inputs: int, library: str = "numpy"
) -> pk.Problem:
    """Noisy labels that three of the paths tell, as those of ``benchmarks.core.costs``."""
    generator = np.random.default_rng(0)
    paths = int(np.prod(heads))
    xi = generator.standard_normal((examples, paths, inputs))
    signal = np.tensordot(xi[:, :3], generator.standard_normal((3, inputs)), axes=2)
    labels = np.sign(signal + 0.5 * generator.standard_normal(examples))
    return pk.Problem(to_library(xi, library), to_library(labels, library))


def grid() -> Iterator[Case]:
    """Forty problems: five sizes, two libraries and four temperatures, each at the next width."""
    widths = itertools.cycle(WIDTHS)
    for heads, (examples, inputs) in SHAPES.items():
        for library in filter(installed, ("numpy", "torch")):
            problem = random_problem(heads, examples, inputs, library)
            for temperature in TEMPERATURES:
                name = f"{library} {examples} × {problem.n_paths} × {inputs}"
                yield name, problem, pk.Network(heads, next(widths)), temperature


def large(heads: Sequence[int], widths: Iterable[float]) -> Iterator[Case]:
    """Problems of 600 examples and 64 inputs at T = 0.1."""
    problem = random_problem(heads, 600, 64)
    for width in widths:
        yield f"numpy 600 × {problem.n_paths} × 64", problem, pk.Network(heads, width), 0.1


def compare(cases: Iterable[Case], rounds: int) -> None:
    """Print both ways to minimise side by side, and what does not agree."""
    table = Table(title="mixed precision, float64: CPU seconds; evaluations in float32 + float64")
    headings = ("P × n × N_0", "N", "T", "mixed", "float64", "ratio", "evaluations", "float64")
    for heading in (*headings, "model", "S differs", "U differs"):
        table.add_column(heading, justify="right")
    fallbacks, differences, ratios = [], [], []
    for name, problem, network, temperature in cases:
        pk.gp_limit(problem, network, temperature)  # the spectrum of the labels, and buffers
        seconds, solutions = _side_by_side(problem, network, temperature, rounds)
        mixed, double = solutions[True], solutions[False]
        action = abs(mixed.action - double.action) / abs(double.action)
        u, expected = (np.asarray(solution.order_parameter) for solution in (mixed, double))
        order_parameter = abs(u - expected).max() / abs(expected).max()
        point = f"{name}, N = {network.width:g}, T = {temperature:g}"
        if mixed.single_fallbacks:
            fallbacks.append(point)
        ends = [(s.status, len(s.other_minima)) for s in (mixed, double)]
        if action > _SAME_ACTION or order_parameter > _SAME_U or ends[0] != ends[1]:
            differences.append(point)
        ratios.append(seconds[True] / seconds[False])
        of_double = mixed.evaluations - mixed.single_evaluations
        table.add_row(
            name,
            f"{network.width:g}",
            f"{temperature:g}",
            *(f"{seconds[way]:.3f}" for way in (True, False)),
            f"{ratios[-1]:.2f}",
            f"{mixed.single_evaluations} + {of_double}",
            f"{double.evaluations}",
            "on" if problem.pays_in_single(network) else "off",
            f"{action:.0e}",
            f"{order_parameter:.0e}",
        )
    console.print(table)
    console.print(
        f"{len(ratios)} problems; ratio {min(ratios):.2f} to {max(ratios):.2f}, median "
        f"{statistics.median(ratios):.2f}"
    )
    console.print("other action, U, status or minima: " + ("; ".join(differences) or "none"))
    console.print("fell back: " + ("; ".join(fallbacks) or "none"))


def _side_by_side(
    problem: pk.Problem, network: pk.Network, temperature: float, rounds: int
) -> tuple[dict[bool, float], dict[bool, pk.Solution]]:
    """Median CPU seconds and solutions, with mixed precision and without, in turn."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    solutions = {}
    for number in range(rounds):
        for mixed in (True, False) if number % 2 == 0 else (False, True):
            call = partial(
                pk.minimise_action, problem, network, temperature,
                mixed_precision=mixed, throw=False,
            )  # fmt: skip
            used, solutions[mixed] = timed(call, time.process_time)
            seconds[mixed].append(used)
    return {way: statistics.median(values) for way, values in seconds.items()}, solutions


def floor(heads: Sequence[int]) -> None:
    """Print CPU seconds of one evaluation in both precisions."""
    form, factor = random_problem(heads, 600, 64).form, some_factor(int(np.prod(heads)))
    single, double = (
        cpu_seconds(partial(precision.energy_and_gradient, factor, 0.1))
        for precision in (form.in_single_precision, form)
    )
    console.print(
        f"one evaluation: {single:.3f} s in float32, {double:.3f} s in float64, "
        f"ratio {single / double:.2f}"
    )


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--part", choices=("grid", "large"), default="grid")
    add("--heads", type=numbers, default=(16, 16), help="of every layer of the large problems")
    add("--widths", type=numbers, default=(1000, 100, 20), help="of the large problems")
    add("--rounds", type=int, default=3, help="of every minimisation, alternating")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with one_thread():
        if options.part == "grid":
            compare(grid(), options.rounds)
            return
        floor(options.heads)
        compare(large(options.heads, options.widths), options.rounds)


if __name__ == "__main__":
    main()
