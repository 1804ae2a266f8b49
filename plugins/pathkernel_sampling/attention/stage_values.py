"""What the levels and stages of tempering gave: evidence, swaps, and whether stages agree."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_datasets.variables.labelling import coordinate, label_arrays
from pathkernel_sampling.attention.exchanges import DomainTarget
from pathkernel_sampling.attention.tempered import TemperedChains, start_of_arrays
from pathkernel_sampling.chains.evidence import Evidence
from pathkernel_sampling.chains.store import SampleRun
from pathkernel_sampling.tempering.levels import swap_rates
from pathkernel_sampling.tempering.stages import agree, component_masses, stage_evidence

_VARIABLES = [
    Variable("levels", ("chain",), "number of levels between mixture and posterior", "1"),
    Variable("stages", ("chain",), "number of stages, each with a mixture of its own", "1"),
    Variable("smallest_swap", ("chain",), "smallest acceptance of swaps of neighbours", "1"),
    Variable("mean_swap", ("chain",), "mean acceptance of swaps of neighbours", "1"),
    Variable("log_evidence", ("chain", "stage"), "log evidence ln p(Y)", "nat"),
    Variable("log_evidence_error", ("chain", "stage"), "error of the log evidence", "nat"),
    Variable(
        "mass_difference",
        ("chain",),
        "largest difference between the masses of a component in the stage before and in the draws",
        "1",
    ),
    Variable("agrees", ("chain",), "whether the draws agree with the stage before", "1"),
]


def tempering(run: SampleRun, chains: TemperedChains) -> xr.Dataset:
    """Summarise levels, swaps, evidence and the agreement of the stages of each chain.

    The draws continue the last stage; they are compared with the stage before it, which had another
    mixture.
    """
    log_ratio = run.read("sample_stats/log_ratio")
    positions = run.read("unconstrained_posterior/position")
    columns: dict[str, list] = {variable.name: [] for variable in _VARIABLES}
    for chain, arrays in enumerate(run.states()):
        start = start_of_arrays(arrays)
        tempered, ladder = start.tempered, start.tempered.ladder
        log_copies = DomainTarget(chains.model, start.directions).log_copies
        count = int(ladder.count)
        swaps = swap_rates(log_ratio[chain][:, :count], ladder.levels[:count])
        value, error = stage_evidence(ladder, float(tempered.share), log_ratio[chain])
        masses, mass_errors = component_masses(ladder.mixture, positions[chain])
        before = tempered.log_evidence[0], tempered.error[0]
        pairs = [np.array(pair) for pair in zip(before, (value, error))]
        both = [
            np.stack([tempered.masses[0], masses]),
            np.stack([tempered.mass_errors[0], mass_errors]),
        ]
        row = {
            "levels": count,
            "stages": int(tempered.stages),
            "smallest_swap": swaps.min(),
            "mean_swap": swaps.mean(),
            "log_evidence": pairs[0] + log_copies,
            "log_evidence_error": pairs[1],
            "mass_difference": np.abs(both[0][1] - both[0][0]).max(),
            "agrees": agree(*pairs, *both),
        }
        for name, entry in row.items():
            columns[name].append(entry)
    return label_arrays(
        {name: np.array(values) for name, values in columns.items()},
        _VARIABLES,
        {
            "chain": coordinate("chain", range(len(positions)), "chain", "1"),
            "stage": coordinate("stage", ["before", "draws"], "stage before the last, or draws"),
        },
    )


def log_evidence(tempering: xr.Dataset) -> Evidence:
    """Log evidence of all chains, the mean of their evidences, and its error.

    The error is the larger of those that the chains state and that of the spread between them.
    """
    values = tempering["log_evidence"].sel(stage="draws").values
    errors = tempering["log_evidence_error"].sel(stage="draws").values
    count = len(values)
    stated = float(np.sqrt(np.sum(errors**2)) / count)
    spread = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    largest = values.max()
    mean = float(largest + np.log(np.mean(np.exp(values - largest))))
    return Evidence(mean, max(stated, spread))


def warnings(tempering: xr.Dataset) -> list[str]:
    """Sentences on stages that do not agree, swaps that are rare, and chains that differ."""
    lines = []
    disagreeing = int((~tempering["agrees"].astype(bool)).sum())
    if disagreeing:
        lines.append(
            f"in {disagreeing} of {tempering.sizes['chain']} chains the draws do not agree with "
            "the stage before, in evidence or in masses: the modes are not weighed yet; raise "
            "--warm-up and --draws"
        )
    smallest = float(tempering["smallest_swap"].min())
    if smallest < _RARE:
        lines.append(
            f"neighbouring levels swap in only {smallest:.2f} of the sweeps (at least {_RARE} is "
            "good): draws hardly move between modes; raise --warm-up"
        )
    values = tempering["log_evidence"].sel(stage="draws")
    error = np.sqrt((tempering["log_evidence_error"].sel(stage="draws") ** 2).mean())
    if tempering.sizes["chain"] > 1 and float(values.std(ddof=1)) > 3 * float(error):
        lines.append(
            f"the log evidences of the chains spread by {float(values.std(ddof=1)):.2f} nats, with "
            f"errors of {float(error):.2f}: some chains miss a mode; raise --warm-up"
        )
    return lines


_RARE = 0.2  # acceptance of swaps
