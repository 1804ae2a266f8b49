"""Softmax against linear attention: how a head that copies the token before forms.

Lavie et al. (arXiv 2606.12058) find a first-order transition along the number of examples with
softmax, and with linear attention a second-order one, then a crossover. Their network copies every
token of a sequence of one-hot tokens to the next place. Ours reads one token: a last one without
content that has the place p, whose label is the content ±1 of the token at p − 1. Places are
one-hot; a head is a product W of keys and queries, drawn with all weights.

The order parameter is the mean overlap of the attention with the token to copy, |ω_s| / |ω|: 1
where a head attends to it alone. ``python -m benchmarks.attention.linear`` measures it for three
sizes, three draws of the data and growing numbers of examples, by four methods:

* theory: the exact posterior of U and attention, by a chain of tempering for each draw;
* Langevin, growing and shrinking: networks of finite width, by descent with noise of temperature T
  on all weights, the number of examples growing and shrinking from a state of the last number;
* Adam: such networks trained without noise, from two draws of the prior.

An interrupted run resumes. Then it writes tables, and with ``--images`` a picture.
"""

import argparse
import copy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import pathkernel_core as pk
from benchmarks.attention.learned import by_adam, by_noisy_descent
from benchmarks.attention.tempering import by_tempering
from pathkernel_core.system.atomic import replace_file
from pathkernel_sampling.attention.models import attention_model
from pathkernel_views.chart import Chart, save_charts
from pathkernel_views.primitives import lines

WIDTHS = {4: 10, 6: 15, 8: 20}
"""Width N of the network by the number of tokens."""
EXAMPLES = (8, 12, 16, 24, 32, 48, 64, 96)
KINDS = ("softmax", "linear")
SERIES = ("theory", "Langevin, growing", "Langevin, shrinking", "Adam")
DRAWS = 3  # of the data
_FEWER = {(6, "softmax"): 1, (6, "linear"): 1, (8, "softmax"): 2, (8, "linear"): 1}
"""Draws of the theory where they take minutes each."""
TEMPERATURE, VARIANCE = 0.1, 4.0

_SWEEPS, _TEMPERED_DRAWS = {4: 200, 6: 200, 8: 400}, 400
_LANGEVIN_STEPS, _ADAM_STEPS, _ADAM_STARTS = 20_000, 4000, 2
_STATES = 50  # of a Langevin run, in its second half
_VALUES = ("overlap", "spread", "middle", "middle_places", "agreed")
_COLUMNS = ("tokens", "kind", "draw", "examples", "method", *_VALUES)


def shifted_copies(tokens, examples, seed, room):
    """Sequences (room, M + 1, 1 + M), labels (room,) and places of the tokens to copy (room,).

    Sequences after the given number of examples are zero, as are their labels: they change the
    evidence by a constant alone, and code is compiled once for all numbers. Smaller sets are the
    beginnings of larger ones.
    """
    generator = np.random.default_rng(seed)
    values = generator.choice([-1.0, 1.0], size=(room, tokens))
    places = generator.integers(tokens - 1, size=room)
    length = np.sqrt(tokens)
    inputs = np.zeros((room, tokens + 1, 1 + tokens))
    inputs[:, :tokens, 0] = values
    inputs[:, :tokens, 1:] = length * np.eye(tokens)
    inputs[np.arange(room), -1, 2 + places] = length  # the place after
    labels = values[np.arange(room), places]
    inputs[examples:] = 0.0
    labels[examples:] = 0.0
    return inputs, labels, places


def copying(tokens, examples, kind, seed):
    """Posterior of one head that copies the token before."""
    inputs, labels, _ = shifted_copies(tokens, examples, seed, max(EXAMPLES))
    width = 1 + tokens
    zeros = np.zeros((1, width, width))
    layer = pk.AttentionProduct(zeros, 1 / width, linear=kind == "linear")
    network = pk.Network((1,), WIDTHS[tokens])
    return pk.AttentionPosterior(inputs, labels, [layer], network, TEMPERATURE, VARIANCE)


def overlaps(model, positions, tokens):
    """Overlap of the attention with the token to copy at positions (draw, dimension).

    The mean over new sequences (draw,), and that over those of each place (draw, M − 1).
    """
    inputs, _, places = shifted_copies(tokens, 200, DRAWS, 200)
    of_sequences = np.asarray(_overlaps(model, jnp.asarray(positions), inputs, places))
    is_at = places[:, None] == np.arange(tokens - 1)
    return of_sequences.mean(1), of_sequences @ is_at / is_at.sum(0)


@jax.jit
def _overlaps(model, positions, inputs, places):
    def overlap(x):
        (layer,) = model.posterior.layers_at(model.attention(x))
        omega = layer.attention(inputs, query=inputs.shape[1] - 1)[:, 0, :, 0]
        copied = omega[jnp.arange(len(inputs)), places] / jnp.linalg.norm(omega, axis=1)
        # linear attention may have any sign, which that of the values undoes
        return copied * jnp.sign(jnp.mean(copied))

    return jax.lax.map(overlap, positions)


def summarise(values, of_places, floor):
    """Mean and spread of overlaps, and shares in between for the mean and for single places."""
    return values.mean(), values.std(), in_between(values, floor), in_between(of_places, floor)


def prior_overlap(tokens, kind, count=400):
    """Mean overlap in the prior, without examples."""
    model = attention_model("order-parameter", copying(tokens, 0, kind, 0))
    positions = np.random.default_rng(0).standard_normal((count, model.dimension))
    return overlaps(model, positions, tokens)[0].mean()


def in_between(values, floor):
    """Share of overlaps in the middle half between those of the prior and 1.

    Small where two phases coexist, unlike where one changes.
    """
    rise = (values - floor) / (1 - floor)
    return np.mean((rise > 0.25) & (rise < 0.75))


def by_theory(tokens, kind, seed):
    """Rows of the posterior, along the number of examples."""
    floor = prior_overlap(tokens, kind)
    for examples in EXAMPLES:
        model = attention_model("order-parameter", copying(tokens, examples, kind, seed))
        positions, _, notes, _ = by_tempering(
            model, seed, _SWEEPS[tokens], _TEMPERED_DRAWS, chains=1
        )
        values = overlaps(model, positions[0, ::5], tokens)
        yield examples, "theory", *summarise(*values, floor), notes[0][1]


def networks(tokens, kind, seed):
    """Models of all weights for each number of examples, for which code is compiled once."""
    template = attention_model("weights", copying(tokens, EXAMPLES[0], kind, seed))
    for examples in EXAMPLES:
        posterior = copying(tokens, examples, kind, seed)
        model = copy.copy(template)
        model.inputs, model.labels = map(jnp.asarray, (posterior.inputs, posterior.labels))
        yield examples, model


def by_langevin(tokens, kind, seed):
    """Rows of descents with noise, the number of examples growing and shrinking."""
    models, floor = list(networks(tokens, kind, seed)), prior_overlap(tokens, kind)
    x = models[0][1].initial(jax.random.key(seed))
    state = x, 0 * x, jax.random.key(seed + 1)
    for name, way in (("growing", models), ("shrinking", models[::-1])):
        for examples, model in way:
            state = by_noisy_descent(model, state, _LANGEVIN_STEPS // 2)
            states = []
            for _ in range(_STATES):
                state = by_noisy_descent(model, state, _LANGEVIN_STEPS // (2 * _STATES))
                states.append(state[0])
            values = overlaps(model, np.array(states), tokens)
            yield examples, f"Langevin, {name}", *summarise(*values, floor), np.nan


def by_training(tokens, kind, seed):
    """Rows of networks trained by Adam from draws of the prior."""
    for examples, model in networks(tokens, kind, seed):
        starts = [model.initial(jax.random.key(start)) for start in range(_ADAM_STARTS)]
        ends = np.array([by_adam(model, x, steps=_ADAM_STEPS) for x in starts])
        values, _ = overlaps(model, ends, tokens)
        yield examples, "Adam", values.mean(), values.std(), np.nan, np.nan, np.nan


METHODS = {"theory": by_theory, "Langevin": by_langevin, "Adam": by_training}


def measure(file, sizes, methods):
    """Append the rows that a file lacks, and return all."""
    frame = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=list(_COLUMNS))
    for method in methods:
        for tokens in sizes:
            for kind in KINDS:
                fewer = _FEWER.get((tokens, kind), DRAWS)
                for draw in range(fewer if method == "theory" else DRAWS):
                    same = (frame["tokens"] == tokens) & (frame["kind"] == kind)
                    same &= (frame["draw"] == draw) & frame["method"].str.startswith(method)
                    if same.any():
                        continue
                    place = tokens, kind, draw
                    rows = [(*place, *row) for row in METHODS[method](tokens, kind, draw)]
                    new = pd.DataFrame(rows, columns=list(_COLUMNS))
                    frame = new if frame.empty else pd.concat([frame, new], ignore_index=True)
                    with replace_file(file) as partial_file:
                        frame.to_csv(partial_file, index=False, float_format="%.4g")
                    print(new.to_string(index=False), flush=True)
    return frame


def floors(frame):
    """Mean overlap in the prior by the number of tokens and kind of attention."""
    keys = frame[["tokens", "kind"]].drop_duplicates().itertuples(index=False)
    return {(tokens, kind): prior_overlap(tokens, kind) for tokens, kind in keys}


def crossing(examples, values, level):
    """Number of examples from which on the overlap stays above a level, on a log scale.

    NaN where it is above it at the fewest examples, or below at the most.
    """
    above = np.flatnonzero(np.asarray(values) <= level)
    last = above[-1] if len(above) else -1
    if last in (-1, len(values) - 1):
        return np.nan
    share = (level - values[last]) / (values[last + 1] - values[last])
    return float(np.exp(np.interp(share, (0, 1), np.log(examples[last : last + 2]))))


def crossings(frame):
    """Examples at half and three quarters of the rise from the prior's overlap to 1, by draw."""
    rows, of_prior = [], floors(frame)
    for key, part in frame.groupby(["tokens", "kind", "method", "draw"], sort=False):
        part, floor = part.sort_values("examples"), of_prior[key[:2]]
        examples, values = part["examples"].to_numpy(), part["overlap"].to_numpy()
        levels = (floor + share * (1 - floor) for share in (0.5, 0.75))
        rows.append((*key, *(crossing(examples, values, level) for level in levels)))
    return pd.DataFrame(rows, columns=["tokens", "kind", "method", "draw", "half", "late"])


def write_report(frame):
    """Markdown: examples at the transition, theory beside networks, then all overlaps."""
    frame = frame.sort_values(["tokens", "kind", "examples"], key=_place)
    methods = [name for name in SERIES if (frame["method"] == name).any()]
    text = ["# Softmax and linear attention that learn to copy", "", _ABOUT, ""]
    text.append(f"| tokens | N | attention | {' | '.join(methods)} | rise | mean | places |")
    text.append("| --- | --- | --- |" + " --- |" * (len(methods) + 3))
    theory = frame[frame["method"] == "theory"]
    for (tokens, kind), part in crossings(frame).groupby(["tokens", "kind"], sort=False):
        cells = [_mean_and_error(part.loc[part["method"] == name, "half"]) for name in methods]
        at_half = part[part["method"] == "theory"]
        rise = _mean_and_error(at_half["late"] / at_half["half"])
        shares = theory[(theory["tokens"] == tokens) & (theory["kind"] == kind)]
        shares = shares.groupby("examples")[["middle", "middle_places"]].mean()
        place = at_half["half"].mean()
        nearest = np.abs(np.log(shares.index / place)).argmin() if np.isfinite(place) else None
        at_nearest = (np.nan, np.nan) if nearest is None else shares.iloc[nearest]
        in_middle = [f"{share:.2f}" if np.isfinite(share) else "–" for share in at_nearest]
        text.append(
            f"| {tokens} | {WIDTHS[tokens]} | {kind} | {' | '.join([*cells, rise, *in_middle])} |"
        )
    text += ["", "| tokens | attention | P | " + " | ".join(methods) + " | sd | agreed |"]
    text.append("| --- | --- | --- |" + " --- |" * (len(methods) + 2))
    for (tokens, kind, examples), part in frame.groupby(["tokens", "kind", "examples"], sort=False):
        cells = [_mean_and_error(part.loc[part["method"] == m, "overlap"], 2) for m in methods]
        of_theory = part[part["method"] == "theory"]
        agreed = int(of_theory["agreed"].astype(float).sum())
        text.append(
            f"| {tokens} | {kind} | {examples} | {' | '.join(cells)} | "
            f"{of_theory['spread'].mean():.2f} | {agreed} of {len(of_theory)} |"
        )
    return "\n".join(text) + "\n"


def _mean_and_error(values, digits=1):
    """Mean and standard error over draws, how many of them have a value if not all."""
    present = np.asarray(values.dropna(), dtype=float)
    if len(present) == 0:
        return "–"
    error = (
        f" ± {present.std(ddof=1) / np.sqrt(len(present)):.{digits}f}" if len(present) > 1 else ""
    )
    some = "" if len(present) == len(values) else f" ({len(present)} of {len(values)})"
    return f"{present.mean():.{digits}f}{error}{some}"


_ABOUT = (
    "Overlap of the attention with the token to copy, |ω_s| / |ω|, of one head, T = 0.1: means and "
    "standard errors over draws of the data, three of networks, and of the theory as many as the "
    "last column says. First the number of examples P at which it is halfway from its prior mean "
    "to 1 for good; in theory, the ratio of P at three quarters of the rise to that at half; and "
    "the share of posterior draws in the middle half of the rise, at the P that is nearest to "
    "half, of the mean over places and of single places. Then overlaps by P, the standard "
    "deviation within the posterior, and how many chains of tempering ended in agreement of their "
    "stages."
)


def _place(column):
    """Places of kinds and methods in their order, or the numbers of another column."""
    order = [*KINDS, *SERIES]
    return column.map(order.index) if column.name in ("kind", "method") else column


def draw(frame, folder):
    """Picture of the order parameter along the number of examples."""
    keys = ["kind", "tokens", "method", "examples"]
    table = frame.groupby(keys)["overlap"].agg(overlap="mean", error="sem").reset_index()
    table["low"], table["high"] = (table["overlap"] + sign * table["error"] for sign in (-1, 1))
    # softmax above linear attention, and the theory before networks
    table = table.sort_values(["kind", "method"], key=_place, kind="stable")
    table["method"] = table["method"].replace("Adam", "trained by Adam")
    table["panel"] = [
        f"{row.kind}, {row.tokens} tokens, N = {WIDTHS[row.tokens]}" for row in table.itertuples()
    ]
    chart = Chart(
        "linear-attention",
        "Overlap of attention with the token to copy",
        "Means and errors over draws of the data: three of networks, one to three of the theory.",
        lambda: lines(
            table,
            "examples",
            "overlap",
            low="low",
            high="high",
            series="method",
            panel="panel",
            columns=len(WIDTHS),
            log=True,
            bands=("theory",),
            titles={"examples": "number of examples P", "overlap": "overlap"},
        ),
    )
    save_charts([chart], folder, print, formats=("png",))


def main():
    """Measure what is missing, then write tables and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--tokens", nargs="+", type=int, choices=WIDTHS, default=list(WIDTHS))
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add(
        "--results", type=Path, default=Path(__file__).parents[1] / "results", help="folder written"
    )
    add("--images", type=Path, help="folder of the picture")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    frame = measure(options.results / "linear_attention.csv", options.tokens, options.methods)
    report = write_report(frame)
    (options.results / "linear_attention.md").write_text(report, encoding="utf-8")
    print(report)
    if options.images:
        draw(frame, options.images)


if __name__ == "__main__":
    main()
