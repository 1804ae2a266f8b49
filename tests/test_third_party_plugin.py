"""A task, an analysis, a sampler and a result from another distribution: found, checked, run."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAMPLING = importlib.util.find_spec("blackjax") is not None

pytest.importorskip("hatchling", reason="builds a distribution with hatchling")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Run Python in a fresh environment that adds the distribution to everything in this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    scheme = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "venv", scheme))
    parents = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({parent!r})" for parent in sorted(parents)]
    (own / "parent.pth").write_text("\n".join(lines) + "\n")
    executable = Path(sysconfig.get_path("scripts", "venv", scheme)) / Path(sys.executable).name
    if not executable.exists():
        executable = executable.with_name("python")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["COLUMNS"] = "200"  # no name is broken over two lines

    def run(*arguments, cwd=folder):
        done = subprocess.run(
            [executable, *map(str, arguments)],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    source = folder / "source"
    shutil.copytree(HERE / "third_party", source)
    run.source = source
    needed = [source]
    try:
        importlib.metadata.distribution("pathkernel")
    except importlib.metadata.PackageNotFoundError:  # the tests run on the bare checkout
        needed.append(HERE.parent)
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    run(*install, "--disable-pip-version-check", *needed)
    return run


@pytest.mark.version
def test_the_task_is_found_by_its_name(python):
    program = """
import json
from pathkernel_core.contracts.hooks import load_plugins
plugins = load_plugins(strict=True)
(entry,) = [entry for entry in plugins.loaded if entry.name == "third-party-parity"]
print(json.dumps([entry.distribution, entry.provides, sorted(plugins.tasks),
                  plugins.task("third-party-parity").__module__]))
"""
    distribution, provides, tasks, module = json.loads(python("-c", program))
    assert distribution == "third-party-parity 1.2.3"
    assert set(provides) == {
        "task third-party-parity",
        "analysis third-party-participation",
        "sampler third-party-rescaled",
        "result third-party-spectrum",
    }
    assert {"third-party-parity", "hidden-markov"} <= set(tasks)
    assert module == "third_party_parity.task"


def test_its_classes_are_names_of_pathkernel(python):
    """Its own modules use these names while they are imported."""
    names = ("ThirdPartyParity", "Participation", "Rescaled", "Spectrum")
    program = f"""
import pathkernel as pk
print(*(getattr(pk, name).name for name in {names!r} if name in dir(pk)))
"""
    assert python("-c", program).split() == [
        *("third-party-parity", "third-party-participation"),
        *("third-party-rescaled", "third-party-spectrum"),
    ]


@pytest.mark.slow
def test_its_own_tests_pass(python):
    options = ("-q", "-p", "no:cacheprovider")
    report = python("-m", "pytest", *options, "tests", cwd=python.source)
    sampler = "4 passed" if SAMPLING else "3 passed, 1 skipped"
    assert sampler in report  # 8 of the task, 2 of the analysis, 4 of the result


@pytest.fixture(scope="module")
def study(python, tmp_path_factory):
    """A study of its task, made by the command line."""
    out = tmp_path_factory.mktemp("study") / "parity"
    options = ("--widths", "10,100", "--examples", "12", "--out", out, "--no-figures")
    python("-m", "pathkernel", "run", "third-party-parity", *options)
    return out


def test_the_command_line_runs_it(python, study):
    assert "third-party-parity" in python("-m", "pathkernel", "plugins")
    xarray = pytest.importorskip("xarray")
    dataset = xarray.open_zarr(study / "study.zarr", chunks=None)
    assert dataset.sizes["path"] == 4
    assert dataset.sizes["width"] == 2
    assert bool(dataset["action"].notnull().all())
    assert (dataset["participation"] >= 1).all()


def test_its_result_is_a_command_and_is_shown_with_the_study(python, study):
    figure = study / "figures" / "third-party-spectrum" / "spectrum.png"
    program = f"""
from pathlib import Path
from pathkernel.main import main

def run(*words):
    try:
        main(words)
    except SystemExit as ended:
        assert not ended.code

study, figure = {str(study)!r}, Path({str(figure)!r})
run("third-party-spectrum", study, "--count", "2")
assert figure.is_file()
print("shown:")
run("show", study)
figure.unlink()
run("plot", study, "--only", "third-party-spectrum")
"""
    report, _, shown = python("-c", program).partition("shown:\n")
    assert "Largest eigenvalue of U at N = 100: " in report
    assert "GP limit" in shown
    assert "Largest eigenvalue of U at N = 10: " in shown
    assert figure.is_file()


@pytest.mark.slow  # its own tests, above, draw with it, too
@pytest.mark.skipif(not SAMPLING, reason="needs the extra: pip install pathkernel[sampling]")
def test_its_sampler_draws(python, study):
    few = ("--draws", "20", "--thin", "10", "--chains", "2", "--warm-up", "20")
    name = ("--width", "10", "--sampler", "third-party-rescaled", "--no-figures")
    report = python("-m", "pathkernel", "sample", study, *name, *few)
    assert "samples/third-party-rescaled/seed-0_T-0.1_N-10" in report
    only = python("-m", "pathkernel", "show", study, "--only", "samples")
    assert "third-party-rescaled" in only
    assert "GP limit" not in only
