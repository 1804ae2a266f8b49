"""A chart: a titled Altair chart that is drawn on demand, its theme, and its files.

>>> import pandas as pd
>>> import pathkernel as pk
>>> frame = pd.DataFrame({"width": [10, 100, None], "accuracy": [0.9, 0.8, 0.7],
...                       "network": ["theory", "theory", "GP limit"]})
>>> def draw():
...     return pk.views.lines(frame, "width", "accuracy", series="network", log=True)
>>> caption = "Accuracy of the theory and its limit."
>>> chart = pk.views.Chart("accuracy", "Accuracy against width", caption, draw)
>>> chart.altair().save("accuracy.png")                                    # doctest: +SKIP
>>> pk.views.save_charts([chart], "figures", formats=("pdf",), width=3.4)  # doctest: +SKIP

Altair is imported on first use, not with this module.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.errors import PathkernelError
from pathkernel_core.system.local_files import check_local
from pathkernel_core.system.text import printable
from pathkernel_datasets.folder.lock import lock_folder
from pathkernel_views.chart_panels import arrange_panels, resize_chart, with_width
from pathkernel_views.files import FileInTheWayError, check_replaceable

if TYPE_CHECKING:
    import altair as alt

FORMATS = ("png", "svg", "pdf")
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # the first is bundled with vl-convert
INK = "#222222"

# hues near Okabe and Ito's, with a contrast of at least 3:1 with white; their lightness differs so
# that readers with any of the three common colour deficiencies tell all of them apart
BLUE, RUST, GREEN, PURPLE = "#00417D", "#944600", "#2E6E52", "#DA63BE"
SKY, AMBER, BLACK, GREY = "#0E94F0", "#B2892A", "#000000", "#86867B"
PALETTE = (BLUE, RUST, GREEN, PURPLE, SKY, AMBER, BLACK, GREY)

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
        "domainColor": GREY,
        "tickColor": GREY,
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
    "text": {"color": INK},
    "point": {"filled": True, "size": 20, "strokeWidth": 0.5},
}
"""Vega-Lite configuration of all charts, with sizes in points for a paper's column."""

_RESOLUTION = 200  # dots per inch of PNG files
_POINTS = 72  # per inch
_MARK = "pathkernel"  # in every file of a chart

_SUPERSCRIPTS, _SUBSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "₀₁₂₃₄₅₆₇₈₉₊₋"
_PLAIN = str.maketrans(_SUPERSCRIPTS + _SUBSCRIPTS, 2 * "0123456789+−")
# of a single 1, 2 or 3 the font has the exponent, but all those of powers of ten look the same
_RAISED = re.compile(
    f"((?<=[0-9])[{_SUPERSCRIPTS}]+|(?![¹²³](?![{_SUPERSCRIPTS}]))[{_SUPERSCRIPTS}]+"
    f"|[{_SUBSCRIPTS}]+)"
)


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
        spec = self.specification(title=title)
        with skip_validation():
            return _class_of(spec).from_dict(spec, validate=False)

    def specification(
        self,
        *,
        title: bool = True,
        switches: bool = True,
        width: float | None = None,
        validate: bool = False,
    ) -> dict[str, Any]:
        """Return the Vega-Lite specification.

        :func:`pathkernel_datasets.testing.check_result` validates the charts of a plugin.

        Parameters
        ----------
        title : bool
            Whether it has the title of the chart.
        switches : bool
            Whether a line below the title, or instead of it, names the values of the switches.
        width : float, optional
            Total width in points, for paper: no letter is scaled, and no line names the switches.
        validate : bool
            Whether it is checked against Altair's schema of Vega-Lite.

        Raises
        ------
        jsonschema.ValidationError
            If ``validate`` and the schema refuses it.
        """
        spec, heading = self.draw().to_dict(validate=False), printable(" ".join(self.title.split()))
        spec.pop("config", None)
        own, meta = spec.pop("title", None), spec.get("usermeta", {})
        lines = [json.dumps(heading)] * title
        switches = switches and width is None
        if switches and isinstance(own, dict) and isinstance(own["text"], dict):
            lines.append(own["text"]["expr"])
        if switches and lines:
            spec["title"] = {"text": {"expr": f"[{', '.join(lines)}]"}}
        elif lines:
            spec["title"] = heading
        spec |= {
            "config": THEME,
            "description": self.caption,
            "usermeta": {"keys": meta.get("keys", []), "settings": meta.get("settings", [])},
        }
        spec = (
            arrange_panels(spec) if width is None else resize_chart(spec, width, _measure_drawing)
        )
        if validate:
            _class_of(spec).validate(spec)
        return spec

    @property
    def description(self) -> str:
        """What the chart shows, in one sentence: the first one of its caption, or its title."""
        caption = printable(" ".join(self.caption.split())) or printable(self.title)
        return re.split(r"(?<=[.!?])\s", caption, maxsplit=1)[0]

    def _repr_mimebundle_(self, *arguments: Any, **settings: Any) -> Any:
        return self.altair()._repr_mimebundle_(*arguments, **settings)


def _class_of(spec: Mapping[str, Any]) -> Any:
    """Class of Altair for the charts of a specification."""
    import altair as alt

    classes = {
        "vconcat": alt.VConcatChart,
        "concat": alt.ConcatChart,
        "hconcat": alt.HConcatChart,
        "layer": alt.LayerChart,
        "facet": alt.FacetChart,
        "repeat": alt.RepeatChart,
    }
    return next((kind for name, kind in classes.items() if name in spec), alt.Chart)


def skip_validation() -> AbstractContextManager[None]:
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
    """Write every chart as ``<name>.<format>``, atomically, and return these files.

    Its caption stands beside it, in ``<name>.txt``.

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
        Width of every chart in inches, exactly; letters keep their size. Panels are arranged so
        that none is higher than 9 inches.
    title : bool
        Whether charts have a title. The values of their switches are in the captions.

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
    with lock_folder(folder, temporary=True):
        for chart in charts:
            try:
                files = [folder / f"{chart.name}.{kind}" for kind in formats]
                caption = folder / f"{chart.name}.txt"
                for file in [*files, caption]:
                    check_replaceable(file, "chart of pathkernel", _is_marked)
                points = None if width is None else _POINTS * width
                spec = chart.specification(title=title, switches=False, width=points)
                files[0].parent.mkdir(parents=True, exist_ok=True)
                svg = svg_of(spec)
                if points is not None:
                    svg = with_width(svg, points)
                svg = _with_description(svg, chart)
                for file in files:
                    with replace_file(file) as partial:
                        partial.write_bytes(render_image(svg, file.suffix[1:], dpi))
                with replace_file(caption) as partial:
                    partial.write_text(_caption(chart, spec, files), encoding="utf-8")
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

    svg = vl_convert.vegalite_to_svg(_printable(spec), vl_version=vega_lite_version())
    return re.sub(r"(?<=>)[^<>]+(?=</t)", lambda text: _with_plain_digits(text[0]), svg)


def _with_plain_digits(text: str) -> str:
    """Write exponents and indices in small ordinary digits, above or below the line.

    The bundled font lacks most others, and a text that has one is painted in a font of the machine.
    """
    parts, level = [], 0.0
    for number, part in enumerate(_RAISED.split(text)):
        is_plain = number % 2 == 0
        height = 0.0 if is_plain else -0.3 if part[0] in _SUPERSCRIPTS else 0.18
        if part and height != level:
            size = 1.0 if is_plain else 0.7
            small = ' font-size="70%"' * (not is_plain)
            move = f'dy="{(height - level) / size:.3g}em"'
            part = f"<tspan {move}{small}>{part if is_plain else part.translate(_PLAIN)}</tspan>"
            level = height
        parts.append(part)
    return "".join(parts)


def render_image(svg: str, kind: str, dpi: float = _RESOLUTION) -> bytes:
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


def _with_description(svg: str, chart: Chart) -> str:
    """Put the title and the description of a chart into its drawing, for screen readers."""
    texts = {"title": printable(" ".join(chart.title.split())), "desc": chart.description}
    marks = "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in texts.items())
    return svg.replace(">", f">{marks}", 1)


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


def _caption(chart: Chart, spec: dict[str, Any], files: Iterable[Path]) -> str:
    """Title, values of the switches, and content of a chart, and the names of its files."""
    settings = [part["prefix"] + part["value"] for part in spec["usermeta"]["settings"]]
    title = ", ".join([" ".join(chart.title.split()), *settings])
    names = ", ".join(file.name for file in files)
    return printable(f"{title}. {chart.caption}\n\nDrawn by {_MARK}: {names}\n", keep="\n")


def _measure_drawing(spec: dict[str, Any]) -> tuple[float, float]:
    """Return width and height of a specification as drawn, in points."""
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg_of(spec))
    return float(size.group(1)), float(size.group(2))


def _is_marked(content: bytes) -> bool:
    return _MARK.encode() in content[:4096] + content[-64:]
