"""Effective samples per CPU second of the samplers: ``python -m benchmarks.sampling``.

Hidden Markov task of the paper (P = 100, n = 4, N_0 = 231), N = 10, T = 0.01, on one core. Counted
is the smallest bulk effective sample size of the order parameter's entries, over the CPU time of
everything from the construction of the model to the last draw, warm-up and compilation included,
and that time without the seconds that JAX traced and compiled.
Each sampler runs in a process of its own. ``weights`` and ``layer-by-layer`` draw until they have
used ``--minutes`` of CPU time; the latter is ``weights`` as it is done today, where every gradient
passes all tokens through all layers. ``numpyro`` and ``numpyro-weights`` are NumPyro's no-U-turn
sampler on the densities of ``order-parameter`` and ``weights``.
All samplers are compared with the first by the largest deviation of an entry of the mean order
parameter, and of the mean predictor on a test chain, in combined Monte-Carlo errors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

_THIN = 10  # the predictor is evaluated at every tenth draw, and its time is not counted
PRACTICE = "layer-by-layer"
NUMPYRO = {"numpyro": "order-parameter", "numpyro-weights": "weights"}
SAMPLERS = ("order-parameter", "collapsed", "weights", PRACTICE, *NUMPYRO)
TIMED = ("weights", PRACTICE)

_COMPILING = tuple(
    f"/jax/core/compile/{stage}_duration"
    for stage in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)


def measure(name: str, options: argparse.Namespace) -> dict:
    """Sample in this process; figures for the table."""
    import jax
    from arviz_stats.base import array_stats

    import pathkernel_core as pk
    from benchmarks.sampling.chains import mean_and_error
    from benchmarks.sampling.layer_by_layer import LayerByLayer
    from pathkernel_sampling.chains.chain import draw_states, warm_up
    from pathkernel_sampling.models.models import build_model
    from pathkernel_tasks.hidden_markov import HiddenMarkov

    task = HiddenMarkov()
    drawn_task = task.realise(options.seed)
    (test,) = drawn_task.test_sets.values()
    xi, test_xi = (
        pk.attentioned_inputs(examples.inputs, drawn_task.layers, drawn_task.readout)
        for examples in (drawn_task.train, test)
    )
    network = pk.Network(drawn_task.heads, options.width)
    limit = 60 * options.minutes if name in TIMED else np.inf
    chains = options.chains
    # NumPyro compiles every run anew: all draws of a chain are one, as is usual
    blocks = {"weights": 100, PRACTICE: 10} | dict.fromkeys(NUMPYRO, options.draws)
    block = blocks.get(name, 500)
    compiling = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiling.append(seconds) if event in _COMPILING else None
    )
    start = time.process_time()
    temperature = task.temperatures[0]
    if name == PRACTICE:
        model = LayerByLayer(drawn_task, network, temperature)
    else:
        density = NUMPYRO.get(name, name)
        model = build_model(density, xi, drawn_task.train.labels, network, temperature)
    if name in NUMPYRO:
        from benchmarks.sampling.numpyro_chains import NumPyroChains

        numpyro = NumPyroChains(model, options.warm_up, block)
        begin, advance = numpyro.warm_up, numpyro.draw
    else:
        begin = partial(warm_up, model, steps=options.warm_up)
        advance = partial(draw_states, model, count=block)
    keys = [jax.random.fold_in(jax.random.key(options.seed), chain) for chain in range(chains)]
    states = [begin(key=jax.random.fold_in(key, 0)) for key in keys]
    warm = time.process_time() - start
    drawn, count = [], 0
    while (limit < np.inf or count < options.draws) and time.process_time() - start < limit:
        row = []
        for chain, key in enumerate(keys):
            key = jax.random.fold_in(key, len(drawn) + 1)
            states[chain], draws = advance(state=states[chain], key=key)
            row.append({**draws, "position": draws["position"][::_THIN]})
        drawn.append(row)
        count += block
        print(f"  {name}: {count} draws, {time.process_time() - start:.0f} s", file=sys.stderr)
    seconds, compiled = time.process_time() - start, sum(compiling)
    if not drawn:
        raise SystemExit(f"{name}: warm-up took all of {options.minutes:g} minutes; allow more")

    def joined(variable: str) -> np.ndarray:
        return np.concatenate(
            [np.stack([chain_draws[variable] for chain_draws in row]) for row in drawn], axis=1
        )

    u = joined("order_parameter")
    entries = u[:, :, *np.tril_indices(u.shape[-1])]
    columns = np.moveaxis(entries, -1, 0)
    bulk = [float(array_stats.ess(column, method="bulk")) for column in columns]
    positions = joined("position")
    if name == PRACTICE:  # it has the density of weights, which predicts
        model = build_model("weights", xi, drawn_task.train.labels, network, temperature)
    outputs = jax.lax.map(
        lambda x: model.predict(x, test_xi)[0][:, 0], positions.reshape(-1, model.dimension)
    )
    outputs = np.asarray(outputs).reshape(*positions.shape[:2], -1)
    return {
        "dimension": model.dimension,
        "draws": int(u.shape[0] * u.shape[1]),
        "chains": chains,
        "warm-up seconds": warm,
        "seconds": seconds,
        "minimum ess": min(bulk),
        "ess per second": min(bulk) / seconds,
        "compiling": compiled,
        "ess per second compiled": min(bulk) / (seconds - compiled),
        "rhat": max(float(array_stats.rhat(column)) for column in columns),
        "divergences": int(joined("diverging").sum()),
        "leapfrogs per draw": float(joined("n_steps").mean()),
        "cut off": float(joined("reached_max_tree_depth").mean()),
        "order parameter": [values.tolist() for values in mean_and_error(entries)],
        "predictor": [values.tolist() for values in mean_and_error(outputs)],
    }


def deviation(first: Sequence, second: Sequence) -> float:
    """Largest difference of two means, in combined Monte-Carlo errors."""
    (first_mean, first_error), (second_mean, second_error) = first, second
    difference = np.subtract(first_mean, second_mean)
    return float(np.abs(difference / np.hypot(first_error, second_error)).max())


def in_own_process(name: str, arguments: list[str]) -> dict:
    """Figures of one sampler, measured by a fresh interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.sampling", *arguments]
        command += ["--samplers", name, "--out", str(out)]
        subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True)
        return json.loads(out.read_text())


def show(figures: dict[str, dict]) -> None:
    """Print the table, the ratio and the agreement."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Hidden Markov task: smallest bulk ESS of U, per CPU second")
    columns = {
        "numbers": ("dimension", "d"),
        "chains": ("chains", "d"),
        "draws": ("draws", "d"),
        "warm-up s": ("warm-up seconds", ".1f"),
        "CPU s": ("seconds", ".1f"),
        "min. ESS": ("minimum ess", ".0f"),
        "ESS/s": ("ess per second", ".3g"),
        "compiling s": ("compiling", ".1f"),
        "ESS/s compiled": ("ess per second compiled", ".3g"),
        "R-hat": ("rhat", ".3f"),
        "diverging": ("divergences", "d"),
        "leapfrogs": ("leapfrogs per draw", ".0f"),
        "cut off": ("cut off", ".0%"),
        "dev. of U": ("deviation of the order parameter", ".1f"),
        "dev. of f": ("deviation of the predictor", ".1f"),
    }
    table.add_column("sampler", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    first = next(iter(figures.values()))
    for name, row in figures.items():
        for quantity in ("order parameter", "predictor"):
            row[f"deviation of the {quantity}"] = deviation(row[quantity], first[quantity])
        table.add_row(name, *(format(row[key], style) for key, style in columns.values()))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    rates = {name: row["ess per second"] for name, row in figures.items()}
    for slow in set(TIMED) & set(rates) if "order-parameter" in rates else ():
        ratio = rates["order-parameter"] / rates[slow]
        console.print(f"order-parameter / {slow}: {ratio:,.0f} (aim: 1,000)")
    if "order-parameter" in figures:
        rate = rates["order-parameter"]
        console.print(f"order-parameter: {rate:.0f} ESS per CPU second (aim: 200)")


def main() -> None:
    """Measure each sampler in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    add("--width", type=int, default=10)
    add("--chains", type=int, default=4, help="chains of each sampler")
    add("--draws", type=int, default=4000, help="draws of each chain, where time does not decide")
    add("--warm-up", type=int, default=300, help="steps of adaptation of each chain")
    add("--minutes", type=float, default=20.0, help="CPU time of weights and layer-by-layer")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        options.out.write_text(json.dumps(measure(options.samplers[0], options)))
        return
    names = ("width", "chains", "draws", "warm_up", "minutes", "seed")
    arguments = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
    figures = {name: in_own_process(name, arguments) for name in options.samplers}
    show(figures)


if __name__ == "__main__":
    main()
