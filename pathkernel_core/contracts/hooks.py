"""Hooks of plugins, and the loading of plugins.

A plugin is a module or object named by an entry point of the group ``pathkernel``:

    [project.entry-points.pathkernel]
    my-tasks = "my_package.plugin"

Its functions marked with :data:`hookimpl` return tasks, samplers, analyses, results or commands.
Pathkernel registers its own in the same way.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy

from pathkernel_core.contracts.analysis import Analysis
from pathkernel_core.contracts.options import NAME_PATTERN
from pathkernel_core.contracts.result import Result
from pathkernel_core.contracts.sampler import Sampler
from pathkernel_core.contracts.task import Task
from pathkernel_core.system.errors import PathkernelError

GROUP = "pathkernel"

hookspec = pluggy.HookspecMarker("pathkernel")
hookimpl = pluggy.HookimplMarker("pathkernel")


@hookspec
def pathkernel_tasks() -> Iterable[type[Task]]:
    """Return Task subclasses, each of which ``pathkernel run NAME`` runs."""


@hookspec
def pathkernel_samplers() -> Iterable[Sampler]:
    """Return samplers of the posterior, objects of the Sampler protocol."""


@hookspec
def pathkernel_analyses() -> Iterable[Analysis]:
    """Return Analysis objects, each of which adds variables to every dataset."""


@hookspec
def pathkernel_results() -> Iterable[type[Result]]:
    """Return Result subclasses, each a command whose data is shown with the study."""


@hookspec
def pathkernel_commands() -> Iterable[Any]:
    """Return click commands for the command line ``pathkernel``."""


class UnknownNameError(PathkernelError, LookupError):
    """No plugin provides an object of this name."""

    def __str__(self) -> str:
        return str(self.args[0])


class PluginError(PathkernelError, RuntimeError):
    """A plugin could not be loaded, in strict mode."""


@dataclass(frozen=True)
class LoadedPlugin:
    """An installed plugin.

    Attributes
    ----------
    name : str
        Name of the entry point.
    distribution : str
        Name and version of its distribution.
    provides : tuple of str
        Registered objects, such as ``"task hidden-markov"``.
    error : str
        Reason why it was skipped; empty if it loaded.
    """

    name: str
    distribution: str
    provides: tuple[str, ...] = ()
    error: str = ""


@dataclass
class Plugins:
    """Objects that the installed plugins provide, by name."""

    tasks: dict[str, type[Task]] = field(default_factory=dict)
    samplers: dict[str, Sampler] = field(default_factory=dict)
    analyses: dict[str, Analysis] = field(default_factory=dict)
    results: dict[str, type[Result]] = field(default_factory=dict)
    commands: dict[str, Any] = field(default_factory=dict)
    loaded: list[LoadedPlugin] = field(default_factory=list)
    providers: dict[str, str] = field(default_factory=dict)
    """Distribution of each object, such as ``"task parity"``; results are commands, too."""

    def tables(self) -> list[tuple[str, dict[str, Any]]]:
        """Kinds of objects, each with its objects by name."""
        return [
            ("task", self.tasks),
            ("sampler", self.samplers),
            ("analysis", self.analyses),
            ("result", self.results),
            ("command", self.commands),
        ]

    def task(self, name: str) -> type[Task]:
        """Task class of this name; UnknownNameError if there is none."""
        if name in self.tasks:
            return self.tasks[name]
        raise UnknownNameError(unknown_name("task", name, self.tasks) + self.failures())

    def failures(self) -> str:
        """Sentence on the plugins that were skipped, to end a message; empty if there are none."""
        failures = [f"{entry.name}: {entry.error}" for entry in self.loaded if entry.error]
        return f". Plugins that failed to load: {'; '.join(failures)}" if failures else ""

    def classes(self) -> dict[str, dict[type, str]]:
        """Classes of tasks, results, samplers and analyses by name, with their distributions."""
        classes: dict[str, dict[type, str]] = {}
        for kind, table in self.tables():
            for name, value in table.items() if kind != "command" else ():
                # tasks and results are registered as classes, the others as objects
                provided = value if isinstance(value, type) else type(value)
                provider = self.providers[f"{kind} {name}"]
                classes.setdefault(provided.__name__, {})[provided] = provider
        return classes

    def class_named(self, name: str) -> type:
        """Class that plugins provide under this name; PluginError if there are several."""
        provided, *others = self.classes()[name].items()
        if others:
            listed = " and ".join(
                f"{provider} ({class_.__module__})" for class_, provider in [provided, *others]
            )
            raise PluginError(
                f"several plugins provide a class {name!r}: {listed}; import it from its module"
            )
        return provided[0]


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> str:
    """Message for an unknown name, with the nearest of the choices as a suggestion."""
    choices = sorted(choices)
    nearest = difflib.get_close_matches(name, choices, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"there is no {kind} named {name!r}.{hint} Known: {', '.join(choices) or 'none'}"


def load_plugins(
    entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
    *,
    strict: bool | None = None,
) -> Plugins:
    """Load and register plugins.

    What a plugin prints meanwhile goes to stderr: stdout may be a document for other programs.

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
    for entry in sorted(entry_points, key=_precedence):
        provides, reason = (), ""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                provides = _register(plugins, entry)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a broken plugin must not disable the others, nor end them
            reason = f"{type(error).__name__}: {error}"
            if strict:
                raise PluginError(f"plugin {entry.name} ({entry.value}): {reason}") from error
        plugins.loaded.append(LoadedPlugin(entry.name, _distribution(entry), provides, reason))
    return plugins


def _register(plugins: Plugins, entry: importlib.metadata.EntryPoint) -> tuple[str, ...]:
    """Add all objects of a plugin, or none if one of them cannot be added."""
    # a manager for each plugin: results of a common one would not say whose they are, and a plugin
    # that fails would stay registered
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(sys.modules[__name__])
    manager.register(entry.load(), name=entry.name)
    manager.check_pending()
    provided = [
        (kind, value)
        for kind, hook in _HOOKS.items()
        for values in getattr(manager.hook, hook)()
        for value in _listed(kind, values)
    ]
    if not provided:
        raise PluginError("it provides nothing; mark its hook functions with hookimpl")
    for kind, value in provided:
        if kind in _BASES:
            _check_class(value, _BASES[kind])
        elif isinstance(value, type):
            raise PluginError(
                f"{_HOOKS[kind]} gives the class {value.__name__}, but must give objects; return "
                f"[{value.__name__}()]"
            )
    # all names are claimed before the first object is added, so that a clash adds none of them
    provides = [f"{kind} {value.name}" for kind, value in provided]
    claims = provides + [f"command {value.command}" for kind, value in provided if kind == "result"]
    for number, claim in enumerate(claims):
        if claim in plugins.providers or claim in claims[:number]:
            kind, _, name = claim.partition(" ")
            owner = plugins.providers.get(claim, "itself")
            raise PluginError(f"the {kind} name {name!r} is already taken by {owner}")
    tables = dict(plugins.tables())
    for kind, value in provided:
        tables[kind][value.name] = value
    plugins.providers.update(dict.fromkeys(claims, _distribution(entry)))
    return tuple(provides)


_HOOKS = {
    "task": "pathkernel_tasks",
    "sampler": "pathkernel_samplers",
    "analysis": "pathkernel_analyses",
    "result": "pathkernel_results",
    "command": "pathkernel_commands",
}
_BASES: dict[str, type] = {"task": Task, "result": Result}


def _listed(kind: str, values: Any) -> list[Any]:
    """Values of a hook function, which returns several."""
    if isinstance(values, type):
        name = values.__name__
        remedy = f"[{name}]" if kind in _BASES else f"[{name}()]"
        raise PluginError(
            f"{_HOOKS[kind]} must return a list, but returned the class {name}; return {remedy}"
        )
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PluginError(
            f"{_HOOKS[kind]} must return a list, but returned one {type(values).__name__}; put it "
            "into a list"
        )
    return list(values)


def _check_class(value: Any, base: type) -> None:
    if not (isinstance(value, type) and issubclass(value, base)):
        raise PluginError(f"{value!r} is no subclass of {base.__module__}.{base.__name__}")
    if not re.fullmatch(NAME_PATTERN, value.name):  # type: ignore[attr-defined]
        raise PluginError(f"the name {value.name!r} must be lower-case words joined by hyphens")  # type: ignore[attr-defined]
    if "__dataclass_fields__" not in vars(value):
        raise PluginError(f"{value.__name__} must be decorated with @dataclass(frozen=True)")


def _precedence(entry: importlib.metadata.EntryPoint) -> tuple[bool, str]:
    """Sorting key: pathkernel's own plugins first, then by name of the distribution."""
    distribution = _distribution(entry)
    return not distribution.startswith("pathkernel "), distribution


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    if entry.dist is None:
        return "unknown"
    metadata = entry.dist.metadata
    return f"{metadata['Name']} {metadata['Version']}"
