"""``import pathkernel``: every documented name and the classes of plugins, loaded when used."""

import importlib
import importlib.metadata
import importlib.util
import operator
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import pathkernel
import pathkernel_core
from pathkernel import names
from pathkernel_core.contracts.hooks import GROUP, PluginError, load_plugins
from pathkernel_datasets.study.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov

pytestmark = pytest.mark.version

ROOT = Path(__file__).parents[2]
EXTRAS = {  # imported names that need an extra, some of each
    "torch": ("capture", "Captured", "heads_off"),
    "jax": ("next_order", "trained.train_one_shot_images", "plugins.check_sampler"),
}
NAMESPACES = [name for name in names.PUBLIC if name != "pathkernel"]


def python(program):
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_importing_it_loads_nothing_else():
    heavy = (
        *("numpy", "scipy", "xarray", "zarr", "pandas", "altair", "click", "jax", "torch"),
        *("pluggy", "pathkernel_core"),
    )
    loaded = f"print([name for name in {heavy!r} if name in sys.modules])"
    for namespace in names.PUBLIC:
        assert python(f"import sys, {namespace}; {loaded}") == "[]"
    assert "xarray" not in python(f"import sys, pathkernel; pathkernel.Network; {loaded}")


def test_the_core_imports_a_name_at_its_first_use():
    loaded = "print([name for name in ('numpy', 'scipy') if name in sys.modules])"
    assert python(f"import sys, pathkernel_core; dir(pathkernel_core); {loaded}") == "[]"
    for name, module in pathkernel_core.MODULES.items():
        assert getattr(pathkernel_core, name) is getattr(sys.modules[module], name)
        assert getattr(pathkernel_core, name).__module__ == module
    with pytest.raises(AttributeError, match="'pathkernel_core' has no attribute 'Netwrok'"):
        _ = pathkernel_core.Netwrok


def test_it_has_the_names_of_the_core_of_studies_and_of_plugins():
    assert pathkernel.Network is pathkernel_core.Network
    assert pathkernel.Study is Study
    assert pathkernel.HiddenMarkov is HiddenMarkov
    of_authors = set(dir(pathkernel.plugins))
    assert pathkernel.plugins.Task is pathkernel_core.Task
    assert set(pathkernel_core.__all__) - of_authors <= set(dir(pathkernel))
    plugins = load_plugins()
    for provided in (*plugins.tasks.values(), *plugins.results.values()):
        assert getattr(pathkernel, provided.__name__) is provided
    for provided in (*plugins.analyses.values(), *plugins.samplers.values()):
        assert getattr(pathkernel, type(provided).__name__) is type(provided)


@pytest.mark.parametrize("absent", EXTRAS)
def test_a_missing_extra_is_told_when_a_name_is_used_not_when_it_is_listed(absent):
    """In one line, with the command that installs it."""
    program = f"""
import operator, sys
sys.modules[{absent!r}] = None
import pathkernel as pk
dir(pk)
for name in {EXTRAS[absent]!r}:
    try:
        operator.attrgetter(name)(pk)
    except pk.MissingExtraError as error:
        print(error)
"""
    lines = python(program).splitlines()
    assert len(lines) == len(EXTRAS[absent])
    for line in lines:
        assert f"needs {absent}" in line
        assert 'pip install "pathkernel[' in line


def test_stubs_and_reference_are_generated_from_the_list():
    program = runpy.run_path(str(ROOT / "docs" / "generate_names.py"))
    files = program["generated"]()
    for file, text in files.items():
        assert file.is_file(), "run: python docs/generate_names.py"
        assert file.read_text(encoding="utf-8") == text, "run: python docs/generate_names.py"
    assert set((ROOT / "docs" / "reference").glob("*.rst")) <= set(files)
    assert (ROOT / "plugins" / "pathkernel" / "py.typed").is_file()


def test_every_name_is_in_one_namespace():
    listed = [name for namespace in names.PUBLIC for name in names.every_name(namespace)]
    assert len(listed) == len(set(listed))
    assert set(pathkernel_core.__all__) <= set(listed)
    sections = [section for namespace in names.PUBLIC.values() for section in namespace.values()]
    written = [name for section in sections for own in section.values() for name in own]
    assert not set(written) & set(pathkernel_core.__all__), "declared by the core: write '*'"


def test_namespaces_are_attributes():
    for namespace in NAMESPACES:
        assert getattr(pathkernel, namespace.rpartition(".")[2]) is sys.modules[namespace]


@pytest.mark.parametrize("namespace", ["pathkernel", *NAMESPACES])
def test_a_namespace_lists_its_names_and_has_them(namespace):
    module = importlib.import_module(namespace)
    assert dir(module) == sorted(dir(module))
    for name in dir(module):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        _ = module._private


STRANGER = """
from dataclasses import dataclass

import pathkernel as pk


@dataclass(frozen=True)
class {first}(pk.HiddenMarkov):
    name = "{first}-{number}".lower()


@dataclass(frozen=True)
class {second}(pk.HiddenMarkov):
    name = "{second}-{number}".lower()


@pk.plugins.hookimpl
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
    assert {"Network", "HiddenMarkov", "heads"} <= set(dir(pathkernel))
    assert "compare_orders" in dir(pathkernel.heads)


def test_unknown_names_are_named():
    with pytest.raises(
        AttributeError, match=r"no attribute 'minimize_action'\. Did you mean: 'minimise"
    ):
        _ = pathkernel.minimize_action
    with pytest.raises(
        AttributeError, match=r"Did you mean: 'pathkernel\.heads\.sampled_shapley'\?"
    ):
        _ = pathkernel.sampeld_shapley


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("greedy_order", "pathkernel.heads.greedy_order"),
        ("Task", "pathkernel.plugins.Task"),
        ("heads.capture", "pathkernel.capture"),
        ("views.hookimpl", "pathkernel.plugins.hookimpl"),
    ],
)
def test_names_of_another_namespace_are_found(asked, place):
    with pytest.raises(AttributeError, match=rf"It is {re.escape(place)}$"):
        operator.attrgetter(asked)(pathkernel)
