"""Hooks that plugins implement, and the manager that finds and loads plugins.

A plugin is a module (or object) named by an entry point of the group ``pathkernel``:

    [project.entry-points.pathkernel]
    my-tasks = "my_package.plugin"

in which functions marked with :data:`hookimpl` return what the plugin adds. What ships with
pathkernel is registered in the same way.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
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
    loaded: list[LoadedPlugin] = field(default_factory=list)
    providers: dict[str, str] = field(default_factory=dict)
    """Distribution of each thing, such as ``"task parity"``; results are commands, too."""

    def tables(self) -> list[tuple[str, dict[str, Any]]]:
        """What can be provided, in words, each with what is, by name."""
        return [
            ("task", self.tasks),
            ("sampler", self.samplers),
            ("analysis", self.analyses),
            ("result", self.results),
            ("command", self.commands),
        ]

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
    """Add all that a plugin provides; or nothing, if some of it cannot be added."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(sys.modules[__name__])
    manager.register(entry.load(), name=entry.name)
    manager.check_pending()
    provided = [
        (kind, thing)
        for kind, hook in _HOOKS.items()
        for things in getattr(manager.hook, hook)()
        for thing in things
    ]
    if not provided:
        raise PluginError("it provides nothing; mark its hook functions with hookimpl")
    for kind, thing in provided:
        if kind in ("task", "result"):
            _check_class(thing, Task if kind == "task" else Result)
    provides = [f"{kind} {thing.name}" for kind, thing in provided]
    commands = [f"command {thing.command}" for kind, thing in provided if kind == "result"]
    claims = [*provides, *commands]
    for number, claim in enumerate(claims):
        kind, _, name = claim.partition(" ")
        if claim in plugins.providers or claim in claims[:number]:
            owner = plugins.providers.get(claim, "itself")
            raise PluginError(f"the {kind} name {name!r} is already taken by {owner}")
    tables = dict(plugins.tables())
    for kind, thing in provided:
        tables[kind][thing.name] = thing
    plugins.providers.update(dict.fromkeys(claims, _distribution(entry)))
    return tuple(provides)


def _check_class(thing: Any, base: type[Task | Result]) -> None:
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise PluginError(f"{thing!r} is no subclass of {base.__module__}.{base.__name__}")
    if not re.fullmatch(NAME_PATTERN, thing.name):
        raise PluginError(f"the name {thing.name!r} must be lower-case words joined by hyphens")
    if "__dataclass_fields__" not in vars(thing):
        raise PluginError(f"{thing.__name__} must be decorated with @dataclass(frozen=True)")


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
    metadata = entry.dist.metadata
    return f"{metadata['Name']} {metadata['Version']}"
