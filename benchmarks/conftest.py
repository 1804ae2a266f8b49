"""Options and fixtures of the benchmarks that pytest-benchmark runs."""

import pytest

from benchmarks.measuring import BACKENDS, device_name, installed, one_thread


def pytest_addoption(parser):
    group = parser.getgroup("pathkernel benchmarks")
    group.addoption(
        "--backend",
        action="append",
        choices=BACKENDS,
        help="array library, may be repeated; by default every one that is installed",
    )
    group.addoption("--array-device", default="cpu", help="device of torch arrays: cpu or cuda")


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _backends(metafunc.config))


def pytest_benchmark_update_machine_info(config, machine_info):
    device = config.getoption("--array-device")
    machine_info["devices"] = {name: device_name(name, device) for name in _backends(config)}
    machine_info["node"] = ""  # the name of the machine stays private


@pytest.fixture(autouse=True)
def _pinned():
    with one_thread():
        yield


@pytest.fixture
def array_device(request):
    return request.config.getoption("--array-device")


def _backends(config):
    return config.getoption("--backend") or [name for name in BACKENDS if installed(name)]
