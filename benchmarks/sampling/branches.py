"""Which of two minima holds the posterior: chains from both, and the evidence of each.

``python -m benchmarks.sampling.branches``  hidden Markov chains near a crossing of two minima

Chains of the exact sampler of order parameters start at each minimum. The evidence of a branch is
estimated by bridge sampling from its own chains; it is that of the branch alone as long as they do
not leave it, as the last column shows: mean squared distances of ln tr U to that of each minimum.
"""

from __future__ import annotations

import warnings

import numpy as np

import pathkernel_core as pk
from benchmarks.sampling.chains import sample
from pathkernel_datasets.study.prepared import array_library, prepare_data
from pathkernel_datasets.study.study import Study
from pathkernel_sampling.chains.evidence import log_evidence
from pathkernel_sampling.models.models import build_model, position_at
from pathkernel_tasks.hidden_markov import HiddenMarkov

POINTS = [  # variances, scale of the inputs, widths
    (0.05, 1.0, (80, 88, 90, 91, 92, 100)),
    (0.1, 1.0, (250, 300, 310, 320)),
    (1.0, 0.03, (10, 14)),
]
TEMPERATURE, CHAINS, WARM_UP, DRAWS = 0.01, 4, 600, 1500


def branches(problem: pk.Problem, network: pk.Network, narrow: pk.Solution) -> list[pk.Solution]:
    """The minimum below the limit, and the one below a narrower network's solution."""
    limit = pk.minimise_action(problem, network, TEMPERATURE, starts=1)
    used = pk.minimise_action(problem, network, TEMPERATURE, start=narrow)
    equal = abs(limit.action - used.action) < 1e-6 * abs(used.action)
    return sorted([limit] if equal else [limit, used], key=lambda solution: solution.action)


def main() -> None:
    warnings.simplefilter("ignore")
    study = Study(HiddenMarkov(), widths=(10,), seeds=(0,))
    data = prepare_data(study, 0, array_library("numpy", "float64"))
    print("σ² | inputs × | N | S/N | ln p(Y) saddle | ln p(Y) bridge | distance to each minimum")
    for variance, scale, widths in POINTS:
        xi = scale * data.xi
        problem = pk.Problem(xi, data.labels)
        narrow = pk.Network(data.network.heads, min(widths) / 2, variance)
        narrow = pk.minimise_action(problem, narrow, TEMPERATURE)
        for width in widths:
            network = pk.Network(data.network.heads, width, variance)
            model = build_model("order-parameter", xi, data.labels, network, TEMPERATURE)
            solutions = branches(problem, network, narrow)
            for solution in solutions:
                start = position_at(network, solution.factors)
                draws = sample(model, CHAINS, WARM_UP, DRAWS, seed=0, position=start)
                evidence = log_evidence(model, draws["position"], draws["lp"])
                traces = np.log(np.trace(draws["order_parameter"], axis1=2, axis2=3))
                logs = [np.log(np.trace(np.asarray(s.order_parameter))) for s in solutions]
                distances = [f"{np.mean((traces - log) ** 2):.2g}" for log in logs]
                print(
                    f"{variance:g} | {scale:g} | {width} | {solution.action:.4f} | "
                    f"{solution.log_evidence:.1f} | {evidence.log_evidence:.1f} ± "
                    f"{evidence.error:.2f} | {', '.join(distances)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
