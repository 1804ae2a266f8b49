"""The command group, and the messages of errors."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import io
import logging
import os
import platform
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pathkernel.commands.groups import SuggestingGroup
from pathkernel.commands.output import INTERRUPTED, say
from pathkernel.commands.result import check_result_names, result_command
from pathkernel.commands.run import check_task_names
from pathkernel.jax_settings import described_flags
from pathkernel_core.contracts.hooks import PluginError, Plugins, load_plugins
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.text import shorten_message
from pathkernel_datasets.errors import StudyWarning

_LIBRARIES = (  # of which reports of defects give the versions
    "numpy",
    "scipy",
    "xarray",
    "zarr",
    "altair",
    "jax",
    "jaxlib",
    "blackjax",
    "arviz-stats",
    "torch",
    "transformers",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: _print_version(context) if asked else None,
    help="Show the version, those of the libraries, and flags of JAX's compiler.",
)
@click.option("--traceback", is_flag=True, help="Show where in the code an error was raised.")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning")),
    default="warning",
    show_default=True,
    help="Least level of the log messages on stderr.",
)
@click.pass_context
def pathkernel(context: click.Context, traceback: bool, log_level: str) -> None:
    """Compute how a trained network of finite width combines its attention paths.

    Statistical mechanics of multi-head attention networks: predictions of the trained network from
    data and fixed queries and keys, and their gain over the infinite-width limit.
    """
    logger, handler = logging.getLogger("pathkernel"), _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    context.call_on_close(lambda: logger.removeHandler(handler))
    context.call_on_close(lambda level=logger.level: logger.setLevel(level))
    logger.setLevel(log_level.upper())


def _print_version(context: click.Context) -> None:
    click.echo(f"pathkernel, version {importlib.metadata.version('pathkernel')}")
    versions = [f"Python {platform.python_version()}"]
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    click.echo(textwrap.fill(", ".join(versions), 100))
    if importlib.util.find_spec("jaxlib"):
        click.echo(described_flags())
    context.exit()


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), err=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("always", StudyWarning)
        show, said = warnings.showwarning, set()

        def show_once(message: Any, category: Any, *where: Any, **further: Any) -> None:
            if category is not StudyWarning:
                show(message, category, *where, **further)
            elif str(message) not in said:
                said.add(str(message))
                say(f"Warning: {message}", err=True, wrap=True)

        warnings.showwarning = show_once
        status = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError:  # the end of the process would flush it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    try:
        plugins = load_plugins()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by pathkernel.start
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for entry in plugins.loaded:
            if entry.error:
                source = f"{entry.name} of {entry.distribution}"
                say(f"Warning: plugin {source} is skipped: {entry.error}", err=True, wrap=True)
        group = _with_commands(plugins)
        group.main(arguments, prog_name="pathkernel", standalone_mode=False, obj=plugins)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        say("Interrupted.", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.message = shorten_message(error.message)
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except BrokenPipeError:  # nobody reads stdout any more, as with `| head`
        return 1
    except Exception as error:
        if "--traceback" in arguments:
            say(traceback.format_exc(), err=True)
        say(f"Error: {shorten_message(_message(error))}", err=True)
        return 1
    return 0


def _message(error: Exception) -> str:
    """One line: cause and remedy."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"no space left on the disk ({error}). All that is computed so far is saved: free some "
            "space and run the same command again to resume"
        )
    if isinstance(error, MemoryError):
        return f"not enough memory ({error}); take fewer examples, heads or layers"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    if str(error).startswith("Stored and computed checksum do not match"):  # by Zarr
        return "a file of the study is damaged; `pathkernel check` names it, and the remedy"
    if isinstance(error, (PathkernelError, OSError, ValueError)):
        return str(error)
    if isinstance(error, KeyError) and "No variable named" in str(error):  # by xarray
        return (
            f"the study lacks a variable, which another program may have dropped: {error.args[0]}"
        )
    if isinstance(error, ImportError):
        return f"a package cannot be imported ({error}); install pathkernel and its extras again"
    return (
        f"unexpected {type(error).__name__}: {error}. A damaged file or a defect; "
        "`pathkernel --traceback …` shows where"
    )


class _Commands(SuggestingGroup):
    """Commands of plugins, and of their results, made when one is used."""

    def __init__(self, results: Mapping[str, type[Result]], **settings: Any):
        super().__init__(**settings)
        self.results = results

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted([*self.commands, *self.results])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Command of a plugin, or of a result."""
        result = self.results.get(name)
        return super().get_command(ctx, name) if result is None else result_command(result)


def _with_commands(plugins: Plugins) -> click.Group:
    for name, task in list(plugins.tasks.items()):
        try:
            check_task_names(task)
        except PluginError as error:
            del plugins.tasks[name]
            owner = plugins.providers[f"task {name}"]
            say(f"Warning: the task {name} of {owner} is skipped: {error}", err=True)
    results = {}
    for result in plugins.results.values():
        try:
            check_result_names(result)
            results[result.command] = result
        except PluginError as error:
            say(f"Warning: the result {result.name} has no command: {error}", err=True)
    return _Commands(
        results,
        name=pathkernel.name,
        callback=pathkernel.callback,
        params=pathkernel.params,
        help=pathkernel.help,
        context_settings=pathkernel.context_settings,
        commands=dict(plugins.commands),
    )
