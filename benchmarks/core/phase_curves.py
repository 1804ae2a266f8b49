"""Are the curves of a map where full searches put them? Ten points of each kind, by bisection.

``python -m benchmarks.core.phase_curves``  hidden Markov chains, σ² and T, N = 10

Points are drawn at random among those that are neither on the grid nor at the end of a curve. Of
a crossing, bisection along σ² asks a search of 24 starts at every value which of the two minima is
the lowest. A spinodal is the end of the minimum that is followed from inside, in steps down to
1e-6.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

import pathkernel as pk
from pathkernel_core.action.minima import MOST_STARTS
from pathkernel_core.phases.coexistence import ActionFamily, System, follow
from pathkernel_core.phases.crossing_curves import CrossingPoint
from pathkernel_core.phases.spinodals import Spinodal
from pathkernel_phases.phase_plane import PhasePlane

WIDTH = 10
VARIANCES = 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0
TEMPERATURES = 0.001, 0.003, 0.01, 0.03, 0.1
POINTS = 10
MARGINS = 0.02, 0.002, 0.0002  # in ln σ², from where bisection and following begin
PRECISION = 1e-6  # in ln σ²


def main() -> None:
    warnings.simplefilter("ignore")
    task = pk.HiddenMarkov().realise(seed=0)
    xi = pk.attentioned_inputs(task.train.inputs, task.layers, readout=task.readout)
    problem = pk.Problem(xi, task.train.labels)

    def system(values: np.ndarray) -> tuple[pk.Network, float]:
        return pk.Network(task.heads, WIDTH, values[0]), float(values[1])

    family = ActionFamily(problem, system)
    plane = PhasePlane(family, [np.log(VARIANCES), np.log(TEMPERATURES)])
    for name, steps in (
        ("search on the grid", plane.search()),
        ("crossings", plane.follow_crossings()),
        ("spinodals", plane.follow_spinodals()),
    ):
        before, start = family.evaluations, time.process_time()
        for _ in steps:
            pass
        seconds = time.process_time() - start
        print(f"{name}: {family.evaluations - before} evaluations, {seconds:.1f} CPU s", flush=True)
    print(f"{len(plane.curves)} curves of {sum(len(c.points) for c in plane.curves)} points")
    generator = np.random.default_rng(0)
    # without the ends: two spinodals meet in a cusp, three crossings at a triple point
    points = [point for curve in plane.curves for point in curve.points[1:-1]]
    inside = [point for point in points if not _is_on_the_grid(plane, point.point)]
    print("kind | σ² | T | σ² by bisection | relative difference")
    for kind, locate in (("crossing", _bisected_crossing), ("spinodal", _bisected_spinodal)):
        of_kind = [p for p in inside if isinstance(p, Spinodal) is (kind == "spinodal")]
        chosen = generator.choice(len(of_kind), POINTS, replace=False)
        differences = []
        for number in chosen:
            point = of_kind[int(number)]
            bisected = locate(family, system, problem, point)
            variance, temperature = np.exp(point.point)
            located = "too near another minimum", ""
            if bisected is not None:
                differences.append(abs(np.expm1(bisected - point.point[0])))
                located = f"{np.exp(bisected):.6g}", f"{differences[-1]:.1e}"
            print(
                f"{kind} | {variance:.6g} | {temperature:.4g} | {' | '.join(located)}", flush=True
            )
        print(f"largest of {len(differences)} {kind}s: {max(differences):.1e}", flush=True)


def _is_on_the_grid(plane: PhasePlane, point: np.ndarray) -> bool:
    return any(value in values for value, values in zip(point, plane.grid))


def _bisected_crossing(
    family: ActionFamily, system: System, problem: pk.Problem, point: CrossingPoint
) -> float:
    """ln σ² at which the lowest of many starts changes from one minimum to the other."""
    kinds = [_direction(minimum.solution) for minimum in point.minima]

    def is_the_first(log_variance: float) -> bool:
        network, temperature = system(np.exp([log_variance, point.point[1]]))
        lowest = _direction(pk.minimise_action(problem, network, temperature, starts=MOST_STARTS))
        return np.linalg.norm(lowest - kinds[0]) < np.linalg.norm(lowest - kinds[1])

    low, high = point.point[0] - MARGINS[0], point.point[0] + MARGINS[0]
    first_is_below = is_the_first(low)
    assert first_is_below != is_the_first(high)
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if is_the_first(middle) == first_is_below else (low, middle)
    return (low + high) / 2


def _direction(solution: pk.Solution) -> np.ndarray:
    """Order parameter as a comparable vector: logarithms of its eigenvalues and diagonal."""
    diagonal = np.diag(solution.order_parameter)
    return np.log(np.concatenate([np.linalg.eigvalsh(solution.order_parameter), diagonal]))


def _bisected_spinodal(
    family: ActionFamily, system: System, problem: pk.Problem, point: Spinodal
) -> float | None:
    """ln σ² at which a minimum that is followed from the inside ends.

    None next to a cusp, where a descent that slides onto another minimum hardly moves.
    """
    away = family.stationary_solution(point.point, point.coordinates)
    for margin in MARGINS:  # near a cusp, the minimum exists in a narrow range
        inside = np.array([margin * np.sign(point.inside[0]), 0.0])
        # along the mode there is the minimum on one side, the saddle on the other
        for step in (0.3, -0.3, 0.1, -0.1, 0.03, -0.03):
            coordinates = point.coordinates + step * point.mode
            minimum = family.descend(point.point + inside, away, coordinates)
            if minimum is not None:
                end = follow(family, minimum, point.point - inside, resolution=PRECISION)
                if 0 < abs(end.point[0] - minimum.point[0]) < 1.5 * margin:
                    return float(end.point[0])
    return None


if __name__ == "__main__":
    main()
