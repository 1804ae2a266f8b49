"""A chart: a titled Altair chart that is drawn on demand, its theme, and its files.

>>> import pandas as pd
>>> import pathkernel as pk
>>> frame = pd.DataFrame({"width": [10, 100, None], "accuracy": [0.9, 0.8, 0.7],
...                       "network": ["theory", "theory", "GP limit"]})
>>> chart = pk.Chart("accuracy", "Accuracy against width", "Accuracy of the theory and its limit.",
...                  lambda: pk.lines(frame, "width", "accuracy", series="network", log=True))
>>> chart.altair().save("accuracy.png")                                    # doctest: +SKIP
>>> pk.save_charts([chart], "figures", formats=("pdf",), width=3.4)        # doctest: +SKIP

Altair is imported on first use, not with this module.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathkernel_core.atomic import replacing
from pathkernel_core.errors import PathkernelError
from pathkernel_core.local_files import check_local
from pathkernel_core.text import printable
from pathkernel_datasets.lock import locked
from pathkernel_views.files import FileInTheWayError, check_replaceable

if TYPE_CHECKING:
    import altair as alt

FORMATS = ("png", "svg", "pdf")
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # the first is bundled with vl-convert
INK = "#222222"

# Okabe and Ito's palette, safe for colour-blind readers
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, BLACK, GREY = "#56B4E9", "#E69F00", "#000000", "#777777"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, BLACK, GREY)

MEANINGS = {
    "theory": BLUE,
    "N =": BLUE,
    "GP limit": ORANGE,
    "next order": GREEN,
    "sampled": AMBER,
    "trained": GREEN,
    "random": GREY,
    "best set": BLACK,
}
"""Colours of series in every chart, by the beginning of their name."""

THEME = {
    "font": FONT,
    "background": "white",
    "padding": 4,
    "view": {"stroke": None},
    "title": {"fontSize": 9, "fontWeight": "normal", "anchor": "start", "color": INK},
    "header": {"labelFontSize": 9, "labelColor": INK, "labelLimit": 0},
    "axis": {
        "labelFontSize": 8,
        "titleFontSize": 9,
        "titleFontWeight": "normal",
        "labelColor": INK,
        "titleColor": INK,
        "grid": False,
        "labelLimit": 0,
    },
    "legend": {
        "orient": "bottom",
        "labelFontSize": 8,
        "titleFontSize": 8,
        "titleFontWeight": "normal",
        "labelColor": INK,
        "titleColor": INK,
        "labelLimit": 0,
        "symbolSize": 60,
        "symbolStrokeWidth": 1.4,
        "labelOffset": 8,
        "rowPadding": 1,
        "columnPadding": 12,
        "offset": 6,
    },
    "point": {"filled": True, "size": 20, "strokeWidth": 0.5},
}
"""Vega-Lite configuration of all charts, with sizes in points for a paper's column."""

_RESOLUTION = 200  # dots per inch of PNG files
_POINTS = 72  # per inch
_LETTER, _SMALL_LETTER = 4.5, 4.2  # mean widths in points, in titles and elsewhere
_SMALLEST = 0.3  # factor of panels
_MARGINS = 50  # points of axes beside panels, roughly
_MARK = "pathkernel"  # in every file of a chart


class NothingToPlot(PathkernelError, ValueError):
    """The data of a chart are missing from the study, or not computed yet."""


@dataclass(frozen=True)
class Chart:
    """A titled Altair chart.

    Attributes
    ----------
    name : str
        Lower-case words joined by underscores: the name of its files, with folders if it has any.
    title : str
        Short.
    caption : str
        Sentences on content and settings, also the description for screen readers.
    draw : callable
        Returns the Altair chart, without title and theme; may raise :class:`NothingToPlot`.
    detail : bool
        Whether it is drawn on request only.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], alt.TopLevelMixin]
    detail: bool = False

    def altair(self, *, title: bool = True) -> alt.TopLevelMixin:
        """Return the themed Altair chart.

        A line below the title, or instead of it, names the current values of the switches.
        """
        import altair as alt

        # shallow: every copy of Altair's otherwise copies the whole chart
        chart, heading = self.draw().copy(deep=False), printable(" ".join(self.title.split()))
        lines = [json.dumps(heading)] if title else []
        first_lines = [heading]
        if isinstance(chart.title, alt.TitleParams):
            lines.append(chart.title.text.expr)
            first_lines.append(chart.usermeta["setting"])
        with unvalidated():
            if lines:
                chart.title = alt.TitleParams(text=alt.ExprRef(f"[{', '.join(lines)}]"))
            chart.config = alt.Config(**THEME)
        chart.usermeta, chart.description = {"title": first_lines}, self.caption
        return chart

    def specification(self, *, title: bool = True) -> dict[str, Any]:
        """Return the Vega-Lite specification of :meth:`altair`, not validated.

        :func:`pathkernel_datasets.testing.check_result` validates the charts of a plugin.
        """
        return self.altair(title=title).to_dict(validate=False)

    def _repr_mimebundle_(self, *arguments: Any, **settings: Any) -> Any:
        return self.altair()._repr_mimebundle_(*arguments, **settings)


def unvalidated() -> AbstractContextManager[None]:
    """Return a context, or decorator, in which Altair does not validate what it makes.

    Tests validate the charts of this project; at run time that takes as long as all else of them.
    """
    from altair.utils.schemapi import debug_mode

    return debug_mode(False)


def save_charts(
    charts: Iterable[Chart],
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda line: None,
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: float = _RESOLUTION,
    width: float | None = None,
    title: bool = True,
) -> list[Path]:
    """Write every chart as ``<name>.<format>``, atomically, and return the files.

    Parameters
    ----------
    folder : path
        Created if missing. Charts of the same names are replaced, other files are not.
    report : callable
        Called with a line of text on every chart that is skipped or fails, and the reason.
    formats : sequence of str
        Among :data:`FORMATS`.
    dpi : float
        Dots per inch of PNG files.
    width : float, optional
        Width of every chart in inches; letters keep their size.
    title : bool
        Whether charts have a title and name the values of their switches.

    Raises
    ------
    PathkernelError, OSError
        If the study lacks data, or the folder cannot be written or is in use.
    Exception
        That of the last chart, if all failed.
    """
    check_local(folder)
    folder = Path(os.path.realpath(folder))
    folder.mkdir(parents=True, exist_ok=True)
    written, failure = [], None
    with locked(folder, temporary=True):
        for chart in charts:
            try:
                files = [folder / f"{chart.name}.{kind}" for kind in formats]
                for file in files:
                    check_replaceable(file, "chart of pathkernel", _is_marked)
                spec = chart.specification()
                if not title:
                    spec.pop("title", None)
                if width is not None:
                    spec = resized(spec, _POINTS * width)
                files[0].parent.mkdir(parents=True, exist_ok=True)
                svg = svg_of(spec)
                for file in files:
                    with replacing(file) as partial:
                        partial.write_bytes(rendered(svg, file.suffix[1:], dpi))
                written += files
            except (NothingToPlot, FileInTheWayError) as reason:
                report(f"{chart.name}: skipped, {reason}")
            except (PathkernelError, OSError):
                raise
            except Exception as error:  # one broken chart must not cost the others
                failure = error
                report(f"Warning: {chart.name} is not drawn ({type(error).__name__}: {error}).")
    if failure is not None and not written:
        raise failure
    return written


def vega_lite_version() -> str:
    """Return Altair's version of Vega-Lite, in the form of vl-convert."""
    import altair as alt

    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def svg_of(spec: dict[str, Any]) -> str:
    """Return the drawing of a specification as SVG text, by vl-convert."""
    import vl_convert

    return vl_convert.vegalite_to_svg(_printable(spec), vl_version=vega_lite_version())


def rendered(svg: str, kind: str, dpi: float = _RESOLUTION) -> bytes:
    """Return the content of an image file of a drawing, see :func:`svg_of`."""
    import vl_convert
    from PIL import Image, PngImagePlugin

    painter = logging.getLogger("tiny_skia")  # of vl-convert 2, which warns of empty paths
    if not painter.hasHandlers():
        painter.addHandler(logging.NullHandler())
    if kind == "pdf":
        return vl_convert.svg_to_pdf(svg) + f"\n%{_MARK}\n".encode()
    if kind == "svg":
        return svg.replace(">", f"><metadata>{_MARK}</metadata>", 1).encode()
    data = vl_convert.svg_to_png(svg, scale=dpi / _POINTS, ppi=_POINTS)
    mark, stream = PngImagePlugin.PngInfo(), io.BytesIO()
    mark.add_text("Software", _MARK)
    Image.open(io.BytesIO(data)).save(stream, "png", pnginfo=mark, dpi=(dpi, dpi))
    return stream.getvalue()


def _printable(part: Any) -> Any:
    """Escape control characters, on which vl-convert aborts the process."""
    if isinstance(part, str):
        plain = part.replace("\n", "").isprintable()
        return part if plain else printable(part, keep="\n")
    if isinstance(part, list):
        return [_printable(child) for child in part]
    if isinstance(part, dict):
        return {_printable(key): _printable(value) for key, value in part.items()}
    return part


def resized(spec: dict[str, Any], points: float) -> dict[str, Any]:
    """Scale the panels of a specification to a total width; letters keep their size.

    Panels that would become too small are arranged in fewer columns, and so are the entries of a
    legend that is too wide. Long titles are wrapped.
    """

    def with_narrow_legend(part: dict[str, Any]) -> dict[str, Any]:
        names = (part.get("scale") or {}).get("domain")
        if not (part.get("legend") or {}).get("columns") or not names:
            return part
        columns = min(part["legend"]["columns"], legend_columns(map(str, names), points))
        return part | {"legend": part["legend"] | {"columns": columns}}

    def scaled(factor: float) -> dict[str, Any]:
        def with_scaled_panel(part: dict[str, Any]) -> dict[str, Any]:
            sizes = {key: part[key] for key in ("width", "height") if _is_number(part.get(key))}
            return part | {key: factor * size for key, size in sizes.items()}

        return _changed(arranged, with_scaled_panel)

    spec = _changed(spec, with_narrow_legend)
    title = {}
    if spec.pop("title", None):  # which may be wider than the panels
        texts = [text.replace(" = ", "\xa0=\xa0") for text in spec["usermeta"]["title"]]
        lines = [line for text in texts for line in textwrap.wrap(text, int(points / _LETTER))]
        title = {"title": {"text": [line.replace("\xa0", " ") for line in lines]}}
    panels, names = json.dumps(spec.get("spec")), spec.get("facet", {}).get("sort", [])
    smallest = 0.35 if '"labels": false' in panels else 0.75 if '"format": ".2f"' in panels else 0.5
    for columns in range(spec.get("columns", 1), 0, -1):
        arranged = spec | {"columns": columns} if "columns" in spec else spec
        width, room = _panel_width(arranged), points - _MARGINS
        if room > max(smallest * width, columns * _SMALL_LETTER * max(map(len, names), default=0)):
            break
    if not width:  # of a plugin's chart
        return spec | title
    if len(names) % columns:  # no axis below a gap
        arranged["resolve"] = spec.get("resolve", {}) | {"axis": {"x": "independent"}}
    # axes and legends keep their size, which only a rendering tells; the panels have the rest
    factor = max(_SMALLEST, room / width)
    margins = _width(scaled(factor)) - factor * width
    return scaled(max(_SMALLEST, (points - margins) / width)) | title


def _panel_width(spec: dict[str, Any]) -> float:
    """Sum of the widths of the panels in the widest row, 0 if unknown."""
    if "facet" in spec:
        panels = len(spec["facet"].get("sort") or [""])
        return min(spec.get("columns", 1), panels) * _panel_width(spec["spec"])
    if "concat" in spec:
        widths = [_panel_width(chart) for chart in spec["concat"]]
        columns = spec.get("columns", len(widths))
        return max(sum(widths[n : n + columns]) for n in range(0, len(widths), columns))
    return spec["width"] if _is_number(spec.get("width")) else 0


def _is_number(size: Any) -> bool:
    return isinstance(size, int | float)  # or a step, or a container


def legend_columns(names: Iterable[str], points: float) -> int:
    """Return the number of columns, at least 1, of a legend of some names that fit into a width."""
    return max(1, int(points / (_SMALL_LETTER * max(map(len, names)) + 30)))


def _changed(part: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Copy a specification, with a function applied to every object besides data and settings."""
    if isinstance(part, list):
        return [_changed(child, change) for child in part]
    if not isinstance(part, dict):
        return part
    fixed = ("data", "datasets", "config", "mark", "params")
    return change({k: v if k in fixed else _changed(v, change) for k, v in part.items()})


def _width(spec: dict[str, Any]) -> float:
    return float(re.search(r'width="([\d.]+)"', svg_of(spec)).group(1))


def _is_marked(content: bytes) -> bool:
    return _MARK.encode() in content[:4096] + content[-64:]


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of a series."""

    colour: str
    dash: tuple[int, ...]
    shape: str


_LIMIT_SHAPE = "M-2,0L2,0"  # a line long enough for its dashes to show in a legend
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_DASHES = ((1, 0), (6, 2), (2, 2))
_LIMIT_DASHES = ((5, 3), (2, 2), (8, 2, 2, 2))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return colour, dash and marker of every series, by the meaning of its name.

    Limits are dashed. Series of one meaning have shades of its colour, and no two series have the
    same marker and dash.
    """
    names = list(dict.fromkeys(names))
    meanings = {
        name: next((colour for key, colour in MEANINGS.items() if name.startswith(key)), None)
        for name in names
    } | {name: PURPLE for name in names if name.endswith("(GP limit)")}
    free = itertools.cycle([c for c in PALETTE if c not in meanings.values()] or PALETTE)
    colours = {name: meaning or next(free) for name, meaning in meanings.items()}
    series = {}
    for n, (name, colour) in enumerate(colours.items()):
        relatives = [name for name in names if colours[name] == colour]
        shade = _tint(colour, 0.65 * relatives.index(name) / max(2, len(relatives) - 1))
        if "GP limit" in name:
            series[name] = Look(shade, _LIMIT_DASHES[relatives.index(name) % 3], _LIMIT_SHAPE)
        else:
            series[name] = Look(shade, _DASHES[n // len(_SHAPES) % 3], _SHAPES[n % len(_SHAPES)])
    return series


def _tint(colour: str, white: float) -> str:
    parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)
