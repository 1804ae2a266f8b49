"""``import pathkernel``: every documented name and the classes of plugins, loaded when used."""

import ast
import importlib
import importlib.metadata
import subprocess
import sys
import types
from pathlib import Path

import pytest

import pathkernel
import pathkernel_core
from pathkernel_core.analysis import Analysis
from pathkernel_core.hooks import GROUP, PluginError, hookimpl, load_plugins
from pathkernel_datasets.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov

pytestmark = pytest.mark.version

EXTRAS = {  # imported names that need an extra, some of each
    "torch": ("capture", "Captured", "heads_off"),
    "jax": ("next_order", "train_one_shot_images", "check_sampler"),
}


def python(program):
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_importing_it_loads_nothing_else():
    heavy = (
        *("numpy", "scipy", "xarray", "zarr", "pandas", "altair", "click", "jax", "torch"),
        *("pluggy", "pathkernel_core"),
    )
    loaded = f"print([name for name in {heavy!r} if name in sys.modules])"
    assert python(f"import sys, pathkernel; {loaded}") == "[]"
    assert "xarray" not in python(f"import sys, pathkernel; pathkernel.Network; {loaded}")


def test_it_has_the_names_of_the_core_of_studies_and_of_plugins():
    assert pathkernel.Network is pathkernel_core.Network
    assert pathkernel.Study is Study
    assert pathkernel.HiddenMarkov is HiddenMarkov
    assert set(pathkernel_core.__all__) <= set(dir(pathkernel))
    plugins = load_plugins()
    for provided in (*plugins.tasks.values(), *plugins.results.values()):
        assert getattr(pathkernel, provided.__name__) is provided
    for provided in (*plugins.analyses.values(), *plugins.samplers.values()):
        assert getattr(pathkernel, type(provided).__name__) is type(provided)


@pytest.mark.parametrize("absent", EXTRAS)
def test_a_missing_extra_is_told_when_a_name_is_used_not_when_it_is_listed(absent):
    """In one line, with the command that installs it."""
    program = f"""
import sys
sys.modules[{absent!r}] = None
import pathkernel as pk
assert set(dir(pk)) >= set({EXTRAS[absent]!r})
for name in {EXTRAS[absent]!r}:
    try:
        getattr(pk, name)
    except pk.MissingExtraError as error:
        print(error)
"""
    lines = python(program).splitlines()
    assert len(lines) == len(EXTRAS[absent])
    for line in lines:
        assert f"needs {absent}" in line
        assert 'pip install "pathkernel[' in line


def test_editors_see_every_name():
    """The stub lists what is offered, from the modules that offer it."""
    stub = Path(pathkernel.__file__).with_suffix(".pyi")
    listed = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("pathkernel_"):
            for alias in node.names:
                listed[alias.name] = node.module
                assert alias.asname == alias.name or alias.name == "*"  # or it is not exported
    assert listed.pop("*") == "pathkernel_core"
    offered = {name: module for module, names in pathkernel._NAMES.items() for name in names}
    entries = importlib.metadata.entry_points(group=GROUP)
    shipped = load_plugins([entry for entry in entries if entry.dist.name == "pathkernel"])
    for name, (provided,) in shipped.classes().items():
        offered[name] = provided.__module__
    assert listed == offered
    assert not set(listed) & set(pathkernel_core.__all__)
    assert stub.with_name("py.typed").is_file()


@pytest.fixture
def strangers(monkeypatch):
    """Two plugins that both have an analysis of the class ``Margins``."""
    entries = list(importlib.metadata.entry_points(group=GROUP))
    for number, classes in ((1, ("Margins", "HiddenMarkov", "Edges")), (2, ("Margins",))):
        module = types.ModuleType(f"stranger_{number}")
        provided = [analysis(name, f"{name.lower()}-{number}", module) for name in classes]

        @hookimpl
        def pathkernel_analyses(provided=provided):
            return provided

        module.pathkernel_analyses = pathkernel_analyses
        monkeypatch.setitem(sys.modules, module.__name__, module)
        entries.append(importlib.metadata.EntryPoint(f"strange-{number}", module.__name__, GROUP))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    for name in ("Margins", "HiddenMarkov", "Edges"):
        monkeypatch.delitem(vars(pathkernel), name, raising=False)


def analysis(class_name, name, module):
    return type(
        class_name,
        (Analysis,),
        {
            "__module__": module.__name__,
            "name": name,
            "summary": "An analysis",
            "variables": (),
            "coordinates": lambda self, situation: {},
            "compute": lambda self, situation: {},
        },
    )()


def test_a_strangers_class_is_a_name(strangers):
    assert pathkernel.Edges.__module__ == "stranger_1"
    assert {"Edges", "Margins"} <= set(dir(pathkernel))
    del pathkernel.Edges  # kept since its first use


@pytest.mark.parametrize("name", ["Margins", "HiddenMarkov"])
def test_a_clash_of_two_plugins_names_both(strangers, name):
    with pytest.raises(PluginError) as error:
        getattr(pathkernel, name)
    assert f"a class {name!r}" in str(error.value)
    assert "stranger_1" in str(error.value)
    other = "stranger_2" if name == "Margins" else "pathkernel_tasks.hidden_markov"
    assert other in str(error.value)
    assert "\n" not in str(error.value)


def test_version():
    assert pathkernel.__version__ == importlib.metadata.version("pathkernel")


def test_unknown_names_are_named():
    with pytest.raises(
        AttributeError, match=r"no attribute 'minimize_action'\. Did you mean: 'minimise"
    ):
        _ = pathkernel.minimize_action
