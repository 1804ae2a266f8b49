"""A chart: a titled Altair chart that is drawn when asked for, its look, and its files.

>>> import pandas as pd
>>> from pathkernel_views.primitives import lines
>>> frame = pd.DataFrame({"width": [10, 100, None], "accuracy": [0.9, 0.8, 0.7],
...                       "network": ["theory", "theory", "GP limit"]})
>>> chart = Chart("accuracy", "Accuracy against width", "Accuracy of the theory and its limit.",
...               lambda: lines(frame, "width", "accuracy", series="network", log=True))
>>> chart.altair().save("accuracy.png")                                    # doctest: +SKIP
>>> save([chart], "figures", formats=("pdf",), width=3.4)                  # doctest: +SKIP

Altair is imported where something is drawn, and not with this module.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathkernel_core.errors import PathkernelError
from pathkernel_core.text import printable
from pathkernel_datasets.atomic import replacing
from pathkernel_datasets.lock import locked
from pathkernel_views.files import FileInTheWayError, check_replaceable

if TYPE_CHECKING:
    import altair as alt

FORMATS = ("png", "svg", "pdf")
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # the first is bundled with vl-convert
INK = "#222222"

# Okabe and Ito's colours, which the colour-blind can tell apart
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
"""Colour of everything whose name begins so, in every chart."""

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
        "rowPadding": 1,
        "columnPadding": 8,
        "offset": 6,
    },
    "point": {"filled": True, "size": 20, "strokeWidth": 0.5},
}
"""What Vega-Lite calls a configuration: sizes in points, for a paper's column."""

_RESOLUTION = 200  # dots per inch of PNG files
_POINTS = 72  # per inch
_LETTER = 4.5  # mean width of a title's letters in points
_LARGEST = 3.0  # factor of panels, whose titles may be wider than they are
_MARK = "pathkernel"  # in every file of a chart
_LOCK = ".lock"


class NothingToPlot(PathkernelError, ValueError):
    """A store lacks the data of a chart, or they are not computed yet."""


@dataclass(frozen=True)
class Chart:
    """A titled Altair chart.

    Attributes
    ----------
    name : str
        Lower-case words joined by underscores; the name of its files. It may hold folders.
    title : str
        Short.
    caption : str
        In sentences: the content, with the settings; also for readers who do not see it.
    draw : callable
        Gives the Altair chart, without title and theme; may raise :class:`NothingToPlot`.
    detail : bool
        Whether it is drawn on request only.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], alt.TopLevelMixin]
    detail: bool = False

    def altair(self, *, title: bool = True) -> alt.TopLevelMixin:
        """The chart with its theme, to be changed as any other.

        Below the title, or alone, a line names the values that switches show.
        """
        import altair as alt

        chart = self.draw()
        lines = [json.dumps(printable(" ".join(self.title.split())))] if title else []
        if isinstance(chart.title, alt.TitleParams):
            lines.append(chart.title.text.expr)
        if lines:
            chart.title = alt.TitleParams(text=alt.ExprRef(f"[{', '.join(lines)}]"))
        return chart.configure(**THEME).properties(description=self.caption)

    def _repr_mimebundle_(self, *arguments: Any, **settings: Any) -> Any:
        return self.altair()._repr_mimebundle_(*arguments, **settings)


def save(
    charts: Iterable[Chart],
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda line: None,
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: float = _RESOLUTION,
    width: float | None = None,
    title: bool = True,
) -> list[Path]:
    """Write every chart as ``<name>.<format>``, whole or not at all; return the files.

    Parameters
    ----------
    folder : path
        Made if it does not exist. Charts of the same names are replaced, other files are not.
    report : callable
        Called with a line of text for every chart that is skipped or fails, and why.
    formats : sequence of str
        Among :data:`FORMATS`.
    dpi : float
        Dots per inch of PNG files.
    width : float, optional
        Width of every chart in inches; letters keep their size.
    title : bool
        Whether charts have their title and name the values that switches show.

    Raises
    ------
    PathkernelError, OSError
        If the store lacks data, or the folder cannot be written or is in use.
    Exception
        That of the last chart, if all failed.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    written, failure = [], None
    with locked(folder, lock=folder / _LOCK, temporary=True):
        for chart in charts:
            try:
                files = [folder / f"{chart.name}.{kind}" for kind in formats]
                for file in files:
                    check_replaceable(file, "chart of pathkernel", _is_marked)
                spec = chart.altair().to_dict()
                if not title:
                    spec.pop("title", None)
                if width is not None:
                    spec = resized(spec, _POINTS * width)
                files[0].parent.mkdir(parents=True, exist_ok=True)
                for file in files:
                    with replacing(file) as partial:
                        partial.write_bytes(rendered(spec, file.suffix[1:], dpi))
                written += files
            except (NothingToPlot, FileInTheWayError) as reason:
                report(f"{chart.name}: skipped, {reason}")
            except (PathkernelError, OSError):
                raise
            except Exception as error:  # the others must be seen
                failure = error
                report(f"Warning: {chart.name} is not drawn ({type(error).__name__}: {error}).")
    if failure is not None and not written:
        raise failure
    return written


def vega_lite_version() -> str:
    """Version of Vega-Lite that Altair writes for, as vl-convert names it."""
    import altair as alt

    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def rendered(spec: dict[str, Any], kind: str, dpi: float = _RESOLUTION) -> bytes:
    """A specification as the content of a file, by vl-convert."""
    import vl_convert
    from PIL import Image, PngImagePlugin

    spec, version = _printable(spec), {"vl_version": vega_lite_version()}
    if kind == "pdf":
        return vl_convert.vegalite_to_pdf(spec, **version) + f"\n%{_MARK}\n".encode()
    if kind == "svg":
        text = vl_convert.vegalite_to_svg(spec, **version)
        return text.replace(">", f"><metadata>{_MARK}</metadata>", 1).encode()
    data = vl_convert.vegalite_to_png(spec, scale=dpi / _POINTS, ppi=_POINTS, **version)
    mark, stream = PngImagePlugin.PngInfo(), io.BytesIO()
    mark.add_text("Software", _MARK)
    Image.open(io.BytesIO(data)).save(stream, "png", pnginfo=mark, dpi=(dpi, dpi))
    return stream.getvalue()


def _printable(part: Any) -> Any:
    """The specification without control characters, on which vl-convert ends the process."""
    if isinstance(part, str):
        plain = part.replace("\n", "").isprintable()
        return part if plain else printable(part, keep="\n")
    if isinstance(part, list):
        return [_printable(each) for each in part]
    if isinstance(part, dict):
        return {_printable(key): _printable(value) for key, value in part.items()}
    return part


def resized(spec: dict[str, Any], points: float) -> dict[str, Any]:
    """The specification with its panels scaled so that the whole is so wide; letters stay.

    Where panels would become too small, fewer stand beside each other; long titles are broken.
    """
    if "title" in spec:
        spec = spec | {"title": {"text": _title_lines(spec, int(points / _LETTER))}}
    panels = json.dumps(spec.get("spec"))
    smallest = 0.35 if '"labels": false' in panels else 0.75 if '"format": ".2f"' in panels else 0.5
    for columns in range(spec.get("columns", 1), 0, -1):
        if "columns" in spec:
            spec = spec | {"columns": columns}
            if len(spec.get("facet", {}).get("sort", "")) % columns:  # no axis below a gap
                spec["resolve"] = spec.get("resolve", {}) | {"axis": {"x": "independent"}}
        factor, other = 0.8, 1.0
        width, other_width = _width(_scaled(spec, factor)), _width(spec)
        for _ in range(2):  # not proportional: a legend or a heading may be wider than the panels
            if abs(slope := (width - other_width) / (factor - other)) < 1:
                break
            other, other_width = factor, width
            factor = min(max(0.3, factor + (points - width) / slope), _LARGEST)
            width = _width(_scaled(spec, factor))
            if abs(width - points) < 1:
                break
        if factor > smallest:
            break
    return _scaled(spec, factor)


def _title_lines(spec: dict[str, Any], letters: int) -> list[str]:
    """Lines of a title, with the values that switches show first, of so many letters at most."""
    text = spec["title"]["text"]["expr"].replace("', '", '", "')
    for parameter in spec.get("params", ()):
        value = json.dumps(parameter["value"]).replace("\\", r"\\")
        text = re.sub(rf"\b{re.escape(parameter['name'])}\b", value, text)
    lines = json.loads(text.replace('" + "', "").replace(" = ", "\xa0=\xa0"))
    parts = [part for line in lines for part in textwrap.wrap(line, letters)]
    return [part.replace("\xa0", " ") for part in parts]


def _scaled(part: Any, factor: float) -> Any:
    """A copy in which widths and heights of panels are multiplied."""
    if isinstance(part, list):
        return [_scaled(child, factor) for child in part]
    if not isinstance(part, dict):
        return part
    copy = {}
    for key, value in part.items():
        if key in ("width", "height") and isinstance(value, (int, float)):
            copy[key] = value * factor
        else:
            is_drawn = key not in ("data", "datasets", "config", "mark", "params")
            copy[key] = _scaled(value, factor) if is_drawn else value
    return copy


def _width(spec: dict[str, Any]) -> float:
    return float(re.search(r'width="([\d.]+)"', rendered(spec, "svg").decode()).group(1))


def _is_marked(content: bytes) -> bool:
    return _MARK.encode() in content[:4096] + content[-64:]


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker by which a series is told from others."""

    colour: str
    dash: tuple[int, ...]
    shape: str


_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_DASHES = ((1, 0), (6, 2), (2, 2))
_LIMIT_DASHES = ((5, 3), (2, 2), (8, 2, 2, 2))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Colour, dash and marker of every series, by the meaning of its name.

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
        same = [other for other in names if colours[other] == colour]
        shade = _tint(colour, 0.65 * same.index(name) / max(2, len(same) - 1))
        if "GP limit" in name:
            series[name] = Look(shade, _LIMIT_DASHES[same.index(name) % 3], "stroke")
        else:
            series[name] = Look(shade, _DASHES[n // len(_SHAPES) % 3], _SHAPES[n % len(_SHAPES)])
    return series


def _tint(colour: str, white: float) -> str:
    parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)
