"""Does the minimiser return the lowest minimum? Its search against many random starts.

``python -m benchmarks.core.minima crossing``  100 problems with kernels near the temperature
``python -m benchmarks.core.minima random``  150 further ones, of random kernels
``python -m benchmarks.core.minima markov``  hidden Markov chains at small variances and inputs

The reference is the lowest action of 30 random starts. Each problem with several minima is a line;
the last line says how often and by how much the search misses the lowest, relative to S/N, and how
many evaluations it takes.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterable, Iterator

import numpy as np

import pathkernel_core as pk
from pathkernel_core.action.coordinates import ChainCoordinates
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import Study
from pathkernel_tasks.hidden_markov import HiddenMarkov

Problem = tuple[str, np.ndarray, np.ndarray, pk.Network, float]
STARTS = 30  # random ones of the reference


def crossing_problem(number: int) -> Problem:
    """A problem of 1 to 3 layers of 1 to 4 heads, with a kernel near T."""
    rng = np.random.default_rng([41, number, True])
    while True:
        layers = int(rng.integers(1, 4))
        heads = rng.integers(1, 5, layers).tolist()
        outputs = int(rng.choice([1, 1, 1, 2, 3]))
        width = np.exp(rng.uniform(np.log(3), np.log(1000)))
        widths = np.full(layers + 1, width)
        skips = None
        if rng.random() < 0.3:
            skips = [float(rng.choice([0.3, 1.0, 2.0])) for _ in range(layers)]
        elif rng.random() < 0.5:
            widths = np.exp(rng.uniform(np.log(3), np.log(1000), layers + 1))
        variances = np.exp(rng.uniform(np.log(0.1), np.log(3), layers + 2)).tolist()
        if rng.random() < 0.7:
            variances = 1.0
        network = pk.Network(heads, widths.tolist(), variances, outputs, skips)
        if network.n_paths * outputs <= 80:
            break
    examples, inputs = int(rng.integers(10, 60)), int(rng.integers(2, 10))
    tokens = rng.normal(size=(examples, 6, inputs))
    attention = [pk.QueryKey(*2 * rng.normal(size=(2, h, 3, inputs)), scale=1.0) for h in heads]
    xi = pk.attentioned_inputs(tokens, attention, readout="last", skips=network.skips)
    path = int(rng.integers(network.n_paths))
    teacher = xi[:, path] @ rng.normal(size=(inputs, outputs))
    labels = [np.sign(teacher), teacher / teacher.std(), np.sign(rng.normal(size=teacher.shape))]
    temperature = float(10 ** rng.uniform(-3, 0))
    rng.uniform()  # so that the problems stay those of the documentation
    coefficients = network.path_scales[::outputs]
    flat = (coefficients[:, None] * xi).reshape(examples, -1)
    largest = np.linalg.norm(flat, 2) ** 2 / (network.n_paths * inputs)
    largest *= np.prod(network.variances)
    scale = np.sqrt(temperature * np.exp(rng.uniform(np.log(1e-3), np.log(10))) / largest)
    name = f"{number}: heads {heads}, C = {outputs}, N = {min(widths):.0f}–{max(widths):.0f}"
    return name, scale * xi, labels[rng.integers(3)], network, temperature


def markov_problems(seeds: int) -> Iterator[Problem]:
    rows = [(0.05, 1.0, width) for width in (20, 50, 70, 100)] + [(0.1, 1.0, 250), (1.0, 0.03, 10)]
    for variant, seed in itertools.product(("plain", "strong-noise"), range(seeds)):
        study = Study(HiddenMarkov(variant=variant), widths=(10,), seeds=(seed,))
        data = prepare_data(study, seed, array_library("numpy", "float64"))
        for variance, scale, width in rows:
            network = pk.Network(data.network.heads, width, variance)
            name = f"{variant}, seed {seed}, σ² {variance:g}, inputs × {scale:g}, N = {width}"
            yield name, scale * data.xi, data.labels, network, 0.01


def lowest_of_random_starts(
    problem: pk.Problem, network: pk.Network, temperature: float
) -> tuple[float, int]:
    """Lowest action of descents from random order parameters, and how many came that low."""
    rng, coordinates = np.random.default_rng(7), ChainCoordinates(network)
    limit = pk.gp_limit(problem, network, temperature)
    actions = []
    for _ in range(STARTS):
        spread, shift = rng.choice([0.1, 0.5, 1.0, 2.0]), 2 * rng.normal()
        point = spread * rng.normal(size=coordinates.size)
        logs = shift + rng.choice([0.3, 1.0, 2.0]) * rng.normal(size=coordinates.size)
        diagonal = coordinates.scale_limit(np.ones(len(network.sizes))) > 0
        point[diagonal] = logs[diagonal]
        factors = coordinates.factors(coordinates.relative_factors(point))
        start = pk.Solution(**{**vars(limit), "factors": tuple(factors), "curvature": ()})
        try:
            solution = pk.minimise_action(problem, network, temperature, start=start, throw=False)
        except (pk.NotPositiveDefiniteError, np.linalg.LinAlgError, ValueError):
            continue
        if np.isfinite(solution.action):
            actions.append(solution.action)
    lowest = min(actions, default=np.inf)
    return lowest, sum(action <= lowest + 1e-6 * max(1, abs(lowest)) for action in actions)


def compare(problems: Iterable[Problem]) -> None:
    misses, several, total, of_limit, seconds = [], 0, 0, 0, 0.0
    evaluations = np.zeros(2, dtype=int)  # of the searches, and of the limits' starts alone
    for name, xi, labels, network, temperature in problems:
        problem = pk.Problem(xi, labels)
        begin = time.perf_counter()
        solution = pk.minimise_action(problem, network, temperature, throw=False)
        seconds += time.perf_counter() - begin
        limit = pk.minimise_action(problem, network, temperature, throw=False, starts=1)
        lowest, hits = lowest_of_random_starts(problem, network, temperature)
        unit = max(1.0, abs(solution.action))
        excess = (solution.action - min(lowest, solution.action)) / unit
        evaluations += solution.evaluations, limit.evaluations
        total, several = total + 1, several + bool(solution.other_minima)
        of_limit += limit.action - min(lowest, solution.action) > 1e-6 * unit
        if excess > 1e-6:
            misses.append(excess)
        if solution.other_minima or excess > 1e-6:
            actions = ", ".join(f"{minimum.action:.5f}" for minimum in solution.other_minima)
            print(
                f"{name}, T = {temperature:.3g}: S/N {solution.action:.5f} (limit's start "
                f"{limit.action:.5f}, others {actions}), {solution.evaluations} evaluations "
                f"({limit.evaluations} from the limit); random {lowest:.5f}, {hits} of {STARTS}"
                + (f"  MISSED by {excess:.1e}" if excess > 1e-6 else ""),
                flush=True,
            )
    largest = max(misses, default=0.0)
    print(
        f"{total} problems, {several} with several minima seen; the limit's start alone misses the "
        f"lowest in {of_limit}, the search in {len(misses)} (by up to {largest:.1e} of S/N); "
        f"{evaluations[0]} evaluations, {evaluations[1]} of the limit's start; {seconds:.1f} s of "
        "searches"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("problems", choices=["crossing", "markov", "random"])
    warnings.simplefilter("ignore")
    problems: dict[str, Iterable[Problem]] = {
        "crossing": map(crossing_problem, range(100)),
        "markov": markov_problems(5),
        "random": map(crossing_problem, range(100, 250)),
    }
    compare(problems[parser.parse_args().problems])


if __name__ == "__main__":
    main()
