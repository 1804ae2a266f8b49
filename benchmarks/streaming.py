"""Time and memory of a problem whose examples are never all in memory.

``python -m benchmarks.streaming`` prints one line of JSON; it is a process of its own because its
peak memory is what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import pathkernel_core as pk
from benchmarks.measuring import one_thread, timed, to_library
from benchmarks.problems import Stream
from pathkernel_core.backend import array_namespace, to_host

_ON_PROCESSOR = {("numpy", "cpu"), ("torch", "cpu")}
_PRODUCT_EVERY = 20  # batches


def measure(stream: Stream, backend: str, device: str, tolerance: float) -> dict:
    """Sum the statistics of a stream, minimise, and report seconds, rates and peak memory.

    Seconds are the processor's, or the clock's on a GPU. Both rates count 2 P D² operations: of the
    sums, without making the examples, and of general products of matrices of the same shapes in
    between.
    """
    clock = time.process_time if (backend, device) in _ON_PROCESSOR else time.perf_counter
    seconds = {"sums": 0.0, "products": 0.0}
    rows = {"sums": 0, "products": 0}

    @contextlib.contextmanager
    def counted(what: str, examples: int) -> Iterator[None]:
        start = clock()
        yield
        seconds[what] += clock() - start
        rows[what] += examples

    def summed() -> pk.SufficientStatistics:
        total = None
        for number, batch in enumerate(stream.batches()):
            xi, labels = (to_library(array, backend, device) for array in batch)
            with counted("sums", xi.shape[0]):
                part = pk.SufficientStatistics.of(xi, labels)
                total = part if total is None else total + part
            if number % _PRODUCT_EVERY == 0:
                xp = array_namespace(xi=xi)
                flat = xp.reshape(xi, (xi.shape[0], -1))
                other = to_library(np.ascontiguousarray(to_host(flat).T), backend, device)
                with counted("products", xi.shape[0]):
                    float(xp.matmul(other, flat)[0, 0])  # which waits for a GPU
        return total

    with one_thread():
        seconds_of_sums, statistics = timed(summed)
        operations = 2 * (statistics.gram.shape[0] * statistics.gram.shape[1]) ** 2
        rates = {what: operations * rows[what] / seconds[what] / 1e9 for what in seconds}
        problem = pk.PathKernels.from_statistics(statistics)
        network = pk.Network(stream.heads, stream.width)
        start = clock()
        solution = pk.minimise_action(problem, network, stream.temperature, tolerance=tolerance)
        seconds_of_minimum = clock() - start
    return {
        "examples": stream.examples,
        "features": problem.n_paths * problem.n_features,
        "seconds_of_sums": seconds_of_sums,
        "gigaflops_of_sums": rates["sums"],
        "gigaflops_of_products": rates["products"],
        "seconds": seconds_of_minimum,
        "evaluations": solution.evaluations,
        "gradient_norm": solution.gradient_norm,
        "action": solution.action,
        "peak_mebibytes": peak_memory() / 2**20,
    }


def peak_memory() -> float:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the process that started this one
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=Stream.examples)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tolerance", type=float, default=1e-8)
    parser.add_argument("--heads", type=int, nargs="+", default=Stream.heads, help="of each layer")
    parser.add_argument("--inputs", type=int, default=Stream.inputs, help="N_0")
    parser.add_argument("--batch", type=int, default=Stream.batch)
    options = parser.parse_args()
    stream = Stream(options.examples, options.batch, tuple(options.heads), options.inputs)
    print(json.dumps(measure(stream, options.backend, options.device, options.tolerance)))


if __name__ == "__main__":
    main()
