"""Effect of the scale of the pixels: ``python -m benchmarks.studies.patches trained:2-4-512-128``.

The published code divides pixels by the standard deviation of their data set before it standardises
patches, so that the floor of 1e-5 under a patch's variance weighs less than on grey values. The
trained network, and the theory with its heads on 600 episodes of validation characters, classify
the same 1000 episodes of each test set in both ways.
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

import pathkernel_core as pk
from pathkernel_core.contracts.task import Examples
from pathkernel_one_shot.held_out import TEST_SETS, VALIDATION, episode_set
from pathkernel_one_shot.tokens import WIDTH, patches
from pathkernel_trained.bundled import heads_path
from pathkernel_trained.evaluator import path_outputs
from pathkernel_trained.path_network import read_paths

DEVIATIONS = dict(zip((VALIDATION, *TEST_SETS), (0.084, 0.084, 0.353, 0.308)))
POINTS = ((10, 0.75), (100, 0.25), (None, 0.05))  # width, none in the limit, and temperature


def main() -> None:
    """Print how patches and kernels differ, and a table of accuracies on grey and scaled pixels."""
    network = read_paths(heads_path(sys.argv[1]))
    sets: dict[str, list[Examples]] = {}
    for name, deviation in DEVIATIONS.items():
        count = 600 if name == VALIDATION else 1000
        grey = episode_set(name, count, network.label_vectors)
        scaled = dataclasses.replace(grey, images=grey.images / deviation)
        norms = [np.linalg.norm(patches(drawn.images), axis=-1) for drawn in (grey, scaled)]
        changed = np.mean(abs(norms[0] - norms[1]) > 0.05 * WIDTH**0.5)
        print(f"{name}: {changed:.1%} of the patches differ in norm by more than .05")
        sets[name] = [_joined(drawn.batches()) for drawn in (grey, scaled)]
    theories = [_predictors(network.layers, drawn) for drawn in sets.pop(VALIDATION)]
    correlation = np.corrcoef(*(kernel.ravel() for _, kernel in theories))[0, 1]
    print(f"Entries of the limit's kernel correlate at {correlation:.5f}")
    names = ["trained", *("GP limit" if width is None else f"N = {width}" for width, _ in POINTS)]
    print(f"{'test set':>15}", *(f"{name:>15}" for name in names), "(grey, scaled)")
    for test_set, scales in sets.items():
        right = []
        for examples, (solutions, _) in zip(scales, theories):
            xi = pk.attentioned_inputs(examples.inputs, network.layers, readout="mean")
            means = [path_outputs(network, [examples], "mean").output()]
            means += [solution.predict_mean(xi) for solution in solutions]
            right.append([np.mean(mean * examples.labels > 0) for mean in means])
        print(f"{test_set:>15}", *(f"{grey:>9.3f}, {scaled:.3f}" for grey, scaled in zip(*right)))


def _joined(batches) -> Examples:
    parts = list(batches)
    return Examples(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("inputs", "labels"))
    )


def _predictors(layers, train: Examples) -> tuple[list[pk.Solution], np.ndarray]:
    """Solutions at the points, and the kernel of the limit."""
    xi = pk.attentioned_inputs(train.inputs, layers, readout="mean")
    problem = pk.Problem(xi, train.labels)
    counts = [layer.n_heads for layer in layers]
    solutions = [
        pk.gp_limit(problem, pk.Network(counts, 1), temperature)
        if width is None
        else pk.minimise_action(problem, pk.Network(counts, width), temperature)
        for width, temperature in POINTS
    ]
    return solutions, pk.total_kernel(xi, np.eye(xi.shape[1]))


if __name__ == "__main__":
    main()
