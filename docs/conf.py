"""Settings of the documentation site; ``nox -s docs`` builds and checks it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pydoc
import re
from pathlib import Path

import sphinx.ext.autosummary
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from pathkernel.names import PUBLIC

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

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = os.environ.get("PATHKERNEL_NOTEBOOKS", "")
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say more: shapes, units, ranges
numpydoc_show_class_members = False  # autodoc shows them
nitpick_ignore_regex = [("py:.*", r"(?!pathkernel).*|.*\._.*")]  # other projects, and private names

html_theme = "furo"
html_title = f"pathkernel {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # browsers draw it: no script, no network
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
copybutton_exclude = ".linenos, .gp, .go"
linkcheck_ignore = ["https?://"]  # listed in output.txt

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {  # pages of the site whose sources are elsewhere in the repository
    "changes": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "benchmarks": ROOT / "benchmarks" / "README.md",
}
logger = logging.getLogger(__name__)
_EQUATION = re.compile(r"\bEq\. (\d+(?:(?:, | and |[-–])\d+)*)")
_LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#|<)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
_WIDE = re.compile('<div(?= class="(?:table-wrapper|output text_html))|<pre|<dt(?= class="sig )')
_BREAK = re.compile(r"(?<=[_./])(?=\w)|(?<=[a-z])(?=[A-Z])")
_NAME = re.compile(r"pathkernel(?:_\w+)?(?:\.(?!json\b)\w+)+")


def setup(app: Sphinx) -> None:
    """Draw mathematics as MathML, and link equations and names to their sections."""
    sphinx.ext.autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.",)
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _list_options, priority=100)  # before numpydoc
    app.connect("autodoc-process-docstring", _mark_up)
    app.connect("autodoc-skip-member", _skip_aliases)
    app.connect("doctree-read", _label_equations)
    app.connect("doctree-read", _link_names)
    app.connect("missing-reference", _resolve)
    app.connect("html-page-context", _finish_page, priority=900)  # after the theme


def _inline(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Read a page from its source, and point its links to pages of the site."""
    file = Path(app.env.doc2path(name))
    if file.suffix != ".md":
        return
    if name in OUTSIDE:
        file = OUTSIDE[name]
        source[0] = file.read_text(encoding="utf-8")
        app.env.note_dependency(str(file))
    pages = {outside: ROOT / "docs" / f"{page}.md" for page, outside in OUTSIDE.items()}

    def site_link(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        text = "" if text.endswith(".md") else text  # empty: the title of the page
        target = (file.parent / path).resolve()
        target = pages.get(target / "README.md" if target.is_dir() else target, target)
        if not target.is_relative_to(ROOT / "docs"):
            return f"`{target.relative_to(ROOT)}`"  # not on the site
        path = os.path.relpath(target, Path(app.env.doc2path(name)).parent)
        return f"[{text}]({path}{anchor})"

    source[0] = _LINK.sub(site_link, source[0])


def _label_equations(app: Sphinx, doctree: nodes.document) -> None:
    """Define the label ``eq-7`` for the section of equations.md whose heading begins with Eq. 7."""
    if app.env.docname != "equations":
        return
    domain = app.env.domains.standard_domain
    for section in doctree.findall(nodes.section):
        heading = section[0].astext()
        if equation := _EQUATION.match(heading):
            for number in re.findall(r"\d+", equation[1]):
                domain.labels[f"eq-{number}"] = ("equations", section["ids"][0], heading)
                domain.anonlabels[f"eq-{number}"] = ("equations", section["ids"][0])


def _skip_aliases(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """Leave out aliases such as ``tuple[int, int]``, which have no signature."""
    return True if getattr(thing, "__origin__", None) in (tuple, dict) else None


def _list_options(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Add the options of a task or a result to its docstring, with their help texts."""
    if what != "class" or not dataclasses.is_dataclass(thing) or "Parameters" in lines:
        return
    if declared := [field for field in dataclasses.fields(thing) if "help" in field.metadata]:
        lines += ["", "Parameters", "----------"]
        for field in declared:
            description = re.sub(r"(?<!\w)(--[\w-]+)", r"``\1``", field.metadata["help"])
            lines += [f"{field.name} : {field.type}", f"    {description}"]


def _mark_up(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Link the equations that a docstring cites, and print |x| as it is."""

    def linked(equation: re.Match[str]) -> str:
        return "Eq. " + re.sub(r"(\d+)", r":ref:`\1 <eq-\1>`", equation[1])

    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            line = re.sub(r"(``.*?``)|\|", lambda match: match[1] or r"\|", line)
            lines[number] = _EQUATION.sub(linked, line)


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Link names such as ``pathkernel.Network`` to the reference."""
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().removesuffix("()")
        if not _NAME.fullmatch(name) or isinstance(literal.parent, nodes.reference | pending_xref):
            continue
        if pydoc.locate(name) is None:
            logger.warning("there is no %s", name, location=literal)
            continue
        link = pending_xref("", refdomain="py", reftype="obj", reftarget=name)
        link["refdoc"], link["refexplicit"] = app.env.docname, True
        literal.replace_self(link)
        link += literal


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element
) -> nodes.Element | None:
    """Resolve a name such as ``pathkernel_core.contracts.task.Task``; internals stay text."""
    if node.get("refdomain") != "py" or (target := pydoc.locate(node["reftarget"])) is None:
        return None
    target = getattr(target, "fget", target)  # of a property
    name, python = getattr(target, "__qualname__", ""), env.domains.python_domain
    for module in (*PUBLIC, getattr(target, "__module__", "")):  # the reference's names first
        place = (env, node["refdoc"], app.builder, "obj", f"{module}.{name}")
        if link := python.resolve_xref(*place, node, text):
            return link
    return text


def _finish_page(
    app: Sphinx, name: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Let the keyboard scroll wide elements; break names between words, and options nowhere."""
    if body := context.get("body"):
        body = _WIDE.sub(r'\g<0> tabindex="0"', body)
        body = _CODE.sub(lambda code: _BREAK.sub("<wbr>", code[0]), body)
        context["body"] = body.replace('<span class="pre">--', '<span class="pre option">--')
    if tree := context.get("furo_navigation_tree"):
        level = 'role="heading" aria-level="2"'
        context["furo_navigation_tree"] = tree.replace('role="heading"', level)
