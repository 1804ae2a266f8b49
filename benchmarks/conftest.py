"""Options and fixtures of the benchmarks that pytest-benchmark runs."""

import pytest

from benchmarks.measuring import BACKENDS, device_name, installed, one_thread, results_file


def pytest_addoption(parser):
    group = parser.getgroup("pathkernel benchmarks")
    group.addoption(
        "--backend",
        action="append",
        choices=BACKENDS,
        help="array library, may be repeated; by default every one that is installed",
    )
    group.addoption("--array-device", default="cpu", help="device of torch arrays: cpu or cuda")
    group.addoption(
        "--save-results",
        action="store_true",
        help="write JSON under benchmarks/results/, named after the device and the date",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("--save-results") and config.getoption("benchmark_json") is None:
        path = results_file("timings", _backends(config), config.getoption("--array-device"))
        path.parent.mkdir(parents=True, exist_ok=True)
        config.option.benchmark_json = str(path)


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _backends(metafunc.config))


def pytest_benchmark_update_machine_info(config, machine_info):
    device = config.getoption("--array-device")
    machine_info["devices"] = {name: device_name(name, device) for name in _backends(config)}
    machine_info["node"] = ""  # whose machine it was is nobody's business


@pytest.fixture(autouse=True)
def _pinned():
    with one_thread():
        yield


@pytest.fixture
def array_device(request):
    return request.config.getoption("--array-device")


def _backends(config):
    chosen = config.getoption("--backend")
    return chosen or [name for name in BACKENDS if installed(name)]
