"""Pictures of docs/concepts.md: attention paths, and U of a narrow and of a wide network.

    python docs/draw_paths.py [FOLDER]    # attention-paths.png and order-parameter.png; seconds

Weights of tokens and the entries of U are those of the task ``hidden-markov`` with seed 0.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

import pathkernel_core as pk
from pathkernel_tasks.hidden_markov import WIDTH, HiddenMarkov
from pathkernel_views.chart import AMBER, BLUE, GREY, INK, RUST, SKY, Chart, save_charts
from pathkernel_views.picture import inline
from pathkernel_views.primitives import heatmaps

IMAGES = Path(__file__).resolve().parent / "images"
TEMPERATURE = 0.01
COLOURS = {"1-1": BLUE, "1-2": RUST, "2-1": SKY, "2-2": AMBER}
BOXES = pd.DataFrame(
    [
        *(("tokens", "x", 0, 0, 0.55), ("output", "f(x)", 8, 0, 0.55)),
        *(("head 1", "same state", 2.6, 1, 0.85), ("head 2", "random", 2.6, -1, 0.85)),
        *(("head 1", "all tokens", 5.4, 1, 0.85), ("head 2", "random", 5.4, -1, 0.85)),
    ],
    columns=["name", "target", "x", "y", "half"],
)
CONTENT = {
    "attention-paths": "Four paths through two layers of two heads, and the tokens that they see.",
    "order-parameter": "U of a narrow network, of a wide one, and in the Gaussian process limit.",
}


def main() -> None:
    """Draw both pictures."""
    drawn = HiddenMarkov().realise(0)
    pictures = {
        "attention-paths": lambda: (_network() & _weights(drawn)).resolve_scale(
            color="independent"
        ),
        "order-parameter": lambda: _order_parameter(drawn),
    }
    charts = [Chart(name, "", CONTENT[name], draw) for name, draw in pictures.items()]
    with tempfile.TemporaryDirectory() as folder:  # captions stand on the page, not beside files
        for file in save_charts(charts, folder, print, formats=("png",), dpi=180, title=False):
            if file.suffix == ".png":
                shutil.copy(file, sys.argv[1] if sys.argv[1:] else IMAGES)


def _network() -> alt.LayerChart:
    rows = []
    for offset, path in zip((0.24, 0.08, -0.08, -0.24), COLOURS):
        first, second = (1.0 if head == "1" else -1.0 for head in path.split("-"))
        ends = [(0.5, 0), (1.75, first), (3.45, first), (4.55, second), (6.25, second), (7.5, 0)]
        rows += [(path, step, x, y + offset) for step, (x, y) in enumerate(ends)]
    lines = pd.DataFrame(rows, columns=["path", "step", "x", "y"])
    across = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.6, 8.6]))
    up = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-1.7, 2.1]))
    legend = alt.Legend(title=None, labelExpr="'path ' + datum.label")
    colour = alt.Color("path:N", scale=_colours(), legend=legend)
    paths = alt.Chart(inline(lines)).mark_line(strokeWidth=3, strokeJoin="round")
    boxes = alt.Chart(inline(BOXES)).transform_calculate(
        left="datum.x - datum.half",
        right="datum.x + datum.half",
        bottom="datum.y - 0.5",
        top="datum.y + 0.5",
    )
    box = boxes.mark_rect(fill="white", stroke=INK, opacity=1, cornerRadius=4).encode(
        x=alt.X("left:Q", axis=None), x2="right:Q", y=alt.Y("bottom:Q", axis=None), y2="top:Q"
    )
    texts = [
        boxes.mark_text(dy=shift, fontSize=9).encode(x=across, y=up, text=f"{name}:N")
        for name, shift in (("name", -6), ("target", 6))
    ]
    layers = pd.DataFrame({"x": [2.6, 5.4], "y": 1.85, "layer": ["layer 1", "layer 2"]})
    heading = alt.Chart(inline(layers)).mark_text(color=GREY, fontSize=9)
    return alt.layer(
        paths.encode(x=across, y=up, color=colour, order="step:Q"),
        *(box, *texts, heading.encode(x=across, y=up, text="layer:N")),
        title="Pick a head in each layer: that is a path",
    ).properties(width=340, height=150)


def _weights(drawn: pk.Realisation) -> alt.FacetChart:
    inputs = pk.attentioned_inputs(drawn.train.inputs[:1], drawn.layers, drawn.readout)
    weights = inputs[0, :, WIDTH:]  # a token ends in its position, one-hot
    frame = pd.DataFrame(
        {
            "path": np.repeat(list(COLOURS), weights.shape[1]),
            "token": np.tile(np.arange(weights.shape[1]), len(COLOURS)),
            "weight": (weights / weights.max(axis=1, keepdims=True)).ravel(),
        }
    )
    labels = alt.Axis(labelAngle=0, labelExpr="datum.value % 5 ? '' : datum.label")
    x = alt.X("token:O", title="token of one chain (0 marks the beginning)", axis=labels)
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("weight:Q", axis=None),
            color=alt.Color("path:N", scale=_colours(), legend=None),
        )
    )
    rows = alt.Row(
        "path:N", title="path", header=alt.Header(labelAngle=0, titleFontWeight="normal")
    )
    return (
        bars.properties(width=325, height=30)
        .facet(row=rows, data=inline(frame), spacing=4)
        .properties(title="Each path averages the tokens in a way of its own")
    )


def _colours() -> alt.Scale:
    return alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))


def _order_parameter(drawn: pk.Realisation) -> alt.TopLevelMixin:
    inputs = pk.attentioned_inputs(drawn.train.inputs, drawn.layers, drawn.readout)
    problem = pk.Problem(inputs, drawn.train.labels)
    frames = []
    for name, width in (("N = 10", 10), ("N = 100", 100), ("GP limit", None)):
        network = pk.Network((2, 2), width or 10)
        solve = pk.minimise_action if width else pk.gp_limit
        matrix = solve(problem, network, TEMPERATURE).order_parameter
        wide = pd.DataFrame(matrix, index=list(COLOURS), columns=list(COLOURS))
        long = wide.rename_axis("path").reset_index().melt("path", var_name="path_dual")
        frames.append(long.assign(network=name))
    return heatmaps(
        pd.concat(frames),
        *("path_dual", "path", "value"),
        panel="network",
        titles={"path_dual": "path′", "value": "U"},
        domain=(-16, 16),
    )


if __name__ == "__main__":
    main()
