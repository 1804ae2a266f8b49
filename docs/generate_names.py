"""Writes what repeats the public names: stubs for editors, and the pages of the reference.

``python docs/generate_names.py`` does so from the list in ``plugins/pathkernel/names.py``, and a
test compares. Classes of tasks, results, analyses and samplers are those of the bundled plugins.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path

import pathkernel_core
from pathkernel import names
from pathkernel_core.contracts.hooks import GROUP, Plugins, load_plugins

ROOT = Path(__file__).resolve().parents[1]
STUBS = ROOT / "plugins" / "pathkernel"
REFERENCE = ROOT / "docs" / "reference"
CLASSES = "Tasks, results, analyses and samplers"
"""Title of the section of the bundled plugins' classes."""

NAMESPACES = {
    "pathkernel": "the theory, studies, live models",
    "pathkernel.plugins": "for authors of plugins: contracts, hooks, checks",
    "pathkernel.views": "tables and charts",
    "pathkernel.heads": "games and orders of heads, on arrays",
    "pathkernel.trained": "trained networks, and their comparison with the theory",
}
INTRODUCTIONS = {
    "Attention, networks and paths": "Eq. :ref:`3 <eq-3>` and :ref:`7 <eq-7>`.",
    "Problems, minimisation and solutions": (
        "Eq. :ref:`11 <eq-11>`, :ref:`9 <eq-9>` and :ref:`30 <eq-30>`. :doc:`/python` is the guide."
    ),
    "Kernels, head scores and accuracy": (
        "Eq. :ref:`10 <eq-10>`, :ref:`13 <eq-13>` and :ref:`33 <eq-33>`."
    ),
    "Learned queries and keys": ":doc:`/learned-attention` is the guide.",
    "Studies and their folders": (
        ":doc:`/data` lists the variables of a dataset, and the files of a folder."
    ),
    "Samples and corrections": (
        'These names need ``pip install ".[sampling]"``. :doc:`/sampling` and '
        ":doc:`/corrections` are the guides."
    ),
    "Live PyTorch models": (
        'These names need ``pip install ".[torch]"``. :doc:`/capture` is the guide.'
    ),
    "From a model to a smaller one": (
        'These names need ``pip install ".[torch]"``. :doc:`/smaller-models` is the guide.'
    ),
    CLASSES: (
        '``pk.run_result(pk.Samples(widths=(10,)), "study")`` computes a result and stores it in\n'
        "the folder of the study. Classes of other installed plugins are names, too."
    ),
    "Contracts of plugins, and their checks": ":doc:`/plugins` is the guide.",
    "Games and orders of heads": "Heads of any network. :doc:`/pruning` is the guide.",
    "Checkpoints and path networks": (
        "Networks of the theory's form. :doc:`/training` and :doc:`/pruning` are the guides."
    ),
    "Training, and images": 'Training needs ``pip install ".[training]"``.',
}
"""First paragraph of a page, by its title."""

Names = dict[str, str]  # the module that defines each
Sections = dict[tuple[str, str], Names]  # by namespace and title


def main() -> None:
    """Write every file, and remove pages of sections that there no longer are."""
    written = generated()
    for file in set(REFERENCE.glob("*.rst")) - set(written):
        file.unlink()
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")


def generated() -> dict[Path, str]:
    """Text of every file that repeats public names."""
    entries = importlib.metadata.entry_points(group=GROUP)
    plugins = load_plugins([entry for entry in entries if entry.dist.name == "pathkernel"])
    sections: Sections = {}
    for namespace, titles in names.PUBLIC.items():
        sections |= {(namespace, title): names.names_of(namespace, title) for title in titles}
        if namespace == "pathkernel":
            sections[namespace, CLASSES] = _classes(plugins)
    files = {REFERENCE / "index.rst": _index(sections)}
    for (namespace, title), modules in sections.items():
        files[REFERENCE / f"{_file_name(title)}.rst"] = _page(namespace, title, modules)
    for namespace in names.PUBLIC:
        module = namespace.partition(".")[2] or "__init__"
        files[STUBS / f"{module}.pyi"] = _stub(namespace, sections)
    of_core = sorted((module, name) for name, module in pathkernel_core.MODULES.items())
    lines = [line for module, name in of_core for line in _import(module, name)]
    lines += ["", "MODULES: dict[str, str]", "__all__: list[str]"]
    files[ROOT / "pathkernel_core" / "__init__.pyi"] = _with_heading("pathkernel_core", lines)
    return files


def _classes(plugins: Plugins) -> Names:
    """Classes of plugins by kind, each in the order of their registration."""
    kinds = (plugins.tasks, plugins.results, plugins.analyses, plugins.samplers)
    provided = [one for kind in kinds for one in kind.values()]
    classes = [one if isinstance(one, type) else type(one) for one in provided]
    return {one.__name__: one.__module__ for one in classes}


def _stub(namespace: str, sections: Sections) -> str:
    own = [modules for (place, _), modules in sections.items() if place == namespace]
    imports = sorted((module, name) for modules in own for name, module in modules.items())
    lines = [line for module, name in imports for line in _import(module, name)]
    if namespace == "pathkernel":
        inner = sorted(name.rpartition(".")[2] for name in names.PUBLIC if name != namespace)
        lines[:0] = ["from typing import Any", ""]
        lines[2:2] = [f"from pathkernel import {name} as {name}" for name in inner]
        lines += ["", "__version__: str", ""]
        lines += ["def __getattr__(name: str) -> Any: ...  # classes of other plugins"]
    return _with_heading(namespace, lines)


def _with_heading(namespace: str, lines: Sequence[str]) -> str:
    heading = f'"""Names of ``{namespace}`` for editors, by docs/generate_names.py."""'
    return "\n".join([heading, "", *lines, ""])


def _import(module: str, name: str) -> list[str]:
    """Import of a name that the stub exports, as ruff formats it."""
    exported = f"{name} as {name}"
    line = f"from {module} import {exported}"
    return [line] if len(line) <= 100 else [f"from {module} import (", f"    {exported},", ")"]


def _index(sections: Sections) -> str:
    lines = [
        *_heading("Reference", "="),
        "Every name of ``import pathkernel as pk`` and of its namespaces, with the numbers of its",
        ":doc:`equations </equations>`. Classes of other installed plugins are names of it, too.",
        ":doc:`/python` says when ``pathkernel_core`` suffices.",
        *("", ".. toctree::", "   :hidden:", ""),
        *(f"   {_file_name(title)}" for _, title in sections),
    ]
    for namespace, meaning in NAMESPACES.items():
        lines += ["", *_heading(f"``{namespace}``: {meaning}", "-")[:-1]]
        for (place, title), modules in sections.items():
            if place == namespace:
                lines += ["", *_heading(title, "~")]
                lines += [f":doc:`Details <{_file_name(title)}>`", "", ".. autosummary::"]
                lines += ["   :nosignatures:", ""]
                lines += [f"   ~{namespace}.{name}" for name in modules]
    return "\n".join([*lines, ""])


def _page(namespace: str, title: str, modules: Names) -> str:
    lines = _heading(title, "=")
    lines += [INTRODUCTIONS[title], ""] if title in INTRODUCTIONS else []
    for name, module in modules.items():
        lines += [*_directive(f"{namespace}.{name}", _definition(module, name)), ""]
    if "pathkernel_core.contracts.hooks" in modules.values():
        lines += [*_heading("Hooks", "-"), *_hooks()]
    return "\n".join(lines).rstrip() + "\n"


def _hooks() -> list[str]:
    """Directives of the hooks, whose implementations ``hookimpl`` marks."""
    module = "pathkernel_core.contracts.hooks"
    functions = [node.name for node in _statements(module) if isinstance(node, ast.FunctionDef)]
    specified = [name for name in functions if name.startswith("pathkernel_")]
    return [line for name in specified for line in (f".. autofunction:: {module}.{name}", "")]


def _directive(name: str, node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [f".. autofunction:: {name}"]
    if not isinstance(node, ast.ClassDef):
        return [f".. autodata:: {name}", "   :no-value:"]
    bases = [ast.unparse(base) for base in node.bases]
    if any(re.search("(Error|Warning|Exception)$", base) for base in bases):
        return [f".. autoexception:: {name}"]
    without_docstrings = ["   :undoc-members:"] if any("Enum" in base for base in bases) else []
    return [f".. autoclass:: {name}", "   :members:", *without_docstrings]


def _definition(module: str, name: str) -> ast.stmt:
    """Return the statement that defines a name, without an import, which may need an extra."""
    for node in _statements(module):
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if any(name in (getattr(one, "name", ""), getattr(one, "id", "")) for one in targets):
            return node
    raise LookupError(f"{module} defines no {name}: correct plugins/pathkernel/names.py")


def _statements(module: str) -> list[ast.stmt]:
    path = Path(*module.split("."))
    places = [ROOT / folder / path for folder in (".", "datasets", "plugins")]
    files = [place.with_suffix(".py") for place in places] + [at / "__init__.py" for at in places]
    (file,) = (file for file in files if file.is_file())
    return ast.parse(file.read_text(encoding="utf-8")).body


def _heading(title: str, line: str) -> list[str]:
    return [title, line * len(title), ""]


def _file_name(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


if __name__ == "__main__":
    main()
