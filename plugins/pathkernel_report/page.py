"""The page: sections of tables, charts and figures, in HTML that trusts no text of a store."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from rich.table import Table

from pathkernel_core.text import printable
from pathkernel_report.payload import chart_payload, embedded_json
from pathkernel_report.vega import javascript
from pathkernel_views.chart import Chart
from pathkernel_views.drawing import STYLE
from pathkernel_views.table_data import TableData, csv_text, plain_text

GENERATOR = '<meta name="generator" content="pathkernel">'
"""In the head of every page: it tells a report from other pages."""

_LARGE = 150_000  # bytes of a vector image, from which on dots take less


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn, with its name."""

    name: str
    figure: Figure


@dataclass
class Section:
    """A part of the page, with what it shows: charts, drawings, tables of rich, and text."""

    heading: str
    views: list[Any] = field(default_factory=list)


class Page:
    """One HTML file that needs nothing else and lets nothing in or out.

    Parameters
    ----------
    title, subtitle : str
    """

    def __init__(self, title: str, subtitle: str):
        self._title, self._subtitle = title, subtitle
        self._charts: list[dict[str, Any]] = []
        self._tables: list[str] = []
        self._ids: set[str] = set()

    def html(self, sections: Sequence[Section]) -> str:
        """The page of these sections.

        Raises
        ------
        MissingExtraError
            If the extra ``report`` is not installed.
        """
        parts = [self._section(section) for section in sections]
        own = (files(__package__) / "report.js").read_text("utf-8")
        scripts = [javascript().replace("</script", "<\\/script"), own]
        hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
        # nothing is fetched or sent, and no script runs but these two
        policy = (
            f"default-src 'none'; script-src {hashes}; "
            "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
        )
        style = (files(__package__) / "report.css").read_text("utf-8")
        links = "".join(
            f'<li><a href="#{anchor}">{_text(section.heading)}</a></li>'
            for section, (anchor, _) in zip(sections, parts)
        )
        data = embedded_json({"charts": self._charts, "tables": self._tables})
        vega, ours = scripts
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{GENERATOR}
<link rel="icon" href="data:,">
<title>{_text(self._title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">To the content</a>
<div class="frame">
<header>
<div><h1>{_text(self._title)}</h1><p>{_text(self._subtitle)}</p></div>
<button id="theme" type="button" aria-pressed="false" hidden>Dark mode</button>
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="main">
<noscript><p class="card">Charts need JavaScript, which this page brings along.</p></noscript>
{"".join(markup for _, markup in parts)}
</main>
</div>
<script type="application/json" id="data">{data}</script>
<script>{vega}</script>
<script>{ours}</script>
</body>
</html>
"""

    def _section(self, section: Section) -> tuple[str, str]:
        anchor = self._anchor(section.heading)
        views = "".join(map(self._view, section.views))
        head = f'<h2 id="{anchor}">{_text(section.heading)}</h2>'
        body = f'{head}<div class="views">{views}</div>'
        return anchor, f'<section aria-labelledby="{anchor}">{body}</section>\n'

    def _view(self, view: Any) -> str:
        if isinstance(view, Facts):
            return view.html()
        if isinstance(view, (Chart, Drawing)):
            chart = isinstance(view, Chart)
            try:
                return self._chart(view) if chart else self._drawing(view)
            except Exception as error:  # whatever a stranger's raises, the others must be seen
                view = not_drawn(view.title if chart else view.name, error)
        if isinstance(view, Table):
            return self._table(view)
        if isinstance(view, str):
            return f'<p class="note">{_text(view)}</p>'
        return f'<div class="card"><pre>{_text(plain_text(view))}</pre></div>'

    def _chart(self, chart: Chart) -> str:
        anchor = self._anchor(chart.title)
        self._charts.append(chart_payload(chart))
        half = ' class="half"' * (chart.mark in ("heatmap", "paths") and not chart.panel)
        return (
            f'<figure{half} aria-labelledby="{anchor}" data-chart="{len(self._charts) - 1}" '
            f'data-name="{anchor}"><h3 id="{anchor}">{_text(chart.title)}</h3>'
            f'<p class="about">{_text(chart.about)}</p></figure>'
        )

    def _drawing(self, drawing: Drawing) -> str:
        anchor = self._anchor(drawing.name)
        words = drawing.name.rpartition("/")[2].replace("_", " ")
        title = drawing.figure.get_suptitle() or words
        return (
            f'<figure aria-labelledby="{anchor}"><h3 id="{anchor}">{_text(words.capitalize())}</h3>'
            f'<img alt="{_text(title)}" src="{_image(drawing.figure)}"></figure>'
        )

    def _table(self, table: Table) -> str:
        title = plain_text(table.title) or "Table"
        anchor = self._anchor(title)
        headings = [plain_text(column.header) for column in table.columns]
        rows = list(zip(*(map(plain_text, column.cells) for column in table.columns)))
        numeric = [column.justify == "right" for column in table.columns]
        self._tables.append(_csv(table))
        style = [' class="number"' if right else "" for right in numeric]
        head = "".join(f'<th scope="col"{own}>{_text(t)}</th>' for t, own in zip(headings, style))
        body = "".join(
            "<tr>" + "".join(f"<td{own}>{_text(t)}</td>" for t, own in zip(row, style)) + "</tr>"
            for row in rows
        )
        caption = plain_text(table.caption)
        note = f'<p class="note">{_text(caption)}</p>' if caption else ""
        return (
            f'<div class="card"><div class="title"><h3 id="{anchor}">{_text(title)}</h3>'
            f'<button type="button" hidden data-table="{len(self._tables) - 1}" '
            f'data-name="{anchor}" aria-label="Download CSV of {_text(title)}">'
            "Download CSV</button>"
            f'</div><div class="scroll" role="group" tabindex="0" aria-labelledby="{anchor}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</div>"
        )

    def _anchor(self, words: str) -> str:
        """An id that nothing else in the page has."""
        plain = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60] or "part"
        name, count = plain, 1
        while name in self._ids or name in ("main", "data", "theme"):
            count += 1
            name = f"{plain}-{count}"
        self._ids.add(name)
        return name


@dataclass(frozen=True)
class Facts:
    """A few words each about what the store holds; in a table of provenance, all of them."""

    entries: Sequence[tuple[str, Any]]
    listed: bool = False

    def html(self) -> str:
        """As a row of cards, or as a table."""
        if not self.listed:
            cards = "".join(
                f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
                for name, value in self.entries
            )
            return f'<dl class="facts">{cards}</dl>'
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{_nested(value)}</td></tr>'
            for name, value in self.entries
        )
        return f'<div class="card"><table class="provenance"><tbody>{rows}</tbody></table></div>'


def not_drawn(name: str, error: Exception) -> str:
    """What stands in the place of a chart or figure that fails."""
    return f"{name.replace('_', ' ')}: not drawn ({type(error).__name__}: {error})"


def _nested(value: Any) -> str:
    if isinstance(value, dict):
        return "<br>".join(f"{_text(key)}: {_nested(held)}" for key, held in value.items()) or "–"
    if isinstance(value, list):
        return _text(
            ", ".join(json.dumps(v) if isinstance(v, (dict, list)) else str(v) for v in value)
        )
    return _text(value)


def _text(value: Any) -> str:
    """Text of a store as HTML: no markup, and nothing that turns what is read around."""
    return escape(printable(str(value), keep="\n\xa0"))


def _csv(table: Table) -> str:
    """What the table holds, in full precision."""
    data = TableData.of(table)
    return csv_text([column.name for column in data.columns], data.rows)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _image(figure: Figure) -> str:
    """As a data URL: lines, or dots where they are less."""
    with matplotlib.rc_context(STYLE):
        stream = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None})
        kind = "svg+xml"
        if stream.tell() > _LARGE:
            kind, stream = "png", io.BytesIO()
            figure.set_dpi(140)
            FigureCanvasAgg(figure).print_png(stream)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
