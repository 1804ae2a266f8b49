"""``import pathkernel``: the core and studies by one name, loaded when they are used."""

import importlib.metadata
import subprocess
import sys

import pytest

import pathkernel
import pathkernel_core
from pathkernel_datasets.study import Study

pytestmark = pytest.mark.version


def python(program):
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_importing_it_loads_nothing_else():
    heavy = (
        "numpy",
        "scipy",
        "xarray",
        "zarr",
        "pandas",
        "altair",
        "click",
        "jax",
        "pathkernel_core",
    )
    loaded = f"print([name for name in {heavy!r} if name in sys.modules])"
    assert python(f"import sys, pathkernel; {loaded}") == "[]"
    assert "xarray" not in python(f"import sys, pathkernel; pathkernel.Network; {loaded}")


def test_it_has_the_names_of_the_core_and_of_studies():
    assert pathkernel.Network is pathkernel_core.Network
    assert pathkernel.Study is Study
    for name in dir(pathkernel):
        assert getattr(pathkernel, name) is not None
    assert set(pathkernel_core.__all__) <= set(dir(pathkernel))


def test_version():
    assert pathkernel.__version__ == importlib.metadata.version("pathkernel")


def test_unknown_names_are_named():
    with pytest.raises(
        AttributeError, match=r"no attribute 'minimize_action'\. Did you mean: 'minimise"
    ):
        _ = pathkernel.minimize_action
