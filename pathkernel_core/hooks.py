"""Hooks that plugins implement, and the manager that finds and loads plugins.

A plugin is a module (or object) named by an entry point of the group ``pathkernel``:

    [project.entry-points.pathkernel]
    my-tasks = "my_package.plugin"

in which functions marked with :data:`hookimpl` return what the plugin adds. What ships with
pathkernel is registered in the same way.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy

from pathkernel_core.analysis import Analysis
from pathkernel_core.errors import PathkernelError
from pathkernel_core.options import NAME_PATTERN
from pathkernel_core.result import Result
from pathkernel_core.sampler import Sampler
from pathkernel_core.task import Task

GROUP = "pathkernel"

hookspec = pluggy.HookspecMarker("pathkernel")
hookimpl = pluggy.HookimplMarker("pathkernel")


@hookspec
def pathkernel_tasks() -> Iterable[type[Task]]:
    """Return Task subclasses. Each can then be run by its name: ``pathkernel run NAME``."""


@hookspec
def pathkernel_samplers() -> Iterable[Sampler]:
    """Return samplers of the posterior, objects that follow the Sampler protocol."""


@hookspec
def pathkernel_analyses() -> Iterable[Analysis]:
    """Return Analysis objects. Each adds labelled variables to every dataset that is computed."""


@hookspec
def pathkernel_results() -> Iterable[type[Result]]:
    """Return Result subclasses. Each is a command, and what it keeps is shown with the study."""


@hookspec
def pathkernel_commands() -> Iterable[Any]:
    """Return click commands that the command line ``pathkernel`` offers."""


@hookspec
def pathkernel_reserved_options() -> Iterable[str]:
    """Return names of options that every task has, so that a task's own need others."""


class UnknownNameError(PathkernelError, LookupError):
    """No plugin provides something of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


class PluginError(PathkernelError, RuntimeError):
    """A plugin could not be loaded, in strict mode."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that was found.

    Attributes
    ----------
    name : str
        Entry point's name.
    distribution : str
        Name and version of the distribution that provides it.
    provides : tuple of str
        What it registered, such as ``"task hidden-markov"``.
    error : str
        Why it was skipped; empty if it loaded.
    """

    name: str
    distribution: str
    provides: tuple[str, ...] = ()
    error: str = ""


@dataclass
class Plugins:
    """Everything that the installed plugins provide, by name."""

    tasks: dict[str, type[Task]] = field(default_factory=dict)
    samplers: dict[str, Sampler] = field(default_factory=dict)
    analyses: dict[str, Analysis] = field(default_factory=dict)
    results: dict[str, type[Result]] = field(default_factory=dict)
    commands: dict[str, Any] = field(default_factory=dict)
    reserved_options: set[str] = field(default_factory=set)
    loaded: list[LoadedPlugin] = field(default_factory=list)

    def tables(self) -> list[tuple[str, dict[str, Any]]]:
        """What can be provided, in words, each with what is, by name."""
        return [
            ("task", self.tasks),
            ("sampler", self.samplers),
            ("analysis", self.analyses),
            ("result", self.results),
            ("command", self.commands),
        ]

    def provider(self, provided: str) -> str:
        """Distribution that provides something, such as ``"task parity"``; empty if none does."""
        owners = (entry.distribution for entry in self.loaded if provided in entry.provides)
        return next(owners, "")

    def task(self, name: str) -> type[Task]:
        """Task class of that name.

        Raises
        ------
        UnknownNameError
            With the nearest name, and why plugins were skipped if any were.
        """
        if name in self.tasks:
            return self.tasks[name]
        failures = [f"{entry.name}: {entry.error}" for entry in self.loaded if entry.error]
        note = f". Plugins that failed to load: {'; '.join(failures)}" if failures else ""
        raise UnknownNameError(unknown_name("task", name, self.tasks) + note)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Message for an unknown name, which suggests the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no {kind} named {name!r}.{hint} Known: {', '.join(known) or 'none'}"


def load_plugins(
    entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
    *,
    strict: bool | None = None,
) -> Plugins:
    """Find, load and register plugins.

    Parameters
    ----------
    entry_points : sequence of EntryPoint, optional
        By default those of the group ``pathkernel`` of every installed distribution.
    strict : bool, optional
        Raise when a plugin fails instead of skipping it. By default whether the environment
        variable ``PATHKERNEL_STRICT_PLUGINS`` is set to a non-empty value.

    Raises
    ------
    PluginError
        In strict mode, if a plugin fails to load or provides a name that is taken.
    """
    if entry_points is None:
        entry_points = list(importlib.metadata.entry_points(group=GROUP))
    if strict is None:
        strict = bool(os.environ.get("PATHKERNEL_STRICT_PLUGINS"))
    plugins = Plugins()
    # our own first, then those that have been installed for longest, so that a plugin that takes a
    # name which is there already is the one reported
    for entry in sorted(entry_points, key=_seniority):
        try:
            provides = _register(plugins, entry)
        except Exception as error:  # whatever a stranger's plugin raises, the others must work
            reason = f"{type(error).__name__}: {error}"
            if strict:
                raise PluginError(f"plugin {entry.name} ({entry.value}): {reason}") from error
            plugins.loaded.append(LoadedPlugin(entry.name, _distribution(entry), error=reason))
        else:
            plugins.loaded.append(LoadedPlugin(entry.name, _distribution(entry), provides))
    return plugins


_HOOKS = {
    "task": "pathkernel_tasks",
    "sampler": "pathkernel_samplers",
    "analysis": "pathkernel_analyses",
    "result": "pathkernel_results",
    "command": "pathkernel_commands",
}


def _register(plugins: Plugins, entry: importlib.metadata.EntryPoint) -> tuple[str, ...]:
    manager = pluggy.PluginManager("pathkernel")
    manager.add_hookspecs(_SPECIFICATIONS)
    manager.register(entry.load(), name=entry.name)
    manager.check_pending()
    found: list[tuple[str, dict[str, Any], str, Any]] = []
    for kind, table in plugins.tables():
        call = getattr(manager.hook, _HOOKS[kind])
        found += [(kind, table, thing.name, thing) for thing in _flatten(call)]
    added: dict[tuple[str, str], Any] = {}
    reserved = _flatten(manager.hook.pathkernel_reserved_options)
    if not found:
        raise PluginError("it provides nothing; mark its hook functions with hookimpl")
    commands = {f"result {result.name}": result.command for result in plugins.results.values()}
    commands |= {f"command {name}": name for name in plugins.commands}
    for kind, table, name, thing in found:
        if name in table or (kind, name) in added:
            owner = plugins.provider(f"{kind} {name}") or "itself"
            raise PluginError(f"the {kind} name {name!r} is already taken by {owner}")
        added[kind, name] = thing
        if kind == "task":
            _check_class(thing, Task)
            _check_options(thing, plugins.reserved_options)
        elif kind == "result":
            _check_class(thing, Result)
        command = {"command": name, "result": getattr(thing, "command", None)}.get(kind)
        if command is not None:
            for owner, held in commands.items():
                if held == command:
                    raise PluginError(
                        f"the command name {command!r} is already taken by the {owner} of "
                        f"{plugins.provider(owner) or 'itself'}"
                    )
            commands[f"{kind} {name}"] = command
    for _, table, name, thing in found:
        table[name] = thing
    plugins.reserved_options.update(reserved)
    return tuple(f"{kind} {name}" for kind, _, name, _ in found)


def _check_class(thing: Any, base: type[Task | Result]) -> None:
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise PluginError(f"{thing!r} is no subclass of {base.__module__}.{base.__name__}")
    if not re.fullmatch(NAME_PATTERN, thing.name):
        raise PluginError(f"the name {thing.name!r} must be lower-case words joined by hyphens")
    if "__dataclass_fields__" not in vars(thing):
        raise PluginError(f"{thing.__name__} must be decorated with @dataclass(frozen=True)")


def _check_options(task: type[Task], reserved: set[str]) -> None:
    taken = reserved & {entry.name for entry in dataclasses.fields(task)}
    if taken:
        raise PluginError(f"{task.__name__} has options whose names are taken: {sorted(taken)}")


def _flatten(call: Callable[[], list[Iterable[Any]]]) -> list[Any]:
    return [thing for things in call() for thing in things]


def _seniority(entry: importlib.metadata.EntryPoint) -> tuple[bool, float]:
    """Sorting key: our own plugins, then those installed first; without a record, last."""
    if _distribution(entry).startswith("pathkernel "):
        return False, 0.0
    files = (entry.dist.files if entry.dist else None) or ()
    records = (file.locate() for file in files if file.name in ("METADATA", "PKG-INFO"))
    times = [os.path.getmtime(record) for record in records if os.path.exists(record)]
    return True, min(times, default=math.inf)


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    if entry.dist is None:
        return "unknown"
    metadata = entry.dist.metadata  # parsed anew whenever it is asked for
    return f"{metadata['Name']} {metadata['Version']}"


class _SPECIFICATIONS:  # the hook specifications as an object that pluggy can read
    pathkernel_tasks = staticmethod(pathkernel_tasks)
    pathkernel_samplers = staticmethod(pathkernel_samplers)
    pathkernel_analyses = staticmethod(pathkernel_analyses)
    pathkernel_results = staticmethod(pathkernel_results)
    pathkernel_commands = staticmethod(pathkernel_commands)
    pathkernel_reserved_options = staticmethod(pathkernel_reserved_options)
