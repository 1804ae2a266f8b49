"""Five theories by one engine, beside the formulas or the code of their papers.

    python -m benchmarks.engine                        # the table, three minutes
    python -m benchmarks.engine --figures docs/images  # also the figures, one more

Convolution is compared with deepbays, its authors' code, too, if that is installed, on the digits 4
and 9 of MNIST from the folder PATHKERNEL_DATA. Both sides get the same arrays. Times are CPU
seconds on one thread, from data to order parameters; ours are on warm code. A difference is the
largest over all entries and widths. Values are those of the entry with the largest magnitude.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

import pathkernel as pk
from benchmarks.engine import sources
from benchmarks.engine.data import (
    DEPTHS,
    NARROW,
    VARIANCES,
    WIDTHS,
    Branches,
    Convolution,
    DeepLinear,
    Gated,
)
from benchmarks.measuring import one_thread, timed

HEADING = ("theory", "quantity", "ours", "source", "difference", "seconds", "source, seconds")
CHANNELS = (5, 20, 100)


@dataclass(frozen=True)
class Comparison:
    """A quantity by the engine and by its source, with the CPU seconds of both."""

    theory: str
    quantity: str
    ours: np.ndarray = field(repr=False)
    source: np.ndarray = field(repr=False)
    seconds: float = math.nan
    source_seconds: float = math.nan

    @property
    def cells(self) -> list[str]:
        """Cells of a row of the table."""
        ours, source = np.ravel(self.ours), np.ravel(self.source)
        largest = np.argmax(np.abs(ours))
        values = [f"{side[largest]:.6g}" for side in (ours, source)]
        times = ["" if math.isnan(s) else f"{s:.2g}" for s in (self.seconds, self.source_seconds)]
        return [self.theory, self.quantity, *values, f"{abs(ours - source).max():.0e}", *times]


def compare(theory: str, quantity: str, ours: Callable, source: Callable) -> Comparison:
    """Call both sides by the clock, ours a second time."""
    ours()
    seconds, values = timed(ours, time.process_time)
    source_seconds, source_values = timed(source, time.process_time)
    return Comparison(theory, quantity, values, source_values, seconds, source_seconds)


def attention_paths() -> Iterator[Comparison]:
    """Action of the hidden Markov task, and that of Adam through automatic differentiation."""
    from benchmarks.core import problems, todays_practice

    task = problems.markov()

    def ours(width: float) -> float:
        problem = pk.Problem(task.xi, task.labels)
        return pk.minimise_action(problem, pk.Network(task.heads, width), task.temperature).action

    def today(width: float) -> float:
        arguments = task.xi, task.labels, task.heads, width, task.temperature
        rule = {"learning_rate": task.learning_rate, "tolerance": 1e-5, "max_steps": task.max_steps}
        return todays_practice.minimise(*arguments, **rule).action

    for width in (10, 100):
        name = f"S/N, hidden Markov, N = {width}, Adam"
        yield compare("attention paths", name, partial(ours, width), partial(today, width))


def convolution() -> Iterator[Comparison]:
    """Order parameters and predictions of a convolutional layer of error functions."""
    code = sources.deepbays_convolution()
    if code is None:
        print(sources.INSTALL, file=sys.stderr)
    for data, channels in (
        (Convolution.drawn(200, side=14), CHANNELS),
        (Convolution.drawn(100, side=7), (20,)),
    ):
        for count in channels:
            name = f"U, {data.n_patches} patches of {data.origin}, N_c = {count}"
            ours = partial(data.order_parameters, (count,))
            yield compare("convolution", f"{name}, PyTorch", ours, partial(data.direct, (count,)))
            if code is not None:
                source = partial(_optimum, data, count)
                yield compare("convolution", f"{name}, deepbays", ours, source)
    if code is not None:
        data = Convolution.drawn(200, side=14)
        (solution,), theory = data.solutions((20,)), data.deepbays(20)
        ours, source = partial(data.moments, solution), partial(data.deepbays_moments, theory)
        yield compare("convolution", "predictions of 200 images, deepbays", ours, source)


def _optimum(data: Convolution, channels: float) -> np.ndarray:
    return data.deepbays(channels).optQ


def gated() -> Iterator[Comparison]:
    """Order parameters of gated deep linear networks of one and two layers."""
    for data in (Gated.drawn(10), Gated.drawn(4, layers=2)):
        name = f"U, L = {data.layers}, {len(data.hyperplanes)} gates, {len(WIDTHS)} widths, PyTorch"
        ours, source = partial(data.order_parameters, WIDTHS), partial(data.source, WIDTHS)
        yield compare("gated linear network", name, ours, source)


def deep_linear() -> Iterator[Comparison]:
    """Scalar renormalisation at several depths and widths."""
    data = DeepLinear.drawn()
    for depth in DEPTHS:
        name = f"u, L = {depth}, {len(WIDTHS)} widths, closed form"
        ours, source = partial(data.scalars, depth, WIDTHS), partial(data.source, depth, WIDTHS)
        yield compare("deep linear network", name, ours, source)


def branches() -> Iterator[Comparison]:
    """Order parameters of independent branches, equipartition, and their teacher's."""
    data = Branches.drawn()
    for variance in VARIANCES:
        name = f"u, σ² = {variance:g}, {len(NARROW)} widths, SciPy"
        ours = partial(data.order_parameters, variance, NARROW)
        yield compare("branches", name, ours, partial(data.source, variance, NARROW))
    narrow = [data.order_parameters(variance, NARROW[:1])[0] for variance in VARIANCES]
    at = f"N = {NARROW[0]:g}"
    for variance, u in zip(VARIANCES, narrow):
        traces, readouts = data.readouts(u)
        name = f"r_l/Tr_l, {at}, σ² = {variance:g}, equipartition"
        yield Comparison("branches", name, readouts / traces, np.ones_like(u))
    yield Comparison("branches", f"u at {at}, both σ²", *narrow)
    yield Comparison("branches", f"u at {at}, teacher", narrow[0], data.teacher)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figures", metavar="DIR", help="folder to which figures are written")
    options = parser.parse_args()
    with one_thread():
        print(f"One engine, five papers: {', '.join(HEADING)}")
        for theory in (attention_paths, convolution, gated, deep_linear, branches):
            for comparison in theory():
                print(f"| {' | '.join(comparison.cells)} |", flush=True)
        if options.figures:
            from benchmarks.engine.figures import save_figures

            save_figures(options.figures)


if __name__ == "__main__":
    main()
