"""The parts that all charts share: data, series, panels, switches, ranges and titles."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from pathkernel_core.system.text import printable
from pathkernel_views.chart import NothingToPlot
from pathkernel_views.looks import Look, looks
from pathkernel_views.table import csv_text

FULL, HALF = 500, 220
"""Widths in points: of panels beside each other, and of one panel."""

_MANY = 8  # panels, beyond which one more stands in a row
_DIGITS = 6  # of numbers within charts
_SINGLE = 1e-9  # relative distance of values that an axis cannot tell apart
_AROUND = 1.05  # around a single value, the ratio of an end of the axis to it


class Picture:
    """A frame with the channels and layers of its chart; parameters as for the primitives."""

    def __init__(
        self,
        frame: pd.DataFrame,
        series: str = "",
        panel: str = "",
        switches: Sequence[str] = (),
        titles: Mapping[str, str] | None = None,
        columns: int = 3,
        low: str = "",
        high: str = "",
    ):
        frame = frame.reset_index(drop=True)
        texts = {
            name: values.map(lambda text: printable(text) if isinstance(text, str) else text)
            for name, values in frame.items()
            if values.dtype.kind not in "biuf"
        }
        texts |= {name: frame[name].map(_text) for name in switches}
        if not series:
            texts["series"] = ""
        elif pd.api.types.is_numeric_dtype(frame[series]):
            texts[series] = [f"{series.replace('_', ' ')} {_text(v)}" for v in frame[series]]
        self.frame = frame.assign(**texts)
        self.ends = [low, high] if low else []
        self.series, self.panel = series or "series", panel
        self.names = distinct(self.frame, self.series)
        self.keys: list[dict[str, Any]] = []
        self.panels = distinct(self.frame, panel) if panel else [""]
        # a full last row, if possible; of many panels small ones, since a page is not long enough
        count = len(self.panels)
        columns = min(columns + (count > _MANY), count)
        rows = range(columns, 2 if count > _MANY else 1, -1)
        self.columns = next((n for n in rows if count % n == 0), columns)
        labels = frame.attrs.get("columns", {})
        self._titles = {name: labels[name].get("label") for name in labels} | dict(titles or {})
        numeric = {name: pd.api.types.is_numeric_dtype(frame[name]) for name in switches}
        self.switches = {name: f"{self.title(name)} " * numeric[name] for name in switches}

    @cached_property
    def data(self) -> alt.InlineData:
        """The frame as data of the chart; a heat map sets those of its matrix instead."""
        return inline(self.frame)

    def title(self, column: str) -> str:
        """Return the title of a column."""
        return printable(self._titles.get(column) or column.replace("_", " "))

    def number_channel(self, column: str) -> dict[str, str]:
        """Return type and title of a channel of numbers."""
        return {"type": "quantitative", "title": self.title(column)}

    def range(self, **channel: Any) -> dict[str, Any]:
        """Return the channels of a mark that spans the ranges along y."""
        low, high = self.ends
        return {"y": alt.Y(field=low, **channel), "y2": alt.Y2(high)}

    def tips(self, *columns: str) -> list[alt.Tooltip]:
        """Return the tooltips of some columns."""
        tips = []
        for name in dict.fromkeys(filter(None, columns)):
            numeric = pd.api.types.is_numeric_dtype(self.frame[name])
            form = {"type": "quantitative", "format": ".5~g"} if numeric else {"type": "nominal"}
            if name != self.series or self.names != [""]:
                tips.append(alt.Tooltip(field=name, title=self.title(name), **form))
        return tips

    @cached_property
    def looks(self) -> dict[str, Look]:
        """Colour, dash and marker of every series."""
        return looks(self.names)

    def series_channels(self) -> list[Any]:
        """Return stroke, fill, dash and marker of the series; :attr:`keys` are their legend."""
        styles = self.looks.values()
        colours = [style.colour for style in styles]
        ranges = {
            alt.Stroke: colours,
            alt.Fill: colours,
            alt.StrokeDash: [list(style.dash) for style in styles],
            alt.Shape: [style.shape or "circle" for style in styles],
        }
        return [
            channel(
                field=self.series,
                type="nominal",
                title=None,
                legend=None,
                scale=alt.Scale(domain=self.names, range=values),
            )
            for channel, values in ranges.items()
        ]

    @property
    def turned(self) -> list[str]:
        """Switches that have several settings."""
        return [name for name in self.switches if self.frame[name].nunique() > 1]

    def add_key(self, name: str, **parts: Any) -> None:
        """Add the key of a series, of the parts that :mod:`pathkernel_views.chart_panels` draws."""
        if name != "":
            self.keys.append({"name": name} | {"colour": self.looks[name].colour} | parts)

    def scale(self, *columns: str, log: bool = False, kind: str = "") -> alt.Scale:
        """Return a scale of all values of some columns that one setting of the switches shows.

        So a chart has one range in a file and in a report. Without columns it is automatic.
        """
        form: dict[str, Any] = {"type": "log"} if log else {"zero": False}
        if kind:
            form |= {"type": "pow", "exponent": 1 / 3}
        scale = alt.Scale(**form, padding=6)
        ends = self.ends_of(self.frame[list(columns)], log, apart=True)
        if ends is not None:
            scale.domain = ends
        return scale

    def ends_of(
        self, values: pd.DataFrame, log: bool = False, apart: bool = False
    ) -> list[Any] | None:
        """Return the least and the largest value, as expressions of the switches if there are any.

        ``values`` has the rows of :attr:`frame`. None if no value is finite. With ``apart`` the
        ends enclose a single value, at which an axis would have a tick of no digits.
        """
        table = values.to_numpy(dtype=float)
        table = np.where(np.isfinite(table) & (table > 0 if log else True), table, np.nan)
        if not table.size or np.isnan(table).all():
            return None
        turned = self.turned
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows without values
            rows = pd.DataFrame({"low": np.nanmin(table, 1), "high": np.nanmax(table, 1)})
        whole = [float(rows["low"].min()), float(rows["high"].max())]
        if not turned:
            return _apart(*whole, log) if apart else whole
        keys = self.frame[turned].agg("\n".join, axis=1).to_numpy()
        groups = rows.groupby(keys, sort=False).agg({"low": "min", "high": "max"})
        groups = groups.fillna({"low": whole[0], "high": whole[1]})
        if apart:
            ends = [_apart(low, high, log) for low, high in groups.itertuples(index=False)]
            groups = pd.DataFrame(ends, groups.index, groups.columns)
        chosen = " + '\\n' + ".join(f"chosen_{name}" for name in turned)
        return [alt.ExprRef(f"({json.dumps(groups[end].to_dict())})[{chosen}]") for end in groups]

    def chart(
        self,
        layers: Sequence[alt.Chart],
        width: float,
        height: float,
        exact: bool = False,
        **resolve: str,
    ) -> alt.TopLevelMixin:
        """Combine the layers with their data, in panels and with switches."""
        if not exact:
            width = min(width, (FULL - 40) / self.columns - 12)
        # alt.layer would copy every layer twice, to join data and parameters, which none has
        chart = alt.LayerChart(width=width, height=height)
        chart.layer = list(layers)
        if len(self.panels) > 1:
            facet = alt.Facet(field=self.panel, type="nominal", title=None, sort=self.panels)
            settings = {"columns": self.columns, "spacing": 10}
            # the layers after it, which its methods would copy, too
            panels = alt.FacetChart(self.data, alt.LayerChart(), facet, **settings)
            panels.spec, panels.resolve = chart, alt.Resolve(scale=resolve)
            chart = panels
        else:
            chart.data = self.data
        shown, parts, parameters = [], [], []
        for name, prefix in self.switches.items():
            values = distinct(self.frame, name)
            parts.append({"prefix": prefix, "value": values[0]})
            if len(values) == 1:
                shown.append(json.dumps(prefix + values[0]))
                continue
            chosen = parts[-1]["parameter"] = f"chosen_{name}"
            select = alt.binding_select(options=values, name=f"{self.title(name)} ")
            parameters.append(alt.VariableParameter(name=chosen, value=values[0], bind=select))
            chart = chart.transform_filter(f"{field(name)} == {chosen}")
            shown.append(f"{json.dumps(prefix)} + {chosen}")
        if shown:
            chart.params = parameters or alt.Undefined
            chart.title = alt.TitleParams(text=alt.ExprRef(" + ', ' + ".join(shown)))
        chart.usermeta = {"settings": parts, "keys": self.keys}
        return chart


def _apart(low: float, high: float, log: bool) -> list[float]:
    """Ends of an axis around a single value, or those of several values."""
    if high - low > _SINGLE * max(abs(low), abs(high)):
        return [low, high]
    if log:
        return [low / _AROUND, high * _AROUND]
    reach = (_AROUND - 1) * abs(high) or 1.0
    return [low - reach, high + reach]


def inline(frame: pd.DataFrame, as_text: Collection[str] = ()) -> alt.InlineData:
    """Return data of a chart as CSV text: small, and without Altair's limit of rows."""
    numbers = {
        str(name): "number"
        for name, values in frame.items()
        if pd.api.types.is_numeric_dtype(values) and str(name) not in as_text
    }
    return alt.InlineData(
        values=csv_text(frame, _DIGITS), format=alt.CsvDataFormat(type="csv", parse=numbers)
    )


def drop_missing(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the rows with values in these columns; raise NothingToPlot if there are none."""
    rows = frame.dropna(subset=list(columns))
    if rows.empty:
        raise NothingToPlot(f"{' and '.join(columns).replace('_', ' ')} is not computed yet")
    return rows


def distinct(frame: pd.DataFrame, column: str) -> list[Any]:
    """Return the distinct values of a column, in order of appearance."""
    return frame[column].drop_duplicates().tolist()


def field(name: str) -> str:
    """Return a column as a Vega expression."""
    return f"datum[{json.dumps(name)}]"


def _text(value: Any) -> str:
    return printable(f"{value:.10g}" if isinstance(value, float) else str(value))
