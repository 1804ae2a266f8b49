"""What the levels and stages of tempering gave: evidence, swaps, and whether stages agree."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_datasets.variables.labelling import coordinate, label_arrays
from pathkernel_sampling.attention.exchanges import ExchangeTarget
from pathkernel_sampling.attention.tempered import TemperedChains, start_of_arrays
from pathkernel_sampling.chains.evidence import Evidence
from pathkernel_sampling.chains.store import SampleRun
from pathkernel_sampling.tempering.levels import swap_rates
from pathkernel_sampling.tempering.stages import agree, estimate

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
        "largest difference between the masses of a component in the draws and in the stage before",
        "1",
    ),
    Variable("mass_difference_error", ("chain",), "error of that difference", "1"),
    Variable(
        "agrees", ("chain",), "whether the draws agree with the stage before of all chains", "1"
    ),
]


def tempering(run: SampleRun, chains: TemperedChains) -> xr.Dataset:
    """Summarise levels, swaps, evidence and the agreement of the stages of each chain.

    The draws of a chain continue its last stage; they are compared with those of all chains in the
    stage before, which had another mixture.
    """
    log_ratio = run.read("sample_stats/log_ratio")
    positions = run.read("unconstrained_posterior/position")
    columns: dict[str, list] = {variable.name: [] for variable in _VARIABLES}
    for chain, arrays in enumerate(run.states()):
        start = start_of_arrays(arrays)
        ladder, before = start.stage.ladder, start.stage.before
        target = ExchangeTarget(chains.model, start.directions)
        count = int(ladder.count)
        swaps = swap_rates(log_ratio[chain][:, :count], ladder.levels[:count])
        share = float(start.stage.share)
        now = estimate(target, ladder, share, log_ratio[chain], positions[chain])
        differences = np.abs(now.masses - before.masses)
        largest = differences.argmax()
        row = {
            "levels": count,
            "stages": int(start.stage.number),
            "smallest_swap": swaps.min(),
            "mean_swap": swaps.mean(),
            "log_evidence": np.array([before.log_evidence, now.log_evidence]) + target.log_copies,
            "log_evidence_error": np.array([before.error, now.error]),
            "mass_difference": differences[largest],
            "mass_difference_error": np.hypot(now.mass_errors, before.mass_errors)[largest],
            "agrees": agree(before, now),
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
    """Mean of the log evidences of all chains, and its error.

    The error is the larger of those that the chains state and that of the spread between them.
    """
    values = tempering["log_evidence"].sel(stage="draws").values
    errors = tempering["log_evidence_error"].sel(stage="draws").values
    count = len(values)
    stated = float(np.sqrt(np.sum(errors**2)) / count)
    spread = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    return Evidence(float(values.mean()), max(stated, spread))


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
