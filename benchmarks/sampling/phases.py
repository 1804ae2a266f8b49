"""Does a finite network fall silent where the theory says? Chains from both sides of a crossing.

``python -m benchmarks.sampling.phases``  twenty examples, one layer of two heads, N = 20, T = 0.01

The theory has two states along the prior variance σ²: silent, with U near 0, and in
use. Chains of the no-U-turn sampler over all weights start in both states at variances below,
between and above the spinodals, from networks at equilibrium beyond the spinodals. A chain leaves
its state when tr U first passes the geometric mean of the two traces at the crossing. Its second
half counts for a state if it lies there entirely.

The exact columns come from importance sampling of the order parameters, whose proposals are fitted
to chains from both minima. They do not depend on a chain's passing from one state to the other.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import jax
import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_t

import pathkernel_core as pk
from benchmarks.sampling.chains import mean_and_error, sample
from pathkernel_core.contracts.sampler import Model
from pathkernel_core.phases.coexistence import ActionFamily, StatePoint, crossings_between, follow
from pathkernel_core.phases.spinodals import spinodal_towards
from pathkernel_sampling.chains.chain import ChainState, draw_states, warm_up
from pathkernel_sampling.models.models import build_model, position_at

HEADS, WIDTH, TEMPERATURE = (2,), 20, 0.01
XI = 0.1 * np.random.default_rng(3).normal(size=(20, 2, 4))
LABELS = np.sign(XI[:, 0, 0])  # one head tells the label
PROBLEM = pk.Problem(XI, LABELS)
SIDES = 0.02, 0.4  # variances far below and far above the crossing
LIMITS = 1e-4, 10.0  # up to which the states are followed
FRACTIONS = (-1.4, -0.5, -0.1, 0.1, 0.5, 1.4)  # of ln(spinodal / crossing); negative: below
CHAINS, WARM_UP, DRAWS = 2, 300, 400  # of all weights
PROPOSALS = 20_000  # of importance sampling, from each fit


FAMILY = ActionFamily(PROBLEM, lambda values: (pk.Network(HEADS, WIDTH, values[0]), TEMPERATURE))


def scaled_model(name: str, variance: float) -> Model:
    """Posterior as that of unit prior variance and scaled inputs; its U lacks the factor σ⁴.

    All variances then share one compiled model.
    """
    return build_model(name, variance**1.5 * XI, LABELS, pk.Network(HEADS, WIDTH), TEMPERATURE)


@jax.jit
def densities(model: Model, positions: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Log density of a model, and the order parameter, at positions (draw, dimension)."""
    return jax.lax.map(lambda x: (model.log_density(x), model.order_parameter(x)), positions)


@jax.jit
def moved(model: Model, state: ChainState, factor: float) -> ChainState:
    """State of a chain after a change of the model, its position multiplied by a factor."""
    position = factor * state.position
    value, gradient = jax.value_and_grad(model.log_density)(position)
    return state._replace(position=position, log_density=value, gradient=gradient)


def traces_from(start: float, variances: list[float]) -> Iterator[np.ndarray]:
    """Yield tr U (chain, draw) at every variance, of networks at equilibrium at another one."""
    keys = jax.random.split(jax.random.key(0), (CHAINS, 2))
    states = [warm_up(scaled_model("weights", start), pair[0], WARM_UP) for pair in keys]
    for variance in variances:
        model, factor = scaled_model("weights", variance), math.sqrt(start / variance)
        draws = [
            draw_states(model, moved(model, state, factor), pair[1], DRAWS)[1]
            for state, pair in zip(states, keys)
        ]
        matrices = np.stack([run["order_parameter"] for run in draws])
        yield variance**2 * np.trace(matrices, axis1=2, axis2=3)


def exact_traces(
    variance: float, minima: list[pk.Solution | None], boundary: float
) -> tuple[float, float, float]:
    """Posterior mean of tr U in either state, and the probability of the state in use."""
    model, proposals, fits = scaled_model("order-parameter", variance), [], []
    for minimum in minima:
        if minimum is not None:
            start = position_at(pk.Network(HEADS, WIDTH, variance), minimum.factors)
            positions = sample(model, 2, 300, 1000, position=start)["position"]
            positions = positions.reshape(-1, model.dimension)
            fit = multivariate_t(positions.mean(0), np.cov(positions.T), df=5, seed=0)
            fits.append(fit)
            proposals.append(fit.rvs(PROPOSALS))
    positions = np.concatenate(proposals)
    values, matrices = map(np.asarray, densities(model, positions))
    logs = values - logsumexp([fit.logpdf(positions) for fit in fits], axis=0)
    weights = np.exp(np.where(np.isnan(logs), -np.inf, logs) - np.nanmax(logs))
    traces = variance**2 * np.trace(matrices, axis1=1, axis2=2)
    used = traces > boundary
    means = [
        np.average(traces[side], weights=weights[side]) if weights[side].sum() else math.nan
        for side in (~used, used)
    ]
    return *means, weights[used].sum() / weights.sum()


def variances_around(crossing: float, spinodals: tuple[float, float]) -> list[float]:
    return [
        crossing * (spinodals[fraction > 0] / crossing) ** abs(fraction) for fraction in FRACTIONS
    ]


def minimum_at(state: StatePoint, variance: float) -> pk.Solution | None:
    """Minimum of a state at a variance; None beyond its end."""
    target = np.log([variance])
    reached = follow(FAMILY, state, target)
    return reached.solution if np.array_equal(reached.point, target) else None


def settled(traces: np.ndarray, state: int, boundary: float) -> str:
    """Mean of the second halves that lie in a state, its error, and the number of chains."""
    halves = traces[:, traces.shape[1] // 2 :]
    halves = halves[((halves > boundary) == state).all(1)]
    if not len(halves):
        return "-"
    mean, error = mean_and_error(halves)
    return f"{mean:.3g} ± {error:.1g} ({len(halves)})"


def departures(traces: np.ndarray, state: int, boundary: float) -> str:
    """Number of chains that leave a state, and the median number of draws before they do."""
    outside = (traces > boundary) != state
    first = np.where(outside.any(1), outside.argmax(1), np.inf)
    median = np.median(first)
    time = f"{median:.0f}" if np.isfinite(median) else f"> {traces.shape[1]}"
    return f"{np.isfinite(first).sum()} of {len(first)}, {time}"


def main() -> None:
    warnings.simplefilter("ignore")
    (crossing,) = crossings_between(FAMILY, *(FAMILY.search(np.log([v])) for v in SIDES))
    states = crossing.minima
    ends = [
        spinodal_towards(FAMILY, state, np.log([end])) for state, end in zip(states[::-1], LIMITS)
    ]
    spinodals = tuple(math.exp(end.point[0]) for end in ends)
    at_crossing = math.exp(crossing.point[0])
    boundary = math.exp(np.mean([np.log(trace(state.solution)) for state in states]))
    print(
        f"crossing {at_crossing:.4f}, spinodals {spinodals[0]:.4f} and "
        f"{spinodals[1]:.4f}; boundary tr U = {boundary:.2g}; {CHAINS} chains "
        f"of {DRAWS} draws from either state\n"
        "σ² | silent: theory | exact | chains (number) | in use: theory | exact | chains (number) "
        "| p(in use) | leave silent, after draws | leave use, after draws",
        flush=True,
    )
    variances = variances_around(at_crossing, spinodals)
    runs = [traces_from(start, variances) for start in (variances[0], variances[-1])]
    for variance, *starts in zip(variances, *runs):
        minima = [minimum_at(state, variance) for state in states]
        *means, probability = exact_traces(variance, minima, boundary)
        cells = [f"{variance:.4f}"]
        for state, minimum in enumerate(minima):
            cells.append("-" if minimum is None else f"{trace(minimum):.3g}")
            cells.append(f"{means[state]:.3g}")
            cells.append(settled(np.concatenate(starts), state, boundary))
        cells.append(f"{probability:.2g}")
        cells += [departures(traces, state, boundary) for state, traces in enumerate(starts)]
        print(" | ".join(cells), flush=True)


def trace(solution: pk.Solution) -> float:
    return float(np.trace(solution.order_parameter))


if __name__ == "__main__":
    main()
