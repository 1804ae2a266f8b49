"""``import pathkernel``: every documented name and the classes of plugins, loaded when used."""

import ast
import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import pathkernel
import pathkernel_core
from pathkernel_core.contracts.hooks import GROUP, PluginError, load_plugins
from pathkernel_datasets.study.study import Study
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
dir(pk)
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


STRANGER = """
from dataclasses import dataclass

import pathkernel as pk


@dataclass(frozen=True)
class {first}(pk.HiddenMarkov):
    name = "{first}-{number}".lower()


@dataclass(frozen=True)
class {second}(pk.HiddenMarkov):
    name = "{second}-{number}".lower()


@pk.hookimpl
def pathkernel_tasks():
    return [{first}, {second}]
"""


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Plugins whose classes inherit from a bundled task; two are Noisy, and one has its name."""
    entries = list(importlib.metadata.entry_points(group=GROUP))
    for number, (first, second) in enumerate((("Noisy", "HiddenMarkov"), ("Noisy", "Longer"))):
        module = f"stranger_{number}"
        source = STRANGER.format(first=first, second=second, number=number)
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)
        entries.append(importlib.metadata.EntryPoint(f"strange-{number}", module, GROUP))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    before = dict(vars(pathkernel))
    vars(pathkernel).pop("HiddenMarkov", None)
    yield
    for name in {*vars(pathkernel)} - {*before}:
        delattr(pathkernel, name)  # kept since its first use


def test_a_strangers_class_is_a_name(strangers):
    assert pathkernel.Longer(examples=20).name == "longer-1"
    assert {"Longer", "Noisy"} <= set(dir(pathkernel))


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("Noisy", ("stranger_0", "stranger_1")),
        ("HiddenMarkov", ("pathkernel_tasks.hidden_markov", "stranger_0")),
    ],
)
def test_a_clash_of_two_plugins_names_both(strangers, monkeypatch, name, modules):
    monkeypatch.setenv("PATHKERNEL_STRICT_PLUGINS", "1")
    assert len(load_plugins().tasks) > 4  # in strict mode, too
    with pytest.raises(PluginError, match=rf"provide a class '{name}': .*; import it") as error:
        getattr(pathkernel, name)
    for module in modules:
        assert f"({module})" in str(error.value)
    assert "\n" not in str(error.value)


def test_version():
    assert pathkernel.__version__ == importlib.metadata.version("pathkernel")


def test_names_that_lack_an_extra_are_not_listed(monkeypatch):
    """So that help and completion, which look up all that is listed, work without it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    assert {"capture", "compare_heads"}.isdisjoint(dir(pathkernel))
    assert {"Network", "HiddenMarkov", "compare_orders"} <= set(dir(pathkernel))


def test_unknown_names_are_named():
    with pytest.raises(
        AttributeError, match=r"no attribute 'minimize_action'\. Did you mean: 'minimise"
    ):
        _ = pathkernel.minimize_action
