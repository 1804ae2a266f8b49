"""Charts as the page takes them: JSON, in which numbers are single precision in base64."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_report.vega import series_of, specification
from pathkernel_views.chart import Chart


def chart_payload(chart: Chart) -> dict[str, Any]:
    """What the page needs to draw a chart, list it and write it as CSV."""
    data = chart.data
    first = next(iter(data.data_vars))
    roles = {key: getattr(chart, key) for key in ("x", "y", "low", "high", "series", "panel")}
    dims = [*chart.switches, *(dim for dim in map(str, data.dims) if dim not in chart.switches)]
    return {
        "title": chart.title,
        "mark": chart.mark,
        "roles": roles,
        "value": first,
        "switches": list(chart.switches),
        "diverging": chart.diverging,
        "series": series_of(chart) if chart.series else [],
        "dims": {dim: _labels(data[dim]) for dim in dims},
        "variables": {str(name): _packed(data[name], chart.switches) for name in data.data_vars},
        "spec": specification(chart),
    }


def _labels(coordinate: xr.DataArray) -> dict[str, Any]:
    values = coordinate.values.tolist()
    labels = [value if isinstance(value, (int, float)) else str(value) for value in values]
    return {"title": str(coordinate.attrs["long_name"]), "labels": labels}


def _packed(variable: xr.DataArray, switches: tuple[str, ...]) -> dict[str, Any]:
    """Values in blocks, one for each choice of the switches; equal blocks are held once."""
    chosen = [dim for dim in switches if dim in variable.dims]
    rest = [str(dim) for dim in variable.dims if dim not in chosen]
    values = variable.transpose(*chosen, *rest).values.astype("<f4")
    count = int(np.prod([variable.sizes[dim] for dim in chosen], dtype=int))
    blocks: dict[bytes, int] = {}
    index = [blocks.setdefault(row.tobytes(), len(blocks)) for row in values.reshape(count, -1)]
    return {
        "title": str(variable.attrs["long_name"]),
        "chosen": chosen,
        "rest": rest,
        "index": index,
        "blocks": [base64.b64encode(block).decode() for block in blocks],
    }


def embedded_json(value: Any) -> str:
    """JSON that can stand within a script element: no character of it ends or opens markup."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
