"""Fits the rates of the cost model to measured times, or sets minimisations beside the model.

    python -m benchmarks.core.costs
    python -m benchmarks.core.costs --heads 32,32 --examples 600 --inputs 64 --widths 1000,100

The first prints the times of single evaluations beside what the model says, and last the rates, to
be put into ``pathkernel_core.energy.costs.RATES``; the second minimises the action of a random
problem and prints time, memory and evaluations beside the model's. CPU seconds, so that other work
on the machine matters less.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

import pathkernel_core as pk
from benchmarks.measuring import cpu_seconds, one_thread
from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_core.energy import costs

SHAPES = {
    "examples": [
        (30, 2, 10), (100, 4, 231), (100, 16, 115), (100, 16, 16), (300, 4, 64), (600, 4, 64),
        (300, 16, 64), (600, 16, 115), (1000, 4, 20), (200, 64, 64), (200, 144, 32), (100, 256, 16),
        (300, 512, 16), (200, 1024, 8), (2000, 2, 10),
    ],
    "features": [(2, 10), (4, 16), (4, 64), (16, 16), (16, 64), (64, 8), (2, 400), (256, 2)],
    "kernels": [
        (30, 2, 10), (100, 2, 20), (100, 4, 20), (60, 16, 10), (300, 4, 10), (300, 8, 10),
        (600, 4, 10), (300, 16, 5), (600, 8, 5), (1000, 2, 5), (600, 2, 5), (100, 32, 5),
    ],
    "kernels together": [  # with their number of points
        (300, 16, 5, 3), (300, 16, 5, 10), (600, 8, 5, 4), (600, 8, 5, 30), (100, 32, 5, 10),
        (600, 12, 5, 4), (600, 12, 5, 10), (1000, 4, 5, 10),
    ],
    "examples of classes": [  # with their number
        (100, 4, 20, 3), (300, 4, 20, 3), (300, 16, 100, 2), (100, 16, 50, 10), (200, 4, 200, 5),
        (600, 4, 20, 2), (60, 4, 10, 10), (1000, 2, 50, 1), (30, 2, 10, 3),
    ],
    "features of classes": [
        (300, 2, 10, 3), (1000, 4, 10, 3), (2000, 4, 20, 2), (500, 4, 5, 10), (5000, 2, 5, 10),
        (3000, 4, 100, 1), (100, 2, 5, 3),
    ],
    "kernels of classes": [
        (100, 4, 5, 3), (300, 4, 5, 3), (300, 16, 5, 2), (100, 16, 5, 10), (600, 4, 5, 2),
        (60, 4, 5, 10), (1000, 2, 5, 1), (30, 2, 5, 3),
    ],
    "blocks of classes": [
        (100, 4, 20, 3), (300, 4, 20, 3), (100, 16, 50, 10), (200, 4, 200, 5), (500, 4, 20, 10),
        (600, 4, 20, 2), (60, 4, 10, 10), (1000, 2, 50, 3), (30, 2, 10, 3), (30, 2, 10, 30),
    ],
    "chain": [(2,), (4,), (16,), (64,), (144,), (256,), (512,), (1024,)],
}  # fmt: skip

_CLASSES = " of classes"
console = Console(width=120, highlight=False)


def evaluation(form: str, shape: tuple[int, ...]) -> tuple[costs.Sizes, Callable]:
    """Sizes of a random problem, and a call that evaluates its energy, or the chain's part."""
    generator = np.random.default_rng(0)
    paths = shape[1] if len(shape) > 2 else shape[0]
    factor = np.eye(paths) + np.tril(generator.standard_normal((paths, paths))) / (10 + paths)
    if form == "chain":
        chain = ChainCoordinates(pk.Network((paths // 2, 2), 100))
        x = 0.1 / paths * generator.standard_normal(chain.gp_limit.shape)
        slope = factor + factor.T

        def host() -> None:
            relative = chain.relative_factors(x)
            factors = chain.factors(relative)
            chain.entropy(x)
            chain.gradient(x, relative, factors, slope)
            chain.largest_slope(x, relative, factors, slope)

        return costs.Sizes(1, paths, 1), host
    if form == "kernels together":
        return _together(shape, factor)
    if form.endswith(_CLASSES):
        return _of_classes(form.removesuffix(_CLASSES), shape)
    if form == "features":
        shape = (2 * shape[0] * shape[1], *shape)
    xi, labels = generator.standard_normal(shape), generator.standard_normal(shape[0])
    problem = pk.Problem(xi, labels, form)
    return costs.Sizes(*shape), lambda: problem.form.energy_and_gradient(factor, 0.1)


def _together(shape: tuple[int, ...], factor: np.ndarray) -> tuple[costs.Sizes, Callable]:
    *shape, points = shape
    generator = np.random.default_rng(0)
    xi, labels = generator.standard_normal(shape), generator.standard_normal(shape[0])
    form = pk.Problem(xi, labels, "kernels").form
    arguments = [factor] * points, [0.1] * points, [None] * points
    return costs.Sizes(*shape), lambda: form.energies_and_gradients(*arguments)


def _of_classes(form: str, shape: tuple[int, ...]) -> tuple[costs.Sizes, Callable]:
    """An evaluation near the last one, as those of a descent are."""
    examples, paths, inputs, outputs = shape
    generator = np.random.default_rng(0)
    xi = generator.standard_normal((examples, paths, inputs))
    classes = generator.integers(outputs, size=examples)
    rows = np.sign(xi[:, 0, 0]) if outputs == 1 else np.eye(outputs)[classes]
    likelihood = "logistic" if outputs == 1 else "softmax"
    if form == "kernels":
        kernels = np.einsum("api,bqi->pqab", xi, xi) / inputs
        problem = pk.Problem.from_kernels(kernels, rows, likelihood=likelihood)
    else:
        space = "examples" if form == "blocks" else form
        problem = pk.Problem(xi, rows, space, likelihood=likelihood)
    if form == "blocks":  # of the limit, which starts from outputs of 0
        limit, sizes = np.eye(paths * outputs), costs.Sizes(*shape, classes=True)
        return sizes, lambda: problem.form.evaluate_energy(limit, math.nan)
    warm, size = problem.form.for_descent(), paths * outputs
    change = np.tril(generator.standard_normal((size, size))) / (10 + size)
    factors = itertools.cycle([np.eye(size) + change, np.eye(size) + 1.1 * change])
    sizes = costs.Sizes(*shape, classes=True)
    return sizes, lambda: warm.energy_and_gradient(next(factors), math.nan)


def fitted(form: str) -> tuple[float, ...]:
    """Rates of a form, from relative errors of the times of its shapes."""
    counts, measured, together = [], [], f"{form} together"
    shapes = [(form, shape) for shape in SHAPES[form]]
    shapes += [(together, shape) for shape in SHAPES.get(together, ())]
    for kind, shape in shapes:
        sizes, call = evaluation(kind, shape)
        points = 1 if kind == form else shape[-1]
        counts.append(costs.operations(form.removesuffix(_CLASSES), sizes, points))
        measured.append(cpu_seconds(call) / points)
    weighted = np.array(counts) / np.array(measured)[:, None]
    scale = weighted.max(axis=0)
    rates = nnls(weighted / scale, np.ones(len(measured)))[0] / scale
    table = Table(title=f"{form}: one evaluation, or one of so many points together")
    for heading in ("shape", "measured, ms", "model, ms", "ratio"):
        table.add_column(heading, justify="right")
    for (_, shape), seconds, row in zip(shapes, measured, counts):
        model = float(np.dot(rates, row))
        table.add_row(
            " × ".join(map(str, shape)), f"{1e3 * seconds:.3f}", f"{1e3 * model:.3f}",
            f"{model / seconds:.2f}",
        )  # fmt: skip
    console.print(table)
    return tuple(float(f"{rate:.2g}") for rate in rates)


def minimise(heads: Sequence[int], examples: int, inputs: int, widths: Sequence[float]) -> None:
    """Minimise the action of noisy labels that three of the paths tell, at every width."""
    generator = np.random.default_rng(0)
    sizes = costs.Sizes(examples, math.prod(heads), inputs)
    xi = generator.standard_normal((examples, sizes.paths, inputs))
    signal = np.tensordot(xi[:, :3], generator.standard_normal((3, inputs))[: sizes.paths], axes=2)
    labels = np.sign(signal + 0.5 * generator.standard_normal(examples))
    problem = pk.Problem(xi, labels)
    data = xi.nbytes
    del xi
    table = Table(title=f"{sizes.paths} paths, {problem.space}: measured, and the model's")
    for heading in ("N", "evaluations", "model", "CPU s", "model", "wall s", "peak GiB", "model"):
        table.add_column(heading, justify="right")
    for width in widths:
        cpu, wall = time.process_time(), time.perf_counter()
        solution = pk.minimise_action(problem, pk.Network(heads, width), 0.1)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        table.add_row(
            f"{width:g}", f"{solution.evaluations}", f"{costs.evaluations(sizes, width):.0f}",
            f"{cpu:.1f}", f"{costs.minimisation_seconds(sizes, width):.1f}", f"{wall:.1f}",
            f"{peak / 2**30:.2f}", f"{(data + costs.minimisation_bytes(sizes, width)) / 2**30:.2f}",
        )  # fmt: skip
    console.print(table)


def numbers(text: str) -> tuple[int, ...]:
    """Integers between commas."""
    return tuple(map(int, text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--heads", type=numbers, help="of every layer, to minimise with instead of fitting")
    add("--examples", type=int, default=600)
    add("--inputs", type=int, default=64, help="input width")
    add("--widths", type=numbers, default=(1000, 100))
    add("--threads", type=int, default=1, help="of the linear algebra, while it minimises")
    options = parser.parse_args()
    if options.heads:
        with threadpool_limits(options.threads):
            minimise(options.heads, options.examples, options.inputs, options.widths)
        return
    with one_thread():
        rates = {form: fitted(form) for form in costs.RATES}
    console.print("RATES = {")
    for form, values in rates.items():
        console.print(f'    "{form}": {values},')
    console.print("}")


if __name__ == "__main__":
    main()
