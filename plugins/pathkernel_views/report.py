"""The report: views of a study as one HTML page, in which all text of the study is escaped."""

from __future__ import annotations

import base64
import datetime
import hashlib
import importlib.metadata
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import xarray as xr

from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.text import number, printable
from pathkernel_datasets.variables.quantities import STATUS_CODES
from pathkernel_views.chart import Chart, NothingToPlot, vega_lite_version
from pathkernel_views.chart_panels import stacked_legend
from pathkernel_views.colours import for_dark
from pathkernel_views.files import check_replaceable
from pathkernel_views.table import Table, csv_text

GENERATOR = '<meta name="generator" content="pathkernel">'
"""Element in the head of every page, by which a report is recognised."""

_HEAD = 4096  # bytes at the start of a page that contain it
_VERSIONS = ("pathkernel", "numpy", "scipy", "xarray", "zarr", "altair")


def write_report(
    dataset: xr.Dataset,
    folder: Path,
    parts: Mapping[str, Iterable[Any]],
    out: str | os.PathLike,
    *,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a study as one HTML page: tables, charts and sentences of its parts, by name.

    An existing report is replaced atomically. ``origin`` says where study and page come from, such
    as the commands that make them, by name.

    Raises
    ------
    FileInTheWayError
        If ``out`` is a folder, or a file that is not a report.
    OSError
        If the file cannot be written.
    """
    mark = GENERATOR.encode()
    check_local(out)
    check_replaceable(Path(out), "report", lambda content: mark in content[:_HEAD])
    page = _Page()
    page.section("Overview", [_overview(dataset)])
    for name, views in parts.items():
        page.section(name.replace("-", " ").capitalize(), views)
    page.section("Provenance", [_provenance(dataset, origin or {})])
    title = str(dataset.attrs.get("label", folder.resolve().name))
    with replace_file(out) as partial:
        partial.write_text(
            page.html(title, f"pathkernel study {folder.resolve().name}"), encoding="utf-8"
        )


class _Sentence(str):
    """Plain text; those of a section stand in one box."""


class _Page:
    """Sections of the page, and the data of its charts and tables."""

    def __init__(self) -> None:
        self._sections: list[str] = []
        self._links: list[str] = []
        self._charts: list[dict[str, Any]] = []
        self._tables: list[str] = []
        self._titles: list[str] = []
        self._seen: Counter[str] = Counter()

    def section(self, heading: str, views: Iterable[Any]) -> None:
        """Add a section of views, and links to it and to its charts."""
        anchor, first = f"section-{len(self._sections) + 1}", len(self._charts)
        markups, sentences = [], []
        for view in views:
            markup = self._view(view)
            (sentences if isinstance(markup, _Sentence) else markups).append(markup)
        if sentences:
            items = "".join(f"<li>{_text(sentence)}</li>" for sentence in dict.fromkeys(sentences))
            markups.insert(0, f'<div class="card notices"><ul>{items}</ul></div>')
        body = "".join(markups)
        charts = "".join(
            f'<li><a href="#chart-{index}">{_text(title)}</a></li>'
            for index, title in enumerate(self._titles[first:], start=first)
        )
        inside = f"<ul>{charts}</ul>" if charts else ""
        self._links.append(f'<li><a href="#{anchor}">{_text(heading)}</a>{inside}</li>')
        self._sections.append(
            f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{_text(heading)}</h2>'
            f'<div class="views">{body}</div></section>'
        )

    def html(self, title: str, subtitle: str) -> str:
        """Return the page: one file that loads nothing and sends nothing."""
        import vl_convert

        folder = files(__package__)
        version = vega_lite_version()
        snippet = "window.vegaEmbed = vegaEmbed"
        vega = str(vl_convert.javascript_bundle(snippet, vl_version=version))
        vega = vega.replace("</script", "<\\/script")
        script = (folder / "report.js").read_text("utf-8")
        # the policy allows these two scripts, by their digests, and nothing else: text of a study,
        # even if it came into the page as markup, could neither run nor load or send anything
        digests = [hashlib.sha256(text.encode()).digest() for text in (vega, script)]
        hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
        data = json.dumps({"charts": self._charts, "tables": self._tables}, allow_nan=False)
        for sign in "<>&":  # no character ends or opens markup
            data = data.replace(sign, f"\\u{ord(sign):04x}")
        return Template((folder / "report.html").read_text("utf-8")).substitute(
            policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
            "img-src data:; base-uri 'none'; form-action 'none'",
            generator=GENERATOR,
            title=_text(title),
            subtitle=_text(subtitle),
            style=(folder / "report.css").read_text("utf-8") + _dark_style(self._charts),
            links="".join(self._links),
            sections="\n".join(self._sections),
            data=data,
            vega=vega,
            script=script,
        )

    def _view(self, view: Any) -> str:
        """Return the markup of a view, or a sentence: a note, or why it cannot be drawn."""
        if isinstance(view, Table | Chart):
            view = self._with_own_title(view)
        try:
            if isinstance(view, Table):
                return self._table(view)
            if isinstance(view, Chart):
                return self._chart(view)
            if isinstance(view, dict):
                return f'<div class="card">{_nest_tables(view)}</div>'
        except NothingToPlot as reason:
            view = f"{view.title}: left out, {reason}"
        except (PathkernelError, OSError):
            raise
        except Exception as error:  # one broken view of a plugin must not cost the page
            view = f"{view.title}: not drawn ({type(error).__name__}: {error})"
        return _Sentence(view)

    def _with_own_title(self, view: Table | Chart) -> Table | Chart:
        """Return a view with a title that no view before it has, by a number after it."""
        title = view.title
        self._seen[title] += 1
        if self._seen[title] == 1:
            return view
        number = self._seen[title]
        while self._seen[own := f"{title} ({number})"]:
            number += 1
        self._seen[own] += 1
        return replace(view, title=own)

    def _chart(self, chart: Chart) -> str:
        spec = chart.specification(title=False, switches=False)
        if legend := stacked_legend(spec):  # for narrow screens
            spec["usermeta"]["stacked"] = legend
        del spec["description"]
        spec["config"]["background"] = "transparent"
        text = json.dumps(spec, allow_nan=False)  # a failure is reported in place of the chart
        grids = (spec, *spec.get("vconcat", []))
        is_wide = any("columns" in grid for grid in grids)
        kinds = " ".join(["wide"] * is_wide + ["diverging"] * ('"scheme": "redblue"' in text))
        index = len(self._charts)
        self._charts.append(spec)
        self._titles.append(chart.title)
        return (
            f'<figure class="{kinds}" id="chart-{index}" data-chart="{index}" '
            f'data-name="{_file(chart.name)}" data-title="{_text(chart.title)}" '
            f'data-description="{_text(chart.description)}">'
            f'<h3>{_text(chart.title)}</h3><p class="note">{_text(chart.caption)}</p></figure>'
        )

    def _table(self, table: Table) -> str:
        title = _text(table.title)
        self._tables.append(csv_text(table.frame))
        return (
            f'<details class="card"{" open" * (not table.detail)}><summary><h3>{title}</h3>'
            f'</summary><div class="scroll" role="group" tabindex="0" aria-label="{title}">'
            f'{table.as_html()}</div><p class="note">{_text(table.caption)}</p>'
            f'<button type="button" data-table="{len(self._tables) - 1}" data-name='
            f'"{_file(table.name)}" aria-label="Download CSV of {title}">Download CSV</button>'
            "</details>"
        )


def _dark_style(charts: Iterable[Mapping[str, Any]]) -> str:
    """Return rules that give every colour of some charts its counterpart on a dark page.

    A drawing names its colours in attributes, as its specification does.
    """
    drawn = json.dumps([{k: v for k, v in spec.items() if k != "datasets"} for spec in charts])
    colours = {name: for_dark(name) for name in re.findall('(?<=")#[0-9a-fA-F]{6}(?=")', drawn)}
    colours["white"] = "var(--card)"
    rules = (
        f'[data-theme="dark"] .plot [{part}="{name}"] {{ {part}: {colour}; }}'
        for name, colour in colours.items()
        for part in ("fill", "stroke")
    )
    return "@media screen {\n" + "\n".join(rules) + "\n}\n"


def _overview(dataset: xr.Dataset) -> dict[str, Any]:
    status = dataset["status"].values
    converged = int((status == STATUS_CODES["converged"]).sum())
    return {
        "heads per layer": dataset.attrs.get("heads_per_layer", ""),
        "training examples": dataset.attrs.get("training_examples", ""),
        "paths": dataset.sizes["path"],
        "widths N": dataset["width"].values.tolist(),
        "temperatures T": dataset["temperature"].values.tolist(),
        "seeds": dataset["seed"].values.tolist(),
        "points converged": f"{converged} of {status.size}",
    }


def _provenance(dataset: xr.Dataset, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Where the study and the page come from: commands, dates and versions."""
    versions = {}
    for name in _VERSIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    date = datetime.datetime.now(datetime.UTC).isoformat(" ", "minutes")
    attributes = dataset.attrs
    of_study = {
        name.replace("_", " "): attributes[name]
        for name in ("backend", "dtype", "device", "notes", "references")
        if name in attributes
    }
    return {
        **origin,
        "versions of the study": attributes.get("package_versions", ""),
        **of_study,
        "page made": date,
        "versions of the page": versions,
    }


def _nest_tables(value: Any) -> str:
    """Return values, also in JSON, as nested tables; lists of plain values in one line."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        with suppress(ValueError, RecursionError):
            return _nest_tables(json.loads(value))
    if isinstance(value, Mapping):
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{_nest_tables(entry)}</td></tr>'
            for name, entry in value.items()
            if str(entry) not in ("", "{}", "[]")
        )
        return f'<table class="nested"><tbody>{rows}</tbody></table>'
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (list, tuple)):
        separator = "" if any(isinstance(entry, Mapping) for entry in value) else ", "
        return separator.join(map(_nest_tables, value))
    return _text(number(value) if isinstance(value, float) else value)


def _file(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name)


def _text(value: Any) -> str:
    return escape(printable(str(value), keep="\n"))
