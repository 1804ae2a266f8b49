"""Side-by-side comparisons: ``python -m benchmarks.core.compare [PART ...]``, all parts by default.

practice   minimise_action against today's practice: Adam through automatic differentiation
gpytorch   one evaluation against GPyTorch's of the same marginal likelihood
floor      one evaluation against the BLAS calls that it cannot do without
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

import pathkernel_core as pk
from benchmarks.core import problems
from benchmarks.core.floor import ExampleSpaceFloor, FeatureSpaceFloor
from benchmarks.measuring import (
    BACKENDS,
    alternate,
    installed,
    one_thread,
    some_factor,
    timed,
    to_library,
)
from pathkernel_core.arrays.backend import to_host

TOLERANCE = 1e-5  # of the comparison with today's practice
SAME_ACTION = 1e-7
FLOOR_RATIO = 2.0  # largest distance from the floor

console = Console(width=120, highlight=False)


def practice(options: argparse.Namespace) -> None:
    """Both minimisations of the same problems to the same tolerance, in turn."""
    for problem in _problems(options):
        construction, kernels = timed(lambda problem=problem: _kernels(problem, options, "auto"))
        examples, paths, inputs = problem.xi.shape
        console.print(
            f"{problem.name}: P={examples}, n={paths}, N_0={inputs} (span {kernels.n_features}), "
            f"T={problem.temperature:g}, max|∂(S/N)/∂U| < {TOLERANCE:g}; "
            f"kernels built once for all widths in {1e3 * construction:.1f} ms"
        )
        table = _table("width", "Adam, s", "steps", "ours, s", "evaluations", "ratio", "|ΔS/N|")
        ratios, evaluations, differences, bound = [], [], [], ""
        for width in problem.widths:
            descent, practice_seconds, solution, seconds = _one_width(
                problem, kernels, width, options
            )
            ratios.append(practice_seconds / seconds)
            evaluations.append(solution.evaluations)
            at_least, difference, note = "≥ ", "-", " (did not converge)"
            if descent.converged:
                differences.append(abs(solution.action - descent.action))
                at_least, difference, note = "", f"{differences[-1]:.0e}", ""
            bound = bound or at_least
            table.add_row(
                f"{width:g}", f"{at_least}{practice_seconds:.3f}", f"{descent.steps}{note}",
                f"{seconds:.4f}", f"{solution.evaluations}", f"{at_least}{ratios[-1]:.0f}",
                difference,
            )  # fmt: skip
        console.print(table)
        ratio, required = statistics.median(ratios), problem.required_ratio
        _verdict(f"median ratio: {bound}{ratio:.0f}", f"at least {required}", ratio >= required)
        if required := problem.required_evaluations:
            median = statistics.median(evaluations)
            _verdict(f"median evaluations: {median:g}", f"at most {required}", median <= required)
        if differences:
            _verdict(
                f"largest difference of S/N: {max(differences):.1e}", f"at most {SAME_ACTION:g}",
                max(differences) <= SAME_ACTION,
            )  # fmt: skip


def _one_width(
    problem: problems.BenchmarkProblem,
    kernels: pk.Problem,
    width: float,
    options: argparse.Namespace,
) -> tuple:
    """Last descent and median seconds of today's practice, then solution and seconds of ours."""
    import torch

    from benchmarks.core import todays_practice

    network = pk.Network(problem.heads, width)
    cuda = options.backend == "cupy" or options.device != "cpu"
    device = "cuda" if cuda and torch.cuda.is_available() else "cpu"
    # one thread on both sides: its CPU seconds are those of a machine that does nothing else
    clock = time.process_time if device == "cpu" else time.perf_counter

    def ours() -> pk.Solution:
        return pk.minimise_action(kernels, network, problem.temperature, tolerance=TOLERANCE)

    def today(max_steps: int = problem.max_steps) -> todays_practice.Descent:
        return todays_practice.minimise(
            problem.xi,
            problem.labels,
            problem.heads,
            width,
            problem.temperature,
            learning_rate=problem.learning_rate,
            tolerance=TOLERANCE,
            max_steps=max_steps,
            max_seconds=options.seconds,
            device=device,
            clock=clock,
        )

    solution = ours()  # warm-up of both: compilers, allocators, caches
    today(max_steps=3)
    our_seconds, practice_seconds = [], []
    for _ in range(options.rounds):
        our_seconds += [timed(ours, clock)[0] for _ in range(options.repeats)]
        descent = today()
        our_seconds += [timed(ours, clock)[0] for _ in range(options.repeats)]
        practice_seconds.append(descent.seconds)
        if not descent.converged or sum(practice_seconds) + descent.seconds > options.seconds:
            break
    medians = statistics.median(practice_seconds), statistics.median(our_seconds)
    return descent, medians[0], solution, medians[1]


def gpytorch(options: argparse.Namespace) -> None:
    """Energy and gradient against GPyTorch's, in turn, on one core."""
    if importlib.util.find_spec("gpytorch") is None:
        console.print("GPyTorch is not installed: no comparison with it")
        return
    from benchmarks.core.gaussian_process import MarginalLikelihood

    console.print("One evaluation of the energy and its gradient, and GPyTorch's of the same")
    table = _table("problem", "P × n × N_0", "GPyTorch, ms", "ours, ms", "ratio", "difference")
    for problem in _problems(options):
        kernels = pk.Problem(problem.xi, problem.labels)
        features = kernels.form.features
        factor = np.tril(some_factor(kernels.n_paths))
        reference = MarginalLikelihood(features, problem.labels, factor, problem.temperature)
        ours = _evaluation(kernels, factor, problem.temperature)
        (reference_energy, reference_gradient), (energy, gradient) = reference(), ours()
        gradient = 2 * gradient @ factor
        difference = abs(reference_gradient - gradient).max() / abs(gradient).max()
        difference = max(difference, abs(reference_energy - energy) / abs(energy))
        seconds = alternate(
            {"GPyTorch": reference, "ours": ours}, 200 if kernels.n_examples < 200 else 20
        )
        table.add_row(
            problem.name, " × ".join(map(str, features.shape)), *_compared(seconds),
            f"{difference:.0e}",
        )  # fmt: skip
    console.print(table)


def floor(options: argparse.Namespace) -> None:
    """One evaluation against its unavoidable BLAS calls, in turn, on one core."""
    console.print("One evaluation of energy and gradient, and its BLAS floor")
    table, ratios = _table("problem", "factorised", "ours, ms", "floor, ms", "ratio"), []
    cases = []
    for problem in _problems(options):
        kernels = _kernels(problem, options, "examples")
        features = pk.Problem(problem.xi, problem.labels, space="examples").form.features
        scale = np.sqrt(features.shape[1] * features.shape[2])  # the floor takes unscaled inputs
        calls = ExampleSpaceFloor(
            scale * features, some_factor(kernels.n_paths), problem.temperature
        )
        cases.append((problem.name, kernels, calls, problem.temperature, kernels.n_examples))
    stream = problems.Stream(examples=20_000)  # the cost does not depend on the examples
    kernels = pk.Problem.from_statistics(stream.statistics(options.backend, options.device))
    factor = some_factor(kernels.n_paths)
    calls = FeatureSpaceFloor(to_host(kernels.form.gram), factor, stream.temperature)
    size = kernels.n_paths * kernels.n_features
    cases.append(("statistics", kernels, calls, stream.temperature, size))
    for name, kernels, calls, temperature, size in cases:
        ours = _evaluation(kernels, some_factor(kernels.n_paths), temperature)
        seconds = alternate({"ours": ours, "floor": calls}, 400 if size < 200 else 40)
        ratios.append(seconds["ours"] / seconds["floor"])
        table.add_row(name, f"{size} × {size}", *_compared(seconds))
    console.print(table)
    _verdict(
        f"largest distance: {max(ratios):.2f}", f"at most {FLOOR_RATIO:g}",
        max(ratios) <= FLOOR_RATIO,
    )  # fmt: skip


def _problems(options: argparse.Namespace) -> Sequence[problems.BenchmarkProblem]:
    draw = {
        "markov": lambda: problems.markov(options.seed),
        "images": lambda: problems.images(
            options.seed, options.image_temperature, options.image_heads
        ),
    }
    return [draw[name]() for name in options.problems]


def _kernels(
    problem: problems.BenchmarkProblem, options: argparse.Namespace, space: str
) -> pk.Problem:
    arrays = (problem.xi, problem.labels)
    arrays = [to_library(array, options.backend, options.device) for array in arrays]
    return pk.Problem(*arrays, space=space)


def _evaluation(kernels: pk.Problem, factor: np.ndarray, temperature: float) -> Callable:
    return lambda: kernels.form.energy_and_gradient(factor, temperature)


def _table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _compared(seconds: dict[str, float]) -> list[str]:
    """Milliseconds of two sides, and the ratio of the first to the second."""
    first, second = seconds.values()
    return [f"{1e3 * first:.3f}", f"{1e3 * second:.3f}", f"{first / second:.2f}"]


def _verdict(result: str, requirement: str, reached: bool) -> None:
    outcome = "[green]reached[/green]" if reached else "[red]missed[/red]"
    console.print(f"  {result}; required {requirement}: {outcome}")


PARTS = {"practice": practice, "gpytorch": gpytorch, "floor": floor}


def main() -> None:
    """Run the chosen parts and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    add("--backend", choices=BACKENDS, default="numpy", help="array library of our side")
    add("--device", default="cpu", help="device of the torch backend: cpu or cuda")
    add("--seed", type=int, default=0, help="seed of the tasks")
    add("--problems", nargs="+", choices=("markov", "images"), default=("markov", "images"))
    add("--rounds", type=int, default=3, help="rounds of practice")
    add("--repeats", type=int, default=2, help="runs of our side before and after today's practice")
    add("--seconds", type=float, default=120.0, help="limit on today's practice, per width")
    add("--image-temperature", type=float, default=0.5, help="temperature of the image task")
    add("--image-heads", default="random", help="random, or a file of trained heads")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; choose from {list(PARTS)}")
    if not installed(options.backend):
        parser.error(f"{options.backend} cannot be used here")
    with one_thread():
        for part in options.parts or PARTS:
            PARTS[part](options)


if __name__ == "__main__":
    main()
