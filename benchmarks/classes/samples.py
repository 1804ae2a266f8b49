"""Probabilities of classes and U against exact samples, and a picture of the former.

The posterior of (u_a, U, f) is drawn exactly. Two heads see 30 examples of six dimensions, of which
the first head tells the class.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

import pathkernel_core as pk
from benchmarks.classes.data import print_row
from pathkernel_views.chart import BLUE, GREY, RUST, Chart, save_charts
from pathkernel_views.picture import inline

EXAMPLES, NEW, INPUTS = 30, 200, 6
CLASSES, WIDTHS, SCALES = (1, 3), (10, 60), (0.5, 1.0, 4.0)
WARM_UP, DRAWS, CHAINS = 600, 3000, 4

SAMPLES = (
    *("C", "N", "σ²", "U: Laplace", "EP", "error of draws"),
    *("probabilities: Laplace", "EP", "error of draws"),
)
"""Columns of the table against samples: relative differences of U, and rms of probabilities."""


def examples(classes: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Attentioned inputs of two heads, and noisy classes that the first head tells."""
    rng = np.random.default_rng(seed)
    weights = np.random.default_rng(99).normal(size=(INPUTS, max(classes, 2)))
    xi = rng.normal(size=(count, 2, INPUTS))
    scores = xi[:, 0] @ weights + rng.gumbel(size=(count, max(classes, 2)))
    labels = scores.argmax(axis=1)
    return xi, 2 * labels - 1 if classes == 1 else labels


def likelihood_of(classes: int) -> str:
    """Name of the likelihood."""
    return "logistic" if classes == 1 else "softmax"


def sampled(
    network: pk.Network, classes: int, new: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean U and probabilities of new examples by NUTS, each with its error."""
    import jax
    from arviz_stats.base import array_stats

    from pathkernel_sampling.chains.chain import draw_states, warm_up
    from pathkernel_sampling.models.models import build_model

    xi, labels = examples(classes, EXAMPLES)
    model = build_model("order-parameter", xi, labels, network, likelihood=likelihood_of(classes))
    predict = jax.jit(
        lambda model, xs: jax.lax.map(lambda x: _probabilities(model.predict(x, new)[0]), xs)
    )
    matrices, probabilities = [], []
    for chain in range(CHAINS):
        key = jax.random.fold_in(jax.random.key(0), chain)
        state = warm_up(model, jax.random.fold_in(key, 0), WARM_UP)
        _, drawn = draw_states(model, state, jax.random.fold_in(key, 1), DRAWS)
        matrices.append(drawn["order_parameter"])
        probabilities.append(np.asarray(predict(model, drawn["position"][::3])))
    results = []
    for values in (np.stack(matrices), np.stack(probabilities)):
        flat = values.reshape(*values.shape[:2], -1)
        sizes = [array_stats.ess(flat[..., i], method="mean") for i in range(flat.shape[-1])]
        error = flat.std((0, 1)) / np.sqrt(sizes)
        results += [flat.mean((0, 1)).reshape(values.shape[2:]), error.reshape(values.shape[2:])]
    return tuple(results)


def _probabilities(outputs):
    import jax.numpy as jnp

    if outputs.shape[1] == 1:
        outputs = jnp.concatenate([jnp.zeros_like(outputs), outputs], axis=1)
    terms = jnp.exp(outputs - outputs.max(axis=1, keepdims=True))
    return terms / terms.sum(axis=1, keepdims=True)


def against_samples(folder: Path | None) -> None:
    """Print U and probabilities of twelve cases beside exact draws, and draw the latter."""
    print("Laplace and EP against NUTS:", ", ".join(SAMPLES))
    points = {}
    for classes, width, scale in itertools.product(CLASSES, WIDTHS, SCALES):
        xi, labels = examples(classes, EXAMPLES)
        new, _ = examples(classes, NEW, seed=1)
        network = pk.Network((2,), width, (scale, 1.0, 1.0), outputs=classes)
        problem = pk.Problem(xi, labels, likelihood=likelihood_of(classes))
        u, u_error, exact, exact_error = sampled(network, classes, new)
        cells: list[list[str]] = [[], []]
        for theory in (problem, problem.by_ep() if classes == 1 else None):
            if theory is None:
                cells[0].append("")
                cells[1].append("")
                continue
            solution = pk.minimise_action(theory, network)
            probabilities = solution.predict(new).probabilities
            difference = abs(solution.order_parameter - u).max() / abs(u).max()
            rms = np.sqrt(np.mean((probabilities - exact) ** 2))
            cells[0].append(f"{100 * difference:.1f} %")
            cells[1].append(f"{rms:.4f}")
            if theory is problem:
                points[classes, width, scale] = exact, probabilities
        print_row(
            str(classes), str(width), f"{scale:g}",
            *cells[0], f"{100 * (u_error / abs(u).max()).max():.1f} %",
            *cells[1], f"{np.sqrt(np.mean(exact_error**2)):.4f}",
        )  # fmt: skip
    if folder is not None:
        draw(points, folder)


def draw(points: dict, folder: Path) -> None:
    """Picture of probabilities by the theory against exact ones, a panel for each C and scale."""
    frame = pd.DataFrame(
        [
            (f"C = {classes}, σ² = {scale:g}", f"N = {width}", exact, theory)
            for (classes, width, scale), values in points.items()
            for exact, theory in zip(*(array[:, -1] for array in values))
        ],
        columns=["panel", "width", "exact", "theory"],
    )
    chart = Chart(
        "class-probabilities",
        "Probability of a class: Laplace's approximation against exact samples",
        "200 new examples of two (C = 1) and three classes, at three prior variances of outputs.",
        lambda: panels(frame),
    )
    save_charts([chart], folder, print, formats=("png",), dpi=180)


def panels(frame: pd.DataFrame) -> alt.VConcatChart:
    """Points of each panel on the diagonal."""
    unit = alt.Scale(domain=[0, 1])
    colour = alt.Color(
        "width:N",
        title="width",
        scale=alt.Scale(domain=[f"N = {width}" for width in WIDTHS], range=[RUST, BLUE]),
    )
    line = alt.Chart(inline(pd.DataFrame({"exact": [0, 1], "theory": [0, 1]})))
    rows = []
    for classes in CLASSES:
        row = []
        for scale in SCALES:
            name = f"C = {classes}, σ² = {scale:g}"
            part = frame[frame["panel"] == name].drop(columns="panel")
            base = alt.Chart(inline(part)).mark_point(size=8, filled=True, opacity=0.7)
            x = alt.X("exact:Q", title="exact", scale=unit, axis=alt.Axis(values=[0, 0.5, 1]))
            y = alt.Y("theory:Q", title="Laplace", scale=unit, axis=alt.Axis(values=[0, 0.5, 1]))
            marks = base.encode(x=x, y=y, color=colour)
            diagonal = line.mark_line(color=GREY, strokeWidth=0.8).encode(x=x, y=y)
            panel = alt.layer(diagonal, marks).properties(width=130, height=130, title=name)
            row.append(panel)
        rows.append(alt.hconcat(*row))
    return alt.vconcat(*rows)
