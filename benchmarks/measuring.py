"""Clocks, threads and array libraries, shared by all benchmarks."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

BACKENDS = ("numpy", "torch", "jax", "cupy")


@contextlib.contextmanager
def one_thread():
    """Pin every BLAS, OpenMP and PyTorch to one thread, those already loaded included."""
    with threadpool_limits(1):
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        yield


def timed(
    function: Callable, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, object]:
    """Seconds of one call by a clock, by default on the wall, and what it returned."""
    start = clock()
    result = function()
    return clock() - start, result


def cpu_seconds(function: Callable, at_least: float = 0.3) -> float:
    """Median CPU seconds of a call, over calls that take some time together."""
    function()
    seconds: list[float] = []
    while sum(seconds) < at_least or len(seconds) < 3:
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def alternate(sides: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Median wall seconds of each side, called in turn; one warm-up call each is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for function in sides.values():
        function()
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in order:
            seconds[name].append(timed(sides[name])[0])
    return {name: statistics.median(values) for name, values in seconds.items()}


def installed(backend: str) -> bool:
    """Whether the array library can be used here; CuPy needs a device too."""
    if importlib.util.find_spec(backend) is None:
        return False
    if backend == "cupy":
        try:
            return importlib.import_module("cupy").cuda.runtime.getDeviceCount() > 0
        except Exception:  # no driver: CuPy raises an error of its own
            return False
    return True


def to_library(array: np.ndarray, backend: str, device: str = "cpu"):
    """The array in another library, on ``device`` ("cpu" or "cuda") where there is a choice."""
    if backend == "numpy":
        return array
    if backend == "torch":
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        return torch.asarray(array, device=device)
    if backend == "jax":
        return importlib.import_module("jax.numpy").asarray(array)
    return importlib.import_module("cupy").asarray(array)


def device_name(backend: str, device: str = "cpu") -> str:
    """Name of the processor or accelerator that the arrays of ``backend`` live on."""
    if backend == "cupy":
        cupy = importlib.import_module("cupy")
        return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    if backend == "torch" and device != "cpu":
        return importlib.import_module("torch").cuda.get_device_name(device)
    if backend == "jax":
        first = importlib.import_module("jax").devices()[0]
        if first.platform != "cpu":
            return first.device_kind
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"


def some_factor(paths: int) -> np.ndarray:
    """A factor of U near the identity, (n, n)."""
    generator = np.random.default_rng(0)
    return np.eye(paths) + 0.1 * np.tril(generator.standard_normal((paths, paths)))


def content(folder: Path) -> dict[Path, bytes]:
    """All files below a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder): file.read_bytes() for file in files}
