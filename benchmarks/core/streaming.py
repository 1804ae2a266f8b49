"""Time and memory of a problem whose examples are never all in memory.

``python -m benchmarks.core.streaming`` sums the statistics of 200,000 examples (D = 1024 features),
and minimises to a gradient of 1e-8: in at most 10 s and less than 1 GiB.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import pathkernel_core as pk
from benchmarks.core.problems import Stream
from benchmarks.measuring import BACKENDS, one_thread, timed


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", type=int, default=Stream.examples)
    parser.add_argument("--backend", choices=BACKENDS, default="numpy")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    stream = Stream(options.examples)
    # CPU seconds of one core, or wall seconds where the processor waits for a GPU
    on_cpu = options.device == "cpu" and options.backend != "cupy"
    clock = time.process_time if on_cpu else time.perf_counter
    with one_thread():
        sums, statistics = timed(lambda: stream.statistics(options.backend, options.device), clock)
        problem = pk.Problem.from_statistics(statistics)
        network = pk.Network(stream.heads, stream.width)
        seconds, solution = timed(
            lambda: pk.minimise_action(problem, network, stream.temperature, tolerance=1e-8), clock
        )
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes or kilobytes in a MiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(
        f"{stream.examples:,} examples, D = {problem.n_paths * problem.n_features:,}: drawn and "
        f"summed in {sums:.1f} s, minimised in {seconds:.2f} s and {solution.evaluations} "
        f"evaluations to a gradient of {solution.gradient_norm:.0e}; peak memory {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()
