"""Clocks, threads, array libraries and the record of the machine, shared by all benchmarks."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

RESULTS = Path(__file__).parent / "results"
BACKENDS = ("numpy", "torch", "jax", "cupy")
_VERSIONS = ("numpy", "scipy", "torch", "jax", "jaxlib", "cupy", "array-api-compat")


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


def record(backend: str, device: str) -> dict:
    """Machine, versions and date of a measurement."""
    versions = {"python": platform.python_version()}
    for package in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "device": device_name(backend, device),
        "processor": device_name("numpy"),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "threads": 1,
        "backend": backend,
        "versions": versions,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def results_file(kind: str, backends: Sequence[str], device: str = "cpu") -> Path:
    """Path of a results file: <kind>-<device>-<backends>-<date>.json."""
    parts = (kind, device_name(backends[-1], device), *backends)
    slug = "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    return RESULTS / f"{slug}-{datetime.date.today().isoformat()}.json"


def save(path: Path, part: str, figures: dict, machine: dict) -> None:
    """Write one part of a comparison, keeping the other parts that were measured that day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[part] = {**figures, "machine": machine}
    path.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
