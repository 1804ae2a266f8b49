"""Time and memory of a problem whose examples are never all in memory.

``python -m benchmarks.streaming`` prints one line of JSON; it is a process of its own because its
peak memory is what is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path

import pathkernel_core as pk
from benchmarks.measuring import one_thread, timed, to_library
from benchmarks.problems import Stream


def measure(stream: Stream, backend: str, device: str, tolerance: float) -> dict:
    """Sum the statistics of a stream, minimise, and report seconds and peak memory."""

    def summed() -> pk.SufficientStatistics:
        total = None
        for xi, labels in stream.batches():
            part = pk.SufficientStatistics.of(
                to_library(xi, backend, device), to_library(labels, backend, device)
            )
            total = part if total is None else total + part
        return total

    with one_thread():
        seconds_of_sums, statistics = timed(summed)
        problem = pk.PathKernels.from_statistics(statistics)
        network = pk.Network(stream.heads, stream.width)
        seconds, solution = timed(
            lambda: pk.minimise_action(problem, network, stream.temperature, tolerance=tolerance)
        )
    return {
        "examples": stream.examples,
        "features": problem.n_paths * problem.n_features,
        "seconds_of_sums": seconds_of_sums,
        "seconds": seconds,
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
    options = parser.parse_args()
    stream = Stream(examples=options.examples)
    print(json.dumps(measure(stream, options.backend, options.device, options.tolerance)))


if __name__ == "__main__":
    main()
