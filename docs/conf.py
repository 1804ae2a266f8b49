"""Settings of the documentation site; ``nox -s docs`` builds and checks it."""

from __future__ import annotations

import importlib.metadata
import os
import pydoc
import re
import types
from pathlib import Path

import sphinx.ext.autosummary
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

project = "pathkernel"
author = project_copyright = "The pathkernel authors"
release = importlib.metadata.version("pathkernel")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "jupyter_execute"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = os.environ.get("PATHKERNEL_NOTEBOOKS", "")  # kept between builds
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say more: shapes, units, ranges
numpydoc_show_class_members = False  # autodoc shows them
add_module_names = False
nitpick_ignore_regex = [("py:.*", r"(?!pathkernel).*|.*\._.*")]  # of others, and private

html_theme = "furo"  # dark mode, phones and wide tables without any setting of ours
html_title = f"pathkernel {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # browsers draw it: no script, no network
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
copybutton_exclude = ".linenos, .gp, .go"
linkcheck_ignore = ["https?://"]  # those are listed, in output.txt

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {  # pages of the site that stand elsewhere in the repository
    "changes": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "benchmarks": ROOT / "benchmarks" / "README.md",
}
logger = logging.getLogger(__name__)
_EQUATION = re.compile(r"\bEq\. (\d+(?:(?:, | and |[-–])\d+)*)")
_LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#|<)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
_WIDE = re.compile('<div(?= class="(?:table-wrapper|output text_html))|<pre')
_BREAK = re.compile(r"(?<=[_./])(?=\w)|(?<=[a-z])(?=[A-Z])")
_NAME = re.compile(r"pathkernel(?:_\w+)?(?:\.\w+)+")


def setup(app: Sphinx) -> None:
    """Add how mathematics is drawn, and links to equations and from names to the reference."""
    sphinx.ext.autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.",)
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _mark_up)
    app.connect("autodoc-skip-member", _skip_aliases)
    app.connect("doctree-read", _label_equations)
    app.connect("doctree-read", _link_names)
    app.connect("missing-reference", _by_another_name)
    app.connect("html-page-context", _finish_page, priority=900)  # after the theme


def _inline(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Take pages from where they stand, and lead links between them to the pages of the site."""
    at = Path(app.env.doc2path(name))
    if at.suffix != ".md":
        return
    if name in OUTSIDE:
        at = OUTSIDE[name]
        source[0] = at.read_text(encoding="utf-8")
        app.env.note_dependency(str(at))
    pages = {file: ROOT / "docs" / f"{page}.md" for page, file in OUTSIDE.items()}

    def led(found: re.Match[str]) -> str:
        words, path, place = found[1], found[2], found[3] or ""
        words = "" if words.endswith(".md") else words  # then it is the title of the page
        target = (at.parent / path).resolve()
        target = pages.get(target / "README.md" if target.is_dir() else target, target)
        if not target.is_relative_to(ROOT / "docs"):
            return f"`{target.relative_to(ROOT)}`"  # a file of the repository alone
        path = os.path.relpath(target, Path(app.env.doc2path(name)).parent)
        return f"[{words}]({path}{place})"

    source[0] = _LINK.sub(led, source[0])


def _label_equations(app: Sphinx, doctree: nodes.document) -> None:
    """Let ``:ref:`eq-7``` lead to the section of equations.md whose heading begins with Eq. 7."""
    if app.env.docname != "equations":
        return
    domain = app.env.domains.standard_domain
    for section in doctree.findall(nodes.section):
        heading = section[0].astext()
        if found := _EQUATION.match(heading):
            for number in re.findall(r"\d+", found[1]):
                domain.labels[f"eq-{number}"] = ("equations", section["ids"][0], heading)
                domain.anonlabels[f"eq-{number}"] = ("equations", section["ids"][0])


def _skip_aliases(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """Leave out names of types such as ``tuple[int, int]``, which have no signature."""
    return True if getattr(thing, "__origin__", None) in (tuple, dict) else None


def _mark_up(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Link the equations that a docstring names, and let |x| be an absolute value."""

    def linked(found: re.Match[str]) -> str:
        return "Eq. " + re.sub(r"(\d+)", r":ref:`\1 <eq-\1>`", found[1])

    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            line = re.sub(r"(``.*?``)|\|", lambda found: found[1] or r"\|", line)
            lines[number] = _EQUATION.sub(linked, line)


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Make links to the reference of names such as ``pathkernel_core.task.Task``."""
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().removesuffix("()")
        if not _NAME.fullmatch(name) or isinstance(literal.parent, nodes.reference | pending_xref):
            continue
        found = pydoc.locate(name)
        if found is None:
            logger.warning("there is no %s", name, location=literal)
            continue
        if isinstance(found, types.ModuleType):
            target = found.__name__
        elif getattr(found, "__doc__", None) and hasattr(found, "__qualname__"):
            target = f"{found.__module__}.{found.__qualname__}"
        else:
            continue  # a constant: the reference has none
        if re.search(r"\b_|^pathkernel(\.|$)", target):
            continue  # private, or the command line's own
        link = pending_xref("", refdomain="py", reftype="obj", reftarget=target)
        link["refdoc"], link["refexplicit"] = app.env.docname, True
        literal.replace_self(link)
        link += literal


def _by_another_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, words: nodes.Element
) -> nodes.Element | None:
    """Find what a package has from one of its modules, such as ``pathkernel_core.Network``."""
    found = pydoc.locate(node["reftarget"]) if node.get("refdomain") == "py" else None
    found = getattr(found, "fget", found)  # of a property
    if not hasattr(found, "__qualname__"):
        return None
    target, python = f"{found.__module__}.{found.__qualname__}", env.domains.python_domain
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, words)


def _finish_page(
    app: Sphinx, name: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Let the keyboard scroll what is wide, names break between words, and options not at all."""
    if body := context.get("body"):
        body = _WIDE.sub(r'\g<0> tabindex="0"', body)
        body = _CODE.sub(lambda code: _BREAK.sub("<wbr>", code[0]), body)
        context["body"] = body.replace('<span class="pre">--', '<span class="pre option">--')
    if tree := context.get("furo_navigation_tree"):
        level = 'role="heading" aria-level="2"'
        context["furo_navigation_tree"] = tree.replace('role="heading"', level)
