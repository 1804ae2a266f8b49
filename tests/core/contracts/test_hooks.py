import importlib
import importlib.metadata
import inspect
import re
import sys
import types
from dataclasses import dataclass

import pytest

from pathkernel_core.contracts import hooks
from pathkernel_core.contracts.hooks import PluginError, UnknownNameError, hookimpl, load_plugins
from pathkernel_core.contracts.result import Result
from pathkernel_core.contracts.task import Task

pytestmark = pytest.mark.version


def named_task(task_name):
    @dataclass(frozen=True)
    class Named(Task):
        name = task_name
        summary = "A task"

        def realise(self, seed):
            raise NotImplementedError

    return Named


@dataclass(frozen=True)
class Thing:
    name: str
    summary: str = "A thing"


def _returning(provided):
    def function():
        return provided

    return function


@pytest.fixture
def plugin(monkeypatch):
    """Make an entry point to a plugin module built from hook implementations."""

    def make(name, **implementations):
        module = types.ModuleType(f"plugin_{name.replace('-', '_')}")
        for hook, provided in implementations.items():
            function = _returning(provided)
            function.__name__ = hook
            setattr(module, hook, hookimpl(function))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return importlib.metadata.EntryPoint(name, module.__name__, hooks.GROUP)

    return make


def test_a_plugin_adds_what_its_hooks_return(plugin):
    parity, sampler, analysis, command = (
        named_task("parity"),
        Thing("sampler"),
        Thing("analysis"),
        Thing("command"),
    )
    plugins = load_plugins(
        [
            plugin(
                "mine",
                pathkernel_tasks=[parity],
                pathkernel_samplers=[sampler],
                pathkernel_analyses=[analysis],
                pathkernel_commands=[command],
            )
        ]
    )
    assert plugins.tasks == {"parity": parity}
    assert plugins.task("parity") is parity
    assert plugins.samplers == {"sampler": sampler}
    assert plugins.analyses == {"analysis": analysis}
    assert plugins.commands == {"command": command}
    (entry,) = plugins.loaded
    assert entry.name == "mine"
    assert entry.error == ""
    assert set(entry.provides) == {
        "task parity",
        "sampler sampler",
        "analysis analysis",
        "command command",
    }


def broken_entry_points(plugin):
    """Plugins that fail, with the reason that must be reported."""
    clash = plugin("clash", pathkernel_tasks=[named_task("one"), named_task("parity")])
    return {
        "absent": (
            importlib.metadata.EntryPoint("absent", "no_such_module_anywhere", hooks.GROUP),
            "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
        ),
        "no-attribute": (
            importlib.metadata.EntryPoint("no-attribute", "math:no_such_thing", hooks.GROUP),
            "AttributeError: .*no_such_thing",
        ),
        "clash": (clash, "PluginError: the task name 'parity' is already taken"),
        "no-task": (
            plugin("no-task", pathkernel_tasks=[Thing("thing")]),
            "PluginError: .* is no subclass of pathkernel_core.contracts.task.Task",
        ),
        "no-list": (
            plugin("no-list", pathkernel_tasks=3),
            "must return a list, but .* one int",
        ),
        "unknown-hook": (plugin("unknown-hook", pathkernel_taks=[]), "pathkernel_taks"),
        "twice": (
            plugin("twice", pathkernel_samplers=[Thing("same"), Thing("same")]),
            "PluginError: the sampler name 'same' is already taken",
        ),
    }


BROKEN = ("absent", "no-attribute", "clash", "no-task", "no-list", "unknown-hook", "twice")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_reported_and_the_others_work(plugin, name):
    entry, reason = broken_entry_points(plugin)[name]
    good = plugin("good", pathkernel_tasks=[named_task("parity")])
    last = plugin("last", pathkernel_tasks=[named_task("last")])
    plugins = load_plugins([good, entry, last])
    assert set(plugins.tasks) == {"parity", "last"}
    assert plugins.samplers == {}
    reports = {report.name: report for report in plugins.loaded}
    assert reports["good"].error == reports["last"].error == ""
    assert reports[name].provides == ()
    assert re.search(reason, reports[name].error), reports[name].error
    with pytest.raises(UnknownNameError, match=rf"Plugins that failed to load: {name}: "):
        plugins.task("one")


@pytest.mark.parametrize(
    ("hook", "returned", "reason"),
    [
        ("pathkernel_tasks", named_task("one"), r"tasks must return a list, but .* \[Named\]"),
        ("pathkernel_results", Result, r"results must return a list, .*return \[Result\]"),
        ("pathkernel_analyses", Thing("one"), "must return a list, but returned one Thing"),
        ("pathkernel_analyses", Thing, r"must return a list, .* return \[Thing\(\)\]"),
        ("pathkernel_analyses", [Thing], r"gives the class Thing, .* return \[Thing\(\)\]"),
        ("pathkernel_samplers", (Thing,), r"gives the class Thing, but must give objects"),
        ("pathkernel_commands", "one", "must return a list, but returned one str"),
    ],
)
def test_a_hook_that_returns_no_list_of_its_kind_is_named(plugin, hook, returned, reason):
    good = plugin("good", pathkernel_tasks=[named_task("good")])
    plugins = load_plugins([plugin("bad", **{hook: returned}), good], strict=False)
    (failure,) = [entry.error for entry in plugins.loaded if entry.error]
    assert re.search(reason, failure)
    assert list(plugins.tasks) == ["good"]


@pytest.mark.parametrize("name", BROKEN)
def test_strict_mode_raises(plugin, name, monkeypatch):
    entry, reason = broken_entry_points(plugin)[name]
    entries = [plugin("good", pathkernel_tasks=[named_task("parity")]), entry]
    with pytest.raises(PluginError, match=rf"plugin {name} \(.*\): .*") as caught:
        load_plugins(entries, strict=True)
    assert re.search(reason, str(caught.value))
    monkeypatch.setenv("PATHKERNEL_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError):
        load_plugins(entries)
    assert load_plugins(entries, strict=False).tasks
    monkeypatch.setenv("PATHKERNEL_STRICT_PLUGINS", "")
    assert load_plugins(entries).tasks


def test_a_plugin_that_raises_while_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "explosive_plugin.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    entry = importlib.metadata.EntryPoint("explosive", "explosive_plugin", hooks.GROUP)
    (report,) = load_plugins([entry]).loaded
    assert report.error == "RuntimeError: no licence"


@pytest.fixture
def plugin_of_source(tmp_path, monkeypatch):
    """Make an entry point to a plugin module of a given source."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source):
        monkeypatch.delitem(sys.modules, "plugin_of_source", raising=False)
        (tmp_path / "plugin_of_source.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.metadata.EntryPoint("written", "plugin_of_source", hooks.GROUP)

    return make


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("raise GeneratorExit('over')", "GeneratorExit: over"),
        ("class Skipped(BaseException): pass\nraise Skipped('not here')", "Skipped: not here"),
        (
            "from pathkernel_core.contracts.hooks import hookimpl\n"
            "@hookimpl\ndef pathkernel_tasks(): raise SystemExit(4)",
            "SystemExit: 4",
        ),
    ],
)
def test_a_plugin_that_ends_the_process_is_skipped(plugin, plugin_of_source, source, reason):
    good = plugin("good", pathkernel_tasks=[named_task("parity")])
    plugins = load_plugins([plugin_of_source(source), good])
    assert list(plugins.tasks) == ["parity"]
    assert {entry.name: entry.error for entry in plugins.loaded} == {"written": reason, "good": ""}
    with pytest.raises(PluginError, match=f"plugin written .*{reason}"):
        load_plugins([plugin_of_source(source)], strict=True)


def test_ctrl_c_ends_the_loading_of_plugins(plugin_of_source):
    with pytest.raises(KeyboardInterrupt):
        load_plugins([plugin_of_source("raise KeyboardInterrupt")])


def test_what_a_plugin_prints_is_no_output(plugin_of_source, capsys):
    load_plugins([plugin_of_source("import math\nprint('welcome')\nmath.no_such_thing")])
    assert capsys.readouterr() == ("", "welcome\n")


def test_unknown_names_suggest_the_nearest(plugin):
    plugins = load_plugins(
        [plugin("mine", pathkernel_tasks=[named_task("parity"), named_task("hidden-markov")])]
    )
    message = (
        "there is no task named 'hiden-markov'. Did you mean 'hidden-markov'? "
        "Known: hidden-markov, parity"
    )
    with pytest.raises(UnknownNameError) as caught:
        plugins.task("hiden-markov")
    assert str(caught.value) == message
    with pytest.raises(LookupError, match=r"no task named 'zzz'. Known: hidden-markov, parity$"):
        plugins.task("zzz")
    with pytest.raises(LookupError, match="Known: none"):
        load_plugins([]).task("parity")


def test_results_have_commands_of_their_own(plugin):
    def result(result_name, command_name):
        @dataclass(frozen=True)
        class Named(Result):
            name, command, summary = result_name, command_name, "A result"

            def compute(self, study, report):
                raise NotImplementedError

        return Named

    plugins = load_plugins(
        [
            plugin("first", pathkernel_commands=[Thing("run")]),
            plugin("second", pathkernel_results=[result("one", "do")]),
            plugin("third", pathkernel_results=[result("two", "run")]),
            plugin("fourth", pathkernel_results=[result("three", "do")]),
            plugin("fifth", pathkernel_results=[Thing("thing")]),
            plugin("sixth", pathkernel_commands=[Thing("do")]),
        ]
    )
    assert set(plugins.commands) == {"run"}
    assert set(plugins.results) == {"one"}
    reasons = {entry.name: entry.error for entry in plugins.loaded}
    assert "the command name 'run' is already taken" in reasons["third"]
    assert "the command name 'do' is already taken" in reasons["fourth"]
    assert "is no subclass of pathkernel_core.contracts.result.Result" in reasons["fifth"]
    assert "the command name 'do' is already taken by" in reasons["sixth"]


def installed(folder, name, entry):
    """An entry point of an installed distribution."""
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[{hooks.GROUP}]\n{entry.name} = {entry.value}\n")
    (outcome,) = importlib.metadata.Distribution.at(record).entry_points
    return outcome


def test_another_distribution_does_not_displace_the_own_plugins(plugin, tmp_path):
    own, foreign = named_task("parity"), named_task("parity")
    entries = [
        installed(tmp_path, "a-new", plugin("new", pathkernel_tasks=[foreign])),
        installed(tmp_path, "pathkernel", plugin("old", pathkernel_tasks=[own])),
    ]
    for order in (entries, entries[::-1]):
        plugins = load_plugins(order)
        assert plugins.task("parity") is own
        reasons = {entry.distribution: entry.error for entry in plugins.loaded}
        assert "'parity' is already taken by pathkernel 1.0" in reasons["a-new 1.0"]
        assert reasons["pathkernel 1.0"] == ""


def test_every_hook_is_documented():
    specifications = {
        name: function
        for name, function in inspect.getmembers(hooks, inspect.isfunction)
        if hasattr(function, "pathkernel_spec")
    }
    assert set(specifications) == {
        "pathkernel_tasks",
        "pathkernel_samplers",
        "pathkernel_analyses",
        "pathkernel_results",
        "pathkernel_commands",
    }
    for name, function in specifications.items():
        assert inspect.getdoc(function), f"{name} needs a docstring"


def test_what_ships_uses_the_same_hooks():
    entry = importlib.metadata.EntryPoint("tasks", "pathkernel_tasks.plugin", hooks.GROUP)
    plugins = load_plugins([entry], strict=True)
    assert "hidden-markov" in plugins.tasks
    for name, task in plugins.tasks.items():
        assert issubclass(task, Task)
        assert task.name == name
        assert task.summary
