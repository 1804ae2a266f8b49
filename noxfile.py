"""Every check of the project: ``pip install "nox[uv]" && nox``."""

import contextlib
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"  # without uv it takes minutes longer
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = False

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
if shutil.which("pyenv"):  # whose launchers on PATH work only for versions that are selected
    _installed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True)
    _selected = [v for v in _installed.stdout.split() if v.rpartition(".")[0] in PYTHONS]
    os.environ.setdefault("PYENV_VERSION", ":".join(_selected))


def _runs(version):
    """Whether this version of Python is on PATH, and starts."""
    command = shutil.which(f"python{version}")
    return (
        bool(command) and subprocess.run([command, "-c", ""], capture_output=True).returncode == 0
    )


_running = f"{sys.version_info.major}.{sys.version_info.minor}"
PRESENT = [version for version in PYTHONS if version == _running or _runs(version)]
if not PRESENT:
    sys.exit(f"No Python of {', '.join(PYTHONS)} is on PATH: install one, and run nox again.")
PYTHON = PRESENT[-1]  # of sessions that need only one
# A process per core; each begins with a share of the tests and takes over what others have left.
WORKERS = ("-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # uv leaves it to the first import to compile a module
}
# beside those of the extras; scikit-learn is a reference to test against, and with Dask
# `xr.open_zarr` gives other arrays than without, as in the sessions that lack it
LIBRARIES = ("array-api-strict>=2.3", "dask>=2025.9", "scikit-learn>=1.5")
TORCH = "torch==2.13.0"

MUTATED = {  # room: its package, and the tests that are to notice a change
    "core": ("pathkernel_core", "tests/core"),
    "tasks": ("plugins/pathkernel_tasks", "tests/tasks"),
    "sampling": ("plugins/pathkernel_sampling", "tests/sampling"),
}
# In the place of an operator of arithmetic only +, -, * and / are tried: others fail at once.
MUTATION = """
[cosmic-ray]
module-path = "{package}"
excluded-modules = ["**/testing.py"]
test-command = "python -m pytest -q -x -W error -m 'not slow' {tests}"
timeout = 3600.0
distributor.name = "local"
filters.operators-filter.exclude-operators = [
    "core/ReplaceBinaryOperator_BitOr_",
    "core/ReplaceBinaryOperator_.*_(BitOr|BitAnd|BitXor|LShift|RShift|Mod|FloorDiv|Pow)$",
]
"""

PROJECT = nox.project.load_toml("pyproject.toml")
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

if "PIP_FIND_LINKS" in os.environ:  # uv has no look at the settings of pip
    os.environ.setdefault("UV_FIND_LINKS", ",".join(os.environ["PIP_FIND_LINKS"].split()))
if "PIP_INDEX_URL" in os.environ:
    os.environ.setdefault("UV_DEFAULT_INDEX", os.environ["PIP_INDEX_URL"])


def _gpu():
    command = shutil.which("nvidia-smi")
    return bool(command) and subprocess.run([command, "-L"], capture_output=True).returncode == 0


GPU = _gpu()


def _group(name):
    return nox.project.dependency_groups(PROJECT, name)


def _test(session, *options, **environment):
    folder = Path(session.create_tmp()).resolve()  # goes with the environment
    compiled = {  # by JAX, for all processes of the session
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    options = ("-W", "error", *WORKERS, *options, *session.posargs)
    with tempfile.TemporaryDirectory(dir=_memory()) as files:
        options = (*options, "--basetemp", str(Path(files) / "tests"))
        session.run("pytest", *options, env=ENVIRONMENT | compiled | environment)


def _memory():
    """Return a folder in memory with room for the files of tests; None where there is none.

    They are .4 GB in a hundred thousand folders, which disks take a minute to remove.
    """
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 4e9 else None


@nox.session(python=PYTHON)
def lint(session):
    """Check style, formatting, which package imports which, and types."""
    session.install(*_group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    folders = dict.fromkeys(str(Path(package).parent.resolve()) for package in PACKAGES)
    paths = {"PYTHONPATH": os.pathsep.join(folders)}  # imports are read, nothing is imported
    session.run("lint-imports", "--no-logo", "--no-cache", env=paths)
    session.run("mypy", "--cache-dir", str(Path(session.create_tmp()).resolve() / "mypy"))


@nox.session(python=PYTHON)
def tests(session):
    """Run all tests but those of PyTorch, with all else that is optional, on the newest Python."""
    session.install(".[sampling,training]", *_group("test"), *LIBRARIES)
    _test(session, "-m", "not slow and not torch")


_served = {}  # session that needs PyTorch: the version of Python on which it ran


def _pip(session):
    """Return the command of the session's installer."""
    if session.venv_backend == "uv":
        return ("uv", "pip")
    session.install("pip")
    return ("python", "-m", "pip")


def _ask(session, *command):
    """Return what a command prints, whether it succeeds or not."""
    quiet = {"silent": True, "log": False, "external": True, "success_codes": range(256)}
    return session.run(*command, **quiet)


def _install_torch(session):
    """Install PyTorch where its CPU build is at hand, once a session; else skip.

    Elsewhere than the CPU build it takes gigabytes of libraries for a GPU.
    """
    name = session.name.partition("-")[0]
    if name in _served:
        session.skip(f"{name} has run on Python {_served[name]}")
    answer = _ask(session, *_pip(session), "install", "--dry-run", TORCH)
    if "nvidia-" in answer:
        session.skip(f"{TORCH} has only a build for GPUs here, for Python {session.python}")
    if "torch" not in answer.partition("Would install")[2]:
        session.skip(f"{TORCH} has no build here for Python {session.python}")
    session.install(TORCH)
    _served[name] = session.python


@nox.session(python=PYTHONS[::-1])
def tests_torch(session):
    """Run the tests of PyTorch, on the newest Python for which its CPU build is at hand.

    On another than that of the session tests, run also what depends on the version of Python.
    """
    _install_torch(session)
    session.install(".[sampling,training]", *_group("test"), *LIBRARIES, TORCH)
    marked = "torch" if session.python == PYTHON else "(torch or version)"
    _test(session, "-m", f"{marked} and not slow")


@nox.session(python=PYTHONS[::-1], default=False)
def tests_models(session):
    """Run the tests of live models with every library that they name; as tests_torch."""
    _install_torch(session)
    _install_models(session, *_group("test"), *LIBRARIES, "peft", "accelerate")
    _test(session, "-m", "torch and not slow", "tests/live")


def _install_models(session, *further):
    """Install the libraries of models, and timm where torchvision runs."""
    libraries = ("transformers>=5", "timm", "transformer-lens>=4")
    session.install(".", TORCH, *libraries, *further)
    if "Error:" in _ask(session, "python", "-c", "import torchvision"):
        # as of a build for GPUs beside PyTorch for CPUs: transformers cannot be imported then
        session.warn("torchvision does not run here, so that timm is left out")
        session.run(*_pip(session), "uninstall", "-y", "timm", "torchvision", external=True)


@nox.session(python=PYTHONS[::-1], default=False)
def families(session):
    """Try all families of models of the newest libraries, and write docs/families.md; minutes.

    ``nox -s families -- GPT-2 BERT`` tries two of them. Rows of libraries that do not run stay.
    """
    _install_torch(session)
    libraries = ("transformers>=5", "timm", "transformer-lens>=4", TORCH)
    answer = _ask(session, *_pip(session), "install", "--dry-run", *libraries)
    if "transformers" not in answer.partition("Would install")[2]:
        session.skip("transformers, timm and TransformerLens are not at hand")
    _install_models(session)
    offline = ENVIRONMENT | {"HF_HUB_OFFLINE": "1"}  # all models are built here
    session.run("python", "tests/live/families/write_table.py", *session.posargs, env=offline)


@nox.session(python=PYTHONS[::-1], default=False)
def tests_deployment(session):
    """Train, export and evaluate smaller models as docs/deployment.md does; as tests_torch."""
    _install_torch(session)
    libraries = ("transformers>=5", "accelerate", "peft", "onnx", "onnxscript", "onnxruntime")
    packages = (TORCH, *libraries, "datasets", "lm-eval")
    answer = _ask(session, *_pip(session), "install", "--dry-run", *packages)
    if "Would install" not in answer:
        session.skip(f"not to be had here: {(answer.strip().splitlines() or ['?'])[-1]}")
    session.install(".", *_group("test"), *packages)
    page = "tests/test_documentation.py::test_page_of_deployment_runs"
    _test(session, "-m", "torch", "tests/live/pruning/test_export.py", page)


@nox.session(python=[version for version in PYTHONS if version != PYTHON])
def tests_versions(session):
    """Run what depends on the version of Python, with nothing that is optional."""
    if _served.get("tests_torch") == session.python:
        session.skip("the session tests_torch has run these tests, too")
    session.install(".", *_group("test"))
    _test(session, "-m", "version and not slow and not torch")


@nox.session(python=PYTHON, default=False)
def tests_slow(session):
    """Calibrate the samplers over many draws, train at full size; minutes, so run by name."""
    session.install(".[sampling,training]", *_group("test"))
    # compiled as the commands do, not in haste as tests/conftest.py sets it: these compute
    _test(session, "-m", "slow", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")


@nox.session(python=PYTHONS[0], venv_backend="uv", default=False)
def tests_lowest(session):
    """Run the suite with the lowest versions that pyproject.toml allows."""
    lowest = ("--resolution", "lowest-direct")
    extras = ".[sampling,training]"
    session.install(extras, *_group("test"), "array-api-strict>=2.3", *lowest)
    _test(session, "-m", "not slow", "-W", "default")


@nox.session(python=PYTHONS[0], venv_backend="uv", default=False)
def tests_newest(session):
    """Run what reads studies, samples and draws with pre-releases of the packages that do it."""
    session.install(".[sampling,training]", *_group("test"))
    newest = ("zarr", "blackjax", "altair", "vl-convert-python")
    session.install("--upgrade", "--prerelease", "allow", *newest)
    folders = ("tests/datasets", "tests/sampling", "tests/views")
    _test(session, "-m", "not slow", "-W", "default", *folders)


@nox.session(python=PYTHON, default=False)
def tests_distributed(session):
    """Compute with workers of Dask, one of which is killed; seconds of several processes."""
    session.install(".[distributed]", *_group("test"))
    _test(session, "tests/datasets/run/test_workers.py")


@nox.session(python=PYTHON, default=False)
def coverage(session):
    """Run the suite on NumPy, and say which lines it leaves out."""
    session.install(".", *_group("test"), *_group("coverage"))
    _test(session, "--cov", "--cov-report=term")


@nox.session(python=PYTHONS[::-1], default=False)
def docs(session):
    """Build the site into build/site, and check its links, its names and its commands.

    Tutorials are executed, in three minutes; ``-- -D nb_execution_mode=off`` leaves that out.
    """
    _install_torch(session)
    session.install(".[sampling,training]", *_group("docs"), *_group("test"), TORCH)
    shutil.rmtree("docs/reference/api", ignore_errors=True)
    kept = Path(session.create_tmp()).resolve() / "doctrees"
    build = ("sphinx-build", "-n", "-W", "--keep-going", "-d", str(kept), *session.posargs)
    session.run(*build, "-b", "html", "docs", "build/site", env=ENVIRONMENT)
    session.run(*build, "-b", "linkcheck", "docs", "build/links", env=ENVIRONMENT)
    session.run("pytest", "-W", "error", "tests/test_documentation.py", env=ENVIRONMENT)


@nox.session(python=PYTHON, default=False)
@nox.parametrize("room", [nox.param(room, id=room) for room in MUTATED])
def mutation(session, room):
    """Change a room in 60 places, or as many as are asked for, one at a time; what goes unnoticed?

    ``nox -s "mutation(core)" -- 100``; a change takes as long as the tests of the room.
    """
    extras = "[sampling]" if room == "sampling" else ""
    session.install(f".{extras}", *_group("test"), "cosmic-ray==8.7.0")
    folder = Path(session.create_tmp()).resolve() / "mutation"  # files change while tests run
    shutil.rmtree(folder, ignore_errors=True)
    for source in ("pathkernel_core", "datasets", "plugins", "tests", "docs", "examples"):
        shutil.copytree(source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", folder)
    package, tests = MUTATED[room]
    settings = MUTATION.format(package=package, tests=tests)
    (folder / "mutation.toml").write_text(settings, encoding="utf-8")
    session.chdir(folder)
    session.run("cosmic-ray", "init", "mutation.toml", "mutation.sqlite")
    session.run("cr-filter-operators", "mutation.sqlite", "mutation.toml")
    _keep_a_sample(folder / "mutation.sqlite", *map(int, session.posargs or ["60"]))
    paths = os.pathsep.join(str(folder / place) for place in (".", "datasets", "plugins"))
    environment = ENVIRONMENT | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    session.run("cosmic-ray", "exec", "mutation.toml", "mutation.sqlite", env=environment)
    session.run("cr-report", "--surviving-only", "--show-diff", "mutation.sqlite")


def _keep_a_sample(store, count):
    """Leave so many of the changes that are not filtered out, the same ones every time."""
    order = "module_path, start_pos_row, start_pos_col, operator_name, operator_args, occurrence"
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        wanted = "job_id NOT IN (SELECT job_id FROM work_results)"
        query = f"SELECT job_id FROM mutation_specs WHERE {wanted} ORDER BY {order}"
        jobs = connection.execute(query).fetchall()
        kept = random.Random(0).sample(jobs, min(count, len(jobs)))
        connection.execute("CREATE TEMPORARY TABLE kept (job_id)")
        connection.executemany("INSERT INTO kept VALUES (?)", kept)
        for table in ("work_results", "mutation_specs", "work_items"):
            connection.execute(f"DELETE FROM {table} WHERE job_id NOT IN kept")


@nox.session(python=PYTHON, default=GPU)
def tests_cupy(session):
    """Run the core on CuPy."""
    if not GPU:
        session.skip("no GPU: nvidia-smi is missing or fails")
    session.install(".", *_group("test"), "cupy-cuda12x>=13.3")
    session.run(
        "pytest", *WORKERS, "-m", "backend", "--backend", "cupy", *session.posargs, env=ENVIRONMENT
    )


@nox.session(python=PYTHON, default=False)
def benchmarks_cupy(session):
    """Compare with today's practice and the hardware's limit on the GPU."""
    if not GPU:
        session.skip("no GPU: nvidia-smi is missing or fails")
    session.install(".", *_group("benchmark"), "cupy-cuda12x>=13.3")
    parts = session.posargs or ("practice", "floor")
    here = {"PYTHONPATH": "."} | ENVIRONMENT
    session.run("python", "-m", "benchmarks.core.compare", *parts, "--backend", "cupy", env=here)


@nox.session(python=PYTHON)
def wheel(session):
    """Build the wheel and use it in an environment that has nothing else."""
    root, folder = Path.cwd(), Path(session.create_tmp()).resolve()
    for old in folder.glob("*.whl"):
        old.unlink()
    session.install("pip")
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), ".")
    (built,) = folder.glob("*.whl")
    session.install(str(built))
    session.chdir(folder)  # away from the checkout, so that only the wheel can be imported
    shipped = set(zipfile.ZipFile(built).namelist())
    for package in PACKAGES:
        held = [
            (root / package).rglob(f"*{kind}")
            for kind in (".py", ".pyi", ".typed", ".css", ".js", ".html")
        ]
        networks = (root / package).rglob("bundled_networks/*")
        for source in itertools.chain(*held, networks):
            name = source.relative_to((root / package).parent).as_posix()
            if name not in shipped:
                session.error(f"{built.name} lacks {name}")
    names = [Path(package).name for package in PACKAGES]
    with_torch = ("pathkernel_models", "pathkernel_capture")
    imports = ", ".join(name for name in names if name not in with_torch)
    session.run("python", "-W", "error", "-c", f"import {imports}")
    names = "print(len(dir(pk)), pk.minimise_action, pk.HiddenMarkov, pk.Samples, pk.HeadScores)"
    session.run("python", "-W", "error", "-c", f"import pathkernel as pk; {names}")
    session.run("pathkernel", "--help")
    session.run("pathkernel", "plugins")
    study = folder / "study"
    shutil.rmtree(study, ignore_errors=True)
    sizes = ("--examples", "20", "--test-examples", "20", "--widths", "10,100")
    session.run("pathkernel", "run", "hidden-markov", *sizes, "--out", str(study), env=ENVIRONMENT)
    session.run("pathkernel", "show", str(study))


@nox.session(python=PYTHON, default=False)
def build(session):
    """Build what a release uploads, check it, and install the sdist where nothing else is.

    ``nox -s build -- dist`` leaves both files in the folder ``dist``.
    """
    root = Path.cwd()
    folder = root / session.posargs[0] if session.posargs else Path(session.create_tmp()).resolve()
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        old.unlink()
    session.install("build", "twine", "check-wheel-contents")
    session.run("python", "-m", "build", "--outdir", str(folder), ".")
    (built,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    session.run("twine", "check", "--strict", str(built), str(source))
    session.run("check-wheel-contents", str(built))
    session.install(str(source))
    session.chdir(session.create_tmp())  # away from the checkout
    session.run("python", "-W", "error", "-c", "import pathkernel; print(pathkernel.__version__)")
    session.run("pathkernel", "plugins", "--json", env={"PATHKERNEL_STRICT_PLUGINS": "1"})
