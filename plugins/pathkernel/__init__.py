"""Statistical mechanics of attention paths: every documented name, imported when first used.

>>> import pathkernel as pk
>>> network = pk.Network(heads=(2, 2), widths=10)

Here are the theory, studies, live models, and the classes of all tasks, results, samplers and
analyses of the installed plugins. ``pk.plugins`` is for authors of plugins, ``pk.views`` has tables
and charts, ``pk.heads`` games and orders of heads, ``pk.trained`` trained networks.
"""

from __future__ import annotations

import importlib

from pathkernel import names

TYPE_CHECKING = False
if TYPE_CHECKING:  # of typing, whose import takes longer than this module's
    from pathkernel_core.contracts.hooks import Plugins


def __getattr__(name: str) -> object:
    """Import a name at its first use.

    Raises
    ------
    AttributeError
        If there is no such name; the message says where it is, or suggests one.
    PluginError
        If plugins provide different classes of this name.
    MissingExtraError
        If its module needs an extra that is not installed.
    """
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("pathkernel")
    if f"{__name__}.{name}" in names.PUBLIC:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("_") or names.module_of(__name__, name):
        return names.imported(__name__, name)
    plugins = _plugins()
    if name in plugins.classes():
        provided = plugins.class_named(name)
        # a plugin that uses this name while it is imported has failed for now, and may have a clash
        if not plugins.failures():
            globals()[name] = provided
        return provided
    hint = names.suggestion(__name__, name, __dir__())
    raise AttributeError(f"module 'pathkernel' has no attribute {name!r}{hint}{plugins.failures()}")


def __dir__() -> list[str]:
    namespaces = [name.rpartition(".")[2] for name in names.PUBLIC if name != __name__]
    return sorted({*namespaces, *names.listed_names(__name__), *_plugins().classes()})


def _plugins() -> Plugins:
    # in strict mode, one that fails would take away the names of all others
    return importlib.import_module("pathkernel_core.contracts.hooks").load_plugins(strict=False)
