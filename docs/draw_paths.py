"""Pictures of docs/concepts.md: attention paths, and what U says of them.

    python docs/draw_paths.py    # writes attention-paths.png and order-parameter.png; seconds

Weights of tokens and the entries of U are those of the task ``hidden-markov`` with seed 0.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import pathkernel_core as pk
from pathkernel_tasks.hidden_markov import WIDTH, HiddenMarkov
from pathkernel_views.drawing import AMBER, BLUE, GREY, ORANGE, SKY, STYLE

IMAGES = Path(__file__).resolve().parent / "images"
TEMPERATURE = 0.01
COLOURS = {"1-1": BLUE, "1-2": ORANGE, "2-1": SKY, "2-2": AMBER}
HEADS = {  # layer and head: place and what it attends to
    (1, 1): (2.6, 1.0, "same state"),
    (1, 2): (2.6, -1.0, "random"),
    (2, 1): (5.4, 1.0, "all tokens"),
    (2, 2): (5.4, -1.0, "random"),
}
SIZES = {"axes.titlesize": 13, "axes.labelsize": 12, "figure.labelsize": 12, "legend.fontsize": 11}
SIZES |= dict.fromkeys(("font.size", "xtick.labelsize", "ytick.labelsize"), 11)  # for a phone


def main() -> None:
    """Draw both pictures."""
    drawn = HiddenMarkov().realise(0)
    with matplotlib.rc_context(STYLE | SIZES):
        draw_paths(drawn).savefig(IMAGES / "attention-paths.png", dpi=150)
        draw_order_parameter(drawn).savefig(IMAGES / "order-parameter.png", dpi=150)


def draw_paths(drawn: pk.Realisation) -> Figure:
    """The four paths of two layers of two heads, and the tokens that each of them looks at."""
    figure = Figure(figsize=(6.6, 5.9), layout="constrained")
    network, tokens = figure.subplots(2, 1, height_ratios=(1.25, 1))
    _draw_network(network)
    inputs = pk.attentioned_inputs(drawn.train.inputs[:1], drawn.layers, drawn.readout)
    _draw_weights(tokens, inputs[0, :, WIDTH:])  # a token ends in its position, one-hot
    return figure


def _draw_network(axes: Axes) -> None:
    axes.set_title("Pick a head in each layer: that is a path", loc="left")
    for offset, (path, colour) in zip((0.24, 0.08, -0.08, -0.24), COLOURS.items()):
        first, second = (HEADS[layer, int(head)] for layer, head in enumerate(path.split("-"), 1))
        x = [0.5, first[0] - 0.75, first[0] + 0.75, second[0] - 0.75, second[0] + 0.75, 7.5]
        y = [offset, *(at[1] + offset for at in (first, first, second, second)), offset]
        axes.plot(x, y, color=colour, linewidth=3.5, solid_joinstyle="round", label=f"path {path}")
    for (layer, head), (x, y, words) in HEADS.items():
        _draw_box(axes, x, y, f"head {head}\n{words}", 1.5)
        if head == 1:
            axes.text(x, 1.95, f"layer {layer}", ha="center", color=GREY)
    _draw_box(axes, 0, 0, "tokens\nx", 1.0)
    _draw_box(axes, 8, 0, "output\nf(x)", 1.0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.14), ncols=4, columnspacing=1)
    axes.set(xlim=(-0.6, 8.6), ylim=(-2.1, 2.3))
    axes.axis("off")


def _draw_box(axes: Axes, x: float, y: float, words: str, width: float) -> None:
    corner = (x - width / 2, y - 0.5)
    box = FancyBboxPatch(
        corner, width, 1.0, boxstyle="round,pad=0,rounding_size=0.15", fc="white", ec="black"
    )
    axes.add_patch(box).set_zorder(3)
    axes.text(x, y, words, ha="center", va="center", zorder=4)


def _draw_weights(axes: Axes, weights: np.ndarray) -> None:
    axes.set_title("Each path averages the tokens in a way of its own", loc="left")
    for row, (colour, of_path) in enumerate(zip(COLOURS.values(), weights)):
        axes.bar(
            range(len(of_path)), of_path / of_path.max() * 0.85, 0.9, bottom=-row, color=colour
        )
        axes.axhline(-row, color=GREY, linewidth=0.6)
    axes.set_yticks(-np.arange(4) + 0.4, COLOURS)
    axes.set(xlabel="token of one chain (0 marks the beginning)", ylabel="path", xlim=(-0.7, 30.7))
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)


def draw_order_parameter(drawn: pk.Realisation) -> Figure:
    """U of a narrow network, of a wide one, and in the Gaussian process limit."""
    figure = Figure(figsize=(6.6, 2.75), layout="constrained")
    inputs = pk.attentioned_inputs(drawn.train.inputs, drawn.layers, drawn.readout)
    problem = pk.PathKernels(inputs, drawn.train.labels)
    for axes, width in zip(figure.subplots(1, 3), (10, 100, np.inf)):
        network = pk.Network((2, 2), 10 if width == np.inf else width)
        solve = pk.gp_limit if width == np.inf else pk.minimise_action
        matrix = solve(problem, network, TEMPERATURE).order_parameter
        axes.imshow(matrix, cmap="RdBu_r", vmin=-16, vmax=16)
        for (row, column), value in np.ndenumerate(matrix):
            colour = "white" if abs(value) > 9 else "black"
            words = f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
            axes.text(column, row, words, ha="center", va="center", color=colour, fontsize=10)
        axes.set_title("GP limit" if width == np.inf else f"N = {width}")
        axes.set_xticks(range(4), COLOURS)
        axes.set_yticks(range(4), COLOURS if width == 10 else [])
    figure.supxlabel("path")
    return figure


if __name__ == "__main__":
    main()
