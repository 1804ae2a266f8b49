"""Side-by-side comparisons: ``python -m benchmarks.compare [PART ...]``, all parts by default.

practice   minimise_action against today's practice: Adam through automatic differentiation
gpytorch   one evaluation against GPyTorch's of the same marginal likelihood
floor      one evaluation against the BLAS calls that it cannot do without
spaces     kernel space against example space, and the sampler's feature space against the core's
streaming  more examples than memory: seconds and peak memory
imports    start-up time of the library and of the command line
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

import pathkernel_core as pk
from benchmarks import floor as floors
from benchmarks import problems
from benchmarks.measuring import (
    BACKENDS,
    alternate,
    installed,
    one_thread,
    record,
    results_file,
    save,
    timed,
    to_library,
)
from pathkernel_core.backend import to_host

TOLERANCE = 1e-5  # of the comparison with today's practice
SAME_ACTION = 1e-7
FLOOR_RATIO = 2.0  # largest distance from the floor
STREAM_RATIO = 0.5
STREAM_SECONDS, STREAM_MEBIBYTES = 10.0, 1024.0

console = Console(width=120, highlight=False)


def practice(options: argparse.Namespace) -> dict:
    """Both minimisations of the same problems to the same tolerance, in turn."""
    chosen = []
    if "markov" in options.problems:
        chosen.append(problems.markov(options.seed))
    if "images" in options.problems:
        chosen.append(problems.images(options.seed, options.image_temperature, options.image_heads))
    return {problem.name: _practice(problem, options) for problem in chosen}


def _practice(problem: problems.BenchmarkProblem, options: argparse.Namespace) -> dict:
    def construct() -> pk.PathKernels:
        return pk.PathKernels(*_arrays(problem, options))

    construct()  # warm-up
    construction, kernels = timed(construct)
    examples, paths, inputs = problem.xi.shape
    console.print(
        f"{problem.name}: P={examples}, n={paths}, N_0={inputs} (span {kernels.n_features}), "
        f"T={problem.temperature:g}, max|∂(S/N)/∂U| < {TOLERANCE:g}; "
        f"kernels built once for all widths in {1e3 * construction:.1f} ms"
    )
    table = Table()
    for heading in ("width", "Adam, s", "steps", "ours, s", "evaluations", "ratio", "|ΔS/N|"):
        table.add_column(heading, justify="right")
    rows = []
    for width in problem.widths:
        row = _one_width(problem, kernels, width, options)
        rows.append(row)
        bound = "" if row["converged"] else "≥ "
        table.add_row(
            f"{width:g}",
            bound + f"{row['practice_seconds']:.3f}",
            f"{row['steps']}" + ("" if row["converged"] else " (did not converge)"),
            f"{row['our_seconds']:.4f}",
            f"{row['evaluations']}",
            bound + f"{row['ratio']:.0f}",
            f"{row['action_difference']:.0e}" if row["converged"] else "-",
        )
    console.print(table)
    ratio = statistics.median(row["ratio"] for row in rows)
    bound = "" if all(row["converged"] for row in rows) else "≥ "
    _verdict(
        "median ratio", f"{bound}{ratio:.0f}", ratio >= problem.required_ratio,
        f"at least {problem.required_ratio:g}",
    )  # fmt: skip
    evaluations = statistics.median(row["evaluations"] for row in rows)
    if problem.required_evaluations:
        _verdict(
            "median evaluations", f"{evaluations:g}", evaluations <= problem.required_evaluations,
            f"at most {problem.required_evaluations:g}",
        )  # fmt: skip
    compared = [row["action_difference"] for row in rows if row["converged"]]
    if compared:
        _verdict(
            "largest difference of S/N", f"{max(compared):.1e}", max(compared) <= SAME_ACTION,
            f"at most {SAME_ACTION:g}",
        )  # fmt: skip
    return {
        "temperature": problem.temperature,
        "tolerance": TOLERANCE,
        "learning_rate": problem.learning_rate,
        "construction_seconds": construction,
        "median_ratio": ratio,
        "median_ratio_is_lower_bound": bool(bound),
        "median_evaluations": evaluations,
        "widths": rows,
    }


def _one_width(
    problem: problems.BenchmarkProblem,
    kernels: pk.PathKernels,
    width: float,
    options: argparse.Namespace,
) -> dict:
    from benchmarks import todays_practice

    network = pk.Network(problem.heads, width)
    device = _practice_device(options)
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

    ours()  # warm-up of both: compilers, allocators, caches
    today(max_steps=3)
    our_seconds, their_seconds, spent = [], [], 0.0
    for _ in range(options.rounds):
        our_seconds += [timed(ours, clock)[0] for _ in range(options.repeats)]
        descent = today()
        seconds, solution = timed(ours, clock)
        our_seconds += [seconds] + [timed(ours, clock)[0] for _ in range(options.repeats - 1)]
        their_seconds.append(descent.seconds)
        spent += descent.seconds
        if not descent.converged or spent + descent.seconds > options.seconds:
            break
    ratio = statistics.median(their_seconds) / statistics.median(our_seconds)
    return {
        "width": width,
        "practice_seconds": statistics.median(their_seconds),
        "practice_rounds": len(their_seconds),
        "steps": descent.steps,
        "converged": descent.converged,
        "practice_gradient_norm": descent.gradient_norm,
        "practice_action": descent.action,
        "our_seconds": statistics.median(our_seconds),
        "evaluations": solution.evaluations,
        "our_gradient_norm": solution.gradient_norm,
        "our_action": solution.action,
        "action_difference": abs(solution.action - descent.action),
        "ratio": ratio,
    }


def _arrays(problem: problems.BenchmarkProblem, options: argparse.Namespace) -> list:
    return [
        to_library(array, options.backend, options.device) for array in (problem.xi, problem.labels)
    ]


def _practice_device(options: argparse.Namespace) -> str:
    """Today's practice runs where ours does, if PyTorch can reach that device."""
    import torch

    cuda = options.backend == "cupy" or options.device != "cpu"
    return "cuda" if cuda and torch.cuda.is_available() else "cpu"


def gpytorch(options: argparse.Namespace) -> dict:
    """Energy and gradient against GPyTorch's, in turn, on one core."""
    if importlib.util.find_spec("gpytorch") is None:
        console.print("GPyTorch is not installed; it is left out")
        return {}
    from benchmarks.gaussian_process import MarginalLikelihood

    console.print("One evaluation of the energy and its gradient, and GPyTorch's of the same")
    table = Table()
    for heading in ("problem", "P × n × N_0", "GPyTorch, ms", "ours, ms", "ratio", "difference"):
        table.add_column(heading, justify="right")
    figures = {}
    for problem in (
        problems.markov(options.seed),
        problems.images(options.seed, heads=options.image_heads),
    ):
        kernels = pk.PathKernels(problem.xi, problem.labels)
        features = kernels.form.features
        factor = np.tril(_some_factor(kernels.n_paths))
        theirs = MarginalLikelihood(features, problem.labels, factor, problem.temperature)
        ours = _evaluation(kernels, factor, problem.temperature)
        (their_energy, their_gradient), (energy, gradient) = theirs(), ours()
        gradient = 2 * gradient @ factor
        difference = abs(their_gradient - gradient).max() / abs(gradient).max()
        difference = max(difference, abs(their_energy - energy) / abs(energy))
        rounds = 200 if kernels.n_examples < 200 else 20
        seconds = alternate({"theirs": theirs, "ours": ours}, rounds)
        ratio = seconds["theirs"] / seconds["ours"]
        table.add_row(
            problem.name, " × ".join(map(str, features.shape)),
            *(f"{1e3 * value:.3f}" for value in seconds.values()), f"{ratio:.1f}",
            f"{difference:.0e}",
        )  # fmt: skip
        figures[problem.name] = {**seconds, "ratio": ratio, "difference": difference}
    console.print(table)
    return figures


def floor(options: argparse.Namespace) -> dict:
    """One evaluation against its unavoidable BLAS calls, in turn, on one core."""
    stream = problems.Stream(examples=20_000)  # the cost does not depend on the examples
    console.print("One evaluation of energy and gradient, and its BLAS floor")
    table = Table()
    for heading in ("problem", "factorised", "floor, ms", "ours, ms", "ratio"):
        table.add_column(heading, justify="right")
    figures, cases = {}, []
    for problem in (
        problems.markov(options.seed),
        problems.images(options.seed, heads=options.image_heads),
    ):
        kernels = pk.PathKernels(*_arrays(problem, options), space="examples")
        own = pk.PathKernels(problem.xi, problem.labels, space="examples").form.features
        scale = np.sqrt(own.shape[1] * own.shape[2])  # the floor takes unscaled inputs
        cases.append((problem.name, kernels, floors.ExampleSpaceFloor, scale * own,
                      problem.temperature))  # fmt: skip
    total = None
    for xi, labels in stream.batches():
        part = pk.SufficientStatistics.of(
            *(to_library(array, options.backend, options.device) for array in (xi, labels))
        )
        total = part if total is None else total + part
    kernels = pk.PathKernels.from_statistics(total)
    gram = to_host(kernels.form.gram)
    cases.append(("statistics", kernels, floors.FeatureSpaceFloor, gram, stream.temperature))
    for name, kernels, floor_type, array, temperature in cases:
        factor = _some_factor(kernels.n_paths)
        sides = {
            "floor": floor_type(array, factor, temperature),
            "ours": _evaluation(kernels, factor, temperature),
        }
        rounds = 400 if kernels.space == "examples" and kernels.n_examples < 200 else 40
        seconds = alternate(sides, rounds)
        ratio = seconds["ours"] / seconds["floor"]
        size = kernels.n_paths * kernels.n_features
        if kernels.space == "examples":
            size = kernels.n_examples
        table.add_row(
            name, f"{size} × {size}", f"{1e3 * seconds['floor']:.3f}",
            f"{1e3 * seconds['ours']:.3f}", f"{ratio:.2f}",
        )  # fmt: skip
        figures[name] = {
            "floor_seconds": seconds["floor"], "our_seconds": seconds["ours"], "ratio": ratio,
        }  # fmt: skip
    console.print(table)
    worst = max(figure["ratio"] for figure in figures.values())
    _verdict("largest distance", f"{worst:.2f}", worst <= FLOOR_RATIO, f"at most {FLOOR_RATIO:g}")
    return figures


def _evaluation(kernels: pk.PathKernels, factor: np.ndarray, temperature: float) -> Callable:
    return lambda: kernels.form.energy_and_gradient(factor, temperature)


def _some_factor(paths: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.eye(paths) + 0.1 * np.tril(generator.standard_normal((paths, paths)))


def spaces(options: argparse.Namespace) -> dict:
    """One evaluation in example and in kernel space, and what a singular factor costs in JAX."""
    console.print("One evaluation of energy and gradient in two spaces, in turn")
    table = Table()
    for heading in ("P", "n", "N_0", "examples, ms", "kernels, ms", "ratio", "cheaper by rule"):
        table.add_column(heading, justify="right")
    figures = {}
    generator = np.random.default_rng(options.seed)
    for shape in ((100, 4, 231), (100, 16, 115), (100, 16, 16), (300, 4, 64), (600, 4, 64)):
        arrays = generator.standard_normal(shape), generator.standard_normal(shape[0])
        arrays = [to_library(array, options.backend, options.device) for array in arrays]
        problems_of = {name: pk.PathKernels(*arrays, name) for name in ("examples", "kernels")}
        factor = _some_factor(shape[1])
        sides = {name: _evaluation(of, factor, 0.1) for name, of in problems_of.items()}
        seconds = alternate(sides, 60)
        ratio = seconds["kernels"] / seconds["examples"]
        predicted = pk.PathKernels(*arrays).space == "kernels"
        milliseconds = [f"{1e3 * value:.3f}" for value in seconds.values()]
        table.add_row(*map(str, shape), *milliseconds, f"{ratio:.2f}", str(predicted))
        figures[" × ".join(map(str, shape))] = {**seconds, "ratio": ratio, "by rule": predicted}
    console.print(table)
    if installed("jax") and importlib.util.find_spec("pathkernel_sampling"):
        figures["sampler"] = _sampler_in_feature_space()
    return figures


def _sampler_in_feature_space() -> dict:
    """Time of the sampler's energy and gradient over that of the core's, at an invertible factor.

    The core's gradient, divided by the factor on the left, is then the sampler's.
    """
    os.environ.setdefault("JAX_ENABLE_X64", "1")  # before JAX is imported
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    import jax
    from jax.scipy.linalg import solve_triangular

    from pathkernel_core import spaces as core
    from pathkernel_sampling import likelihood

    @jax.jit
    def ours(space, factor):
        return likelihood.energy_and_gradient(space, factor, 0.1)

    @jax.jit
    def of_the_core(space, factor):
        log_det, fitted, gradient = core._feature_space(*space.rows, factor, 0.1)
        return log_det, fitted, 2 * solve_triangular(factor, gradient, lower=True, trans=1)

    generator, figures = np.random.default_rng(0), {}
    for paths, inputs in ((4, 64), (16, 32)):
        xi = generator.standard_normal((2 * paths * inputs, paths, inputs))
        problem = pk.PathKernels(xi, generator.standard_normal(len(xi)), "features")
        space = jax.tree.map(jax.numpy.asarray, problem.form)
        factor = jax.numpy.asarray(_some_factor(paths))
        np.testing.assert_allclose(ours(space, factor)[1], of_the_core(space, factor)[2], rtol=1e-6)
        sides = {
            name: functools.partial(
                lambda side, *at: jax.block_until_ready(side(*at)), side, space, factor
            )
            for name, side in (("sampler", ours), ("core", of_the_core))
        }
        seconds = alternate(sides, 40)
        ratio = seconds["core"] / seconds["sampler"]
        console.print(
            f"  feature space in JAX, n = {paths}, N_0 = {inputs}: "
            f"{1e3 * seconds['sampler']:.2f} ms for any factor, {1e3 * seconds['core']:.2f} ms "
            f"for an invertible one ({ratio:.2f})"
        )
        figures[f"{paths} × {inputs}"] = {**seconds, "ratio": ratio}
    return figures


def streaming(options: argparse.Namespace) -> dict:
    """Minimisation from statistics of a stream, in a process of its own."""
    arguments = ["--backend", options.backend, "--device", options.device]
    command = [sys.executable, "-m", "benchmarks.streaming", *arguments]
    runs = []
    for _ in range(options.rounds):
        finished = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(finished.stdout))
    figures = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
    figures["peak_mebibytes"] = max(run["peak_mebibytes"] for run in runs)
    console.print(
        f"Streaming {figures['examples']:,} examples, D = {figures['features']:,}: statistics "
        f"summed in {figures['seconds_of_sums']:.1f} s, then {figures['evaluations']} evaluations "
        f"to a gradient of {figures['gradient_norm']:.0e}"
    )
    ratio = figures["gigaflops_of_sums"] / figures["gigaflops_of_products"]
    _verdict(
        "rate of the sums", f"{ratio:.2f} of a product's", ratio >= STREAM_RATIO,
        f"at least {STREAM_RATIO:g}",
    )  # fmt: skip
    seconds, memory = figures["seconds"], figures["peak_mebibytes"]
    _verdict(
        "minimisation", f"{seconds:.2f} s", seconds <= STREAM_SECONDS, f"at most {STREAM_SECONDS:g}"
    )
    _verdict(
        "peak memory", f"{memory:.0f} MiB", memory < STREAM_MEBIBYTES,
        f"less than {STREAM_MEBIBYTES:g}",
    )  # fmt: skip
    return figures


def imports(options: argparse.Namespace) -> dict:
    """Median wall time of fresh interpreters, bare, with the library and at the command line."""
    commands = {
        "interpreter alone": ["-c", "pass"],
        "import numpy, scipy.linalg": ["-c", "import numpy, scipy.linalg"],
        "import pathkernel_core": ["-c", "import pathkernel_core"],
        "pathkernel --help": ["-m", "pathkernel", "--help"],
    }
    if importlib.util.find_spec("pathkernel.__main__") is None:
        del commands["pathkernel --help"]
        console.print("pathkernel cannot be run here; its start-up is left out")
    sides = {
        name: lambda arguments=arguments: subprocess.run(
            [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL
        )
        for name, arguments in commands.items()
    }
    seconds = alternate(sides, max(9, options.rounds))
    console.print("Start-up, warm")
    table = Table()
    table.add_column("command")
    table.add_column("median, ms", justify="right")
    for name, value in seconds.items():
        table.add_row(name, f"{1e3 * value:.0f}")
    console.print(table)
    return seconds


def _verdict(what: str, value: str, reached: bool, required: str) -> None:
    word = "[green]reached[/green]" if reached else "[red]missed[/red]"
    console.print(f"  {what}: {value}; required {required}: {word}")


PARTS = {
    "practice": practice,
    "gpytorch": gpytorch,
    "floor": floor,
    "spaces": spaces,
    "streaming": streaming,
    "imports": imports,
}


def main() -> None:
    """Run the parts asked for, print tables and store the figures under benchmarks/results/."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", default=[], help=", ".join(PARTS))
    add("--backend", choices=BACKENDS, default="numpy", help="array library of our side")
    add("--device", default="cpu", help="device of the torch backend: cpu or cuda")
    add("--seed", type=int, default=0, help="seed of the tasks")
    add("--problems", nargs="+", choices=("markov", "images"), default=("markov", "images"))
    add("--rounds", type=int, default=3, help="rounds of practice and streaming")
    add("--repeats", type=int, default=2, help="runs of our side before and after today's practice")
    add("--seconds", type=float, default=120.0, help="cap on today's practice, per width")
    add("--image-temperature", type=float, default=0.5, help="temperature of the image task")
    add("--image-heads", default="random", help="random, or a file of trained heads")
    add("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; choose from {list(PARTS)}")
    if not installed(options.backend):
        parser.error(f"{options.backend} cannot be used here")
    start = time.perf_counter()
    path = results_file("compare", [options.backend], options.device)
    with one_thread():
        for part in options.parts or PARTS:
            before = time.perf_counter()
            figures = PARTS[part](options)
            console.print(f"  [dim]{part}: {time.perf_counter() - before:.0f} s[/dim]\n")
            if not options.no_save:
                save(path, part, figures, record(options.backend, options.device))
    console.print(f"Total {time.perf_counter() - start:.0f} s")
    if not options.no_save:
        console.print(f"Figures in {path}")


if __name__ == "__main__":
    main()
