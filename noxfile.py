"""Every check of the project: ``pip install nox && nox``."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = False

PYTHONS = ("3.11", "3.12", "3.13")
_running = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = _running if _running in PYTHONS else PYTHONS[0]  # of sessions that need only one
WORKERS = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile")  # a process per core
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

PROJECT = nox.project.load_toml("pyproject.toml")
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def _gpu():
    command = shutil.which("nvidia-smi")
    return bool(command) and subprocess.run([command, "-L"], capture_output=True).returncode == 0


GPU = _gpu()


def _group(name):
    return nox.project.dependency_groups(PROJECT, name)


def _test_backend(session, backend, *requirements):
    """Tests that depend on the array library, on one library."""
    session.install(".", *_group("test"), *requirements)
    chosen = ("tests/core", "tests/datasets", "-m", "backend", "--backend", backend)
    session.run("pytest", *WORKERS, *chosen, *session.posargs, env=ONE_THREAD)


@nox.session(python=PYTHON)
def lint(session):
    """Check style and formatting."""
    session.install(*_group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHONS)
def tests(session):
    """Run the whole suite on NumPy."""
    session.install(".", *_group("test"))
    coverage = ("--cov", "--cov-report=term") if session.python == PYTHON else ()
    session.run("pytest", "-W", "error", *WORKERS, *coverage, *session.posargs, env=ONE_THREAD)


@nox.session(python=PYTHON)
def tests_jax(session):
    """Run the core on JAX."""
    _test_backend(session, "jax", "jax>=0.4.35")


@nox.session(python=PYTHON)
def tests_torch(session):
    """Run the core on PyTorch."""
    _test_backend(session, "torch", "torch==2.13.0")


@nox.session(python=PYTHON)
def tests_strict(session):
    """Run the core on an array library that has nothing beyond the standard."""
    _test_backend(session, "array-api-strict", "array-api-strict>=2.3")


def _test_sampling(session, marked):
    session.install(".[sampling]", *_group("test"))
    chosen = ("tests/sampling", "-m", marked)
    session.run("pytest", "-W", "error", *WORKERS, *chosen, *session.posargs, env=ONE_THREAD)


@nox.session(python=PYTHON)
def tests_sampling(session):
    """Check the samplers of the posterior, which need JAX, BlackJAX and ArviZ."""
    _test_sampling(session, "not slow")


@nox.session(python=PYTHON, default=False)
def tests_slow(session):
    """Calibrate the samplers over many draws of the data; minutes, so run by name."""
    _test_sampling(session, "slow")


@nox.session(python=PYTHON)
def tests_training(session):
    """Check the training of networks, which needs JAX and optax."""
    session.install(".[training]", *_group("test"))
    chosen = ("tests/training", "-m", "not slow")
    session.run("pytest", "-W", "error", *WORKERS, *chosen, *session.posargs, env=ONE_THREAD)


@nox.session(python=PYTHON, default=GPU)
def tests_cupy(session):
    """Run the core on CuPy."""
    if not GPU:
        session.skip("no GPU: nvidia-smi is missing or fails")
    _test_backend(session, "cupy", "cupy-cuda12x>=13.3")


@nox.session(python=PYTHON)
def wheel(session):
    """Build the wheel and use it in an environment that has nothing else."""
    root, folder = Path.cwd(), Path(session.create_tmp()).resolve()
    for old in folder.glob("*.whl"):
        old.unlink()
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), ".")
    (built,) = folder.glob("*.whl")
    session.install(str(built))
    session.chdir(folder)  # away from the checkout, so that only the wheel can be imported
    shipped = set(zipfile.ZipFile(built).namelist())
    for package in PACKAGES:
        for source in (root / package).rglob("*.py"):
            name = source.relative_to((root / package).parent).as_posix()
            if name not in shipped:
                session.error(f"{built.name} lacks {name}")
    imports = ", ".join(Path(package).name for package in PACKAGES)
    session.run("python", "-W", "error", "-c", f"import {imports}")
    session.run("pathkernel", "--help")
    session.run("pathkernel", "plugins")
    store = folder / "study.zarr"
    shutil.rmtree(store, ignore_errors=True)
    sizes = ("--examples", "20", "--test-examples", "20", "--widths", "10,100")
    session.run("pathkernel", "run", "hidden-markov", *sizes, "--out", str(store), env=ONE_THREAD)
    session.run("pathkernel", "show", str(store))
