"""Array libraries to test on, data to test with, and one thread for everything."""

import asyncio
import collections
import ctypes
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import re
import sys
from pathlib import Path

os.environ.pop("COLUMNS", None)  # of a process of pytest-xdist: it would wrap what is printed
os.environ.setdefault("JAX_ENABLE_X64", "1")  # before JAX is imported anywhere
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# One thread as the commands have it: another number rounds differently. Tests compile far more than
# they compute: without passes over machine code, and with the compiler's older way to make kernels,
# that takes a half to a fifth of the time. (It reads flags up to the first word without dashes.)
# A flag that the installed compiler does not know would end the process without a word.
REFUSED: list[str] = []
if "PYTEST_XDIST_WORKER" not in os.environ:  # which has the accepted ones of the process above it
    from pathkernel.compiler_flags import accepted_flags, refusal

    os.environ["XLA_FLAGS"], REFUSED = accepted_flags(
        os.environ.get(
            "XLA_FLAGS",
            "--xla_cpu_multi_thread_eigen=false "
            "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
        )
    )

import hypothesis
import numpy as np
import pytest
import threadpoolctl
import zarr

collect_ignore = ["third_party"]  # a distribution of its own, see test_third_party_plugin.py

# Arrays of tests are small: one after another they take less time than by threads
zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})


async def _call_here(function, /, *arguments, **options):
    return function(*arguments, **options)


asyncio.to_thread = _call_here  # by which Zarr opens files: a quarter of a small study's time
# no test cuts the power, and disks may take seconds
os.sync = lambda: None

gc.set_threshold(200_000, 20, 50)  # what JAX traces is many small objects, seldom garbage

hypothesis.settings.register_profile(
    "pathkernel",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("pathkernel")

MODULES = {
    "numpy": "numpy",
    "jax": "jax",
    "torch": "torch",
    "array-api-strict": "array_api_strict",
    "cupy": "cupy",
}


def pytest_addoption(parser):
    parser.addoption(
        "--backend",
        action="append",
        choices=list(MODULES),
        help="array library to test; repeat for several. By default every one installed.",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "backend: depends on the array library")
    config.addinivalue_line(
        "markers",
        "slow_on_jax(parameter=values): JAX compiles the cases of these values for long, "
        "and other cases show the same of it; slow there, not on other libraries",
    )
    for name in config.getoption("--backend") or ():
        if not _usable(name):
            raise pytest.UsageError(f"--backend {name}: {name} is not installed or has no device")


def pytest_report_header():
    """Versions that decide what a run shows, and flags of the compiler that it goes without."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("numpy", "scipy", "xarray", "zarr", "jax", "arviz-stats", "torch", "transformers"):
        if importlib.util.find_spec(name.replace("-", "_")):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return [", ".join(versions), *([refusal(REFUSED)] if REFUSED else [])]


def pytest_generate_tests(metafunc):
    chosen = metafunc.config.getoption("--backend") or [name for name in MODULES if _usable(name)]
    if "library" in metafunc.fixturenames:
        metafunc.parametrize("library", chosen, indirect=True, scope="session")
    if "derivative" in metafunc.fixturenames:
        able = [name for name in chosen if name in ("numpy", "jax", "torch")]
        metafunc.parametrize("derivative", able, indirect=True, scope="session")


def pytest_collection_modifyitems(items):
    for item in items:
        if _needs_torch(item):
            item.add_marker(pytest.mark.torch)
        if {"library", "derivative"} & set(item.fixturenames):
            item.add_marker(pytest.mark.backend)
        if any(_is_slow_on_jax(item, marker.kwargs) for marker in item.iter_markers("slow_on_jax")):
            item.add_marker(pytest.mark.slow)


def _needs_torch(item):
    """Whether a test skips without PyTorch: by its parameters, its module or its own source."""
    if not isinstance(item, pytest.Function):
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return (
        "torch" in map(str, parameters.values())
        or _asks_for_torch(item.module, "")
        or _asks_for_torch(item.function, r"\s+")
    )


@functools.cache
def _asks_for_torch(part, indented):
    asking = rf"^{indented}[^#\s][^#\n]*importorskip\(\"torch\""
    return re.search(asking, inspect.getsource(part), flags=re.MULTILINE) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A session without PyTorch leaves out what has the marker; what skips has to have it."""
    report = yield
    # a test that fails as expected counts as skipped, too, without a place and a reason
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and "torch" in reason and not item.get_closest_marker("torch"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skips without PyTorch: give it the marker torch"
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """List what was skipped, and why, a line for each reason."""
    files = collections.defaultdict(collections.Counter)
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        files[reason.removeprefix("Skipped: ")][report.nodeid.partition("::")[0]] += 1
    if files:
        terminalreporter.section("skipped, and why")
    for reason, counts in sorted(files.items()):
        places = ", ".join(f"{file} ({count})" for file, count in sorted(counts.items()))
        terminalreporter.line(f"{reason}: {places}")


def _is_slow_on_jax(item, values_of):
    parameters = item.callspec.params
    if unknown := set(values_of) - set(parameters):
        raise pytest.UsageError(f"{item.nodeid}: slow_on_jax names {', '.join(unknown)}")
    on_jax = "jax" in [parameters.get(name) for name in ("library", "derivative", "xp")]
    return on_jax and all(parameters[name] in values for name, values in values_of.items())


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    """Run the command line in an empty folder → (exit status, stdout, stderr)."""
    from pathkernel.main import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def are_documented():
    """Function that says of tables, as ``--json`` prints them, whether docs/scripts.md has them."""
    text = (Path(__file__).parents[1] / "docs" / "scripts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`[^|]* \| (.*) \|$", text, flags=re.MULTILINE)
    documented = {row[:2]: set(re.findall(r"`(\w+)`", row[2])) for row in rows}
    measures = "accuracy|r_squared|mean_squared_error|log_predictive_density"

    def listed(table):
        known = documented[table["part"], table["name"]]
        names = [column["name"] for column in table["columns"]]
        assert all(list(row) == names for row in table["rows"])
        words = (re.sub(r"(?<=^removed_)\d+", "N", name) for name in names)
        unknown = {name for name in words if name not in known}
        return {re.sub(f"^({measures})", "MEASURE", name) for name in unknown} <= known

    return lambda tables: len(tables) > 0 and all(map(listed, tables))


@functools.cache
def _usable(name):
    if importlib.util.find_spec(MODULES[name]) is None:
        return False
    if name == "cupy":
        import cupy

        try:
            return cupy.cuda.runtime.getDeviceCount() > 0
        except cupy.cuda.runtime.CUDARuntimeError:
            return False
    return True


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small matrices on a busy machine: more threads only wait for one another."""
    if importlib.util.find_spec("torch"):
        import torch  # here, where the process that hands out the tests does not come by

        torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        yield


_LARGE = 600e6  # bytes of a process, above which compiled functions go


@pytest.fixture(scope="module", autouse=True)
def compiled_functions_go():
    """JAX holds what it has compiled, which only tests of one module share: gigabytes in all."""
    yield
    jax = sys.modules.get("jax")
    if jax is not None and _resident_bytes() > _LARGE:
        jax.clear_caches()
        gc.collect()
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)  # which hands freed pages back


def _resident_bytes():
    """Memory of this process, 0 where Linux does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Library:
    """An array library: how to put NumPy values into it, and back."""

    def __init__(self, name):
        self.name = name
        module = "jax.numpy" if name == "jax" else MODULES[name]
        self.xp = importlib.import_module(module)

        # What a GPU would refuse, a device that is not the default one refuses: values that go to
        # NumPy unasked, and arrays that were made without a device beside those that have one.
        self.placed = {}
        if name == "array-api-strict":
            self.placed = {"device": self.xp.Device("device1")}

    def array(self, values, dtype="float64"):
        return self.xp.asarray(np.array(values), dtype=getattr(self.xp, dtype), **self.placed)

    def numpy(self, array):
        assert self.owns(array), f"{type(array)} is no array of {self.name}"
        if self.name == "array-api-strict":
            assert array.device == self.placed["device"]
            return np.asarray(array.to_device(self.xp.Device("CPU_DEVICE")))
        return array.get() if self.name == "cupy" else np.asarray(array)

    def owns(self, array):
        return (
            type(array).__module__.split(".")[0] == type(self.array(0.0)).__module__.split(".")[0]
        )


@pytest.fixture(scope="session")
def library(request):
    return Library(request.param)


class Derivative:
    """Derivatives of a function written for NumPy, JAX and PyTorch alike.

    JAX and PyTorch differentiate automatically. On NumPy the complex step does: the imaginary part
    of f(x + ih) / h has no cancellation, so that it is as exact.
    """

    def __init__(self, name):
        self.name = name

    def __call__(self, function, values):
        """Gradients of function(xp, arrays) with respect to each of the arrays."""
        values = [np.asarray(value, dtype=float) for value in values]
        return getattr(self, f"_{self.name}")(function, values)

    def _numpy(self, function, values):
        gradients = [np.zeros_like(value) for value in values]
        for which, value in enumerate(values):
            for index in np.ndindex(value.shape):
                moved = [array.astype(complex) for array in values]
                moved[which][index] += 1e-30j
                gradients[which][index] = function(np, moved).imag / 1e-30
        return gradients

    def _torch(self, function, values):
        import torch

        arrays = [torch.tensor(value, requires_grad=True) for value in values]
        function(torch, arrays).backward()
        return [array.grad.numpy() for array in arrays]

    def _jax(self, function, values):
        import jax

        gradient = jax.jit(jax.grad(lambda arrays: function(jax.numpy, arrays)))
        gradients = gradient([jax.numpy.asarray(value) for value in values])
        return [np.asarray(gradient) for gradient in gradients]


@pytest.fixture(scope="session")
def derivative(request):
    return Derivative(request.param)


@pytest.fixture(scope="session")
def markov():
    """The hidden Markov task at 100 examples, as (attentioned inputs, labels) in NumPy."""
    from pathkernel_core import attentioned_inputs
    from pathkernel_tasks.hidden_markov import HiddenMarkov

    realisation = HiddenMarkov(examples=100, test_examples=2).realise(0)
    train = realisation.train
    return attentioned_inputs(train.inputs, realisation.layers, realisation.readout), train.labels
