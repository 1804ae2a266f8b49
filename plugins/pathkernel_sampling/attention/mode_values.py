"""Modes of a run, with masses, accuracy and evidence, and the maxima to compare with."""

from __future__ import annotations

import warnings

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_core.learned.maximum import maximise_attention
from pathkernel_core.paths.heads import every_head
from pathkernel_core.system.errors import OverfittingWarning
from pathkernel_datasets.variables.head_axis import head_coordinates
from pathkernel_datasets.variables.labelling import coordinate, coordinate_values, label_arrays
from pathkernel_datasets.variables.measures import MEASURES, Predictions
from pathkernel_sampling.attention.attend import ATTENDING, SHOWN, AttentionChains
from pathkernel_sampling.attention.modes import (
    AttentionModes,
    HeadAttention,
    chosen_draws,
    find_modes,
)
from pathkernel_sampling.chains.store import SampleRun

_RARE = 0.05  # share of the evidence from which a maximum that no draw resembles is told


def modes_and_maxima(
    run: SampleRun,
    chains: AttentionChains,
    log_evidence: float,
    starts: int,
) -> dict[str, xr.Dataset]:
    """Modes of the draws, and maxima of the posterior density of attention from many starts.

    Parameters
    ----------
    run : SampleRun
        With all draws.
    chains : AttentionChains
    log_evidence : float
        Of all modes, in nats; NaN if unknown.
    starts : int
        Draws from the prior at which ascents start; without any there are no maxima.
    """
    positions = run.read("unconstrained_posterior/position")
    # those that the predictor is evaluated at
    positions = positions[:, chains.thin - 1 :: chains.thin]
    count, draws, dimension = positions.shape
    chosen = chosen_draws(draws, count)
    flat = positions[:, chosen].reshape(-1, dimension)
    modes = find_modes(_attention(chains, [chains.layers_at(x) for x in flat]), count)
    groups = {"modes": _mode_values(run, chains, modes, chosen, log_evidence)}
    if starts:
        groups["maxima"] = _maxima(chains, modes, starts)
    return groups


def _attention(chains: AttentionChains, layers: list) -> HeadAttention:
    """Attention (count, H, examples, M) of each layer in several draws, the mean over queries."""
    inputs = chains.test_inputs[0][:ATTENDING]
    by_draw = [
        [omega.mean(3).swapaxes(0, 1) for omega in chains.attention_of(of_draw, inputs)]
        for of_draw in layers
    ]
    return [np.stack(of_layer) for of_layer in zip(*by_draw)]


def _mode_values(
    run: SampleRun,
    chains: AttentionChains,
    modes: AttentionModes,
    chosen: slice,
    log_evidence: float,
) -> xr.Dataset:
    data, point = chains.point.data, chains.point
    measures = MEASURES[data.realisation.kind]
    means, variances = (
        run.read(f"predictions/predictor_{moment}")[:, chosen] for moment in ("mean", "variance")
    )
    values = np.empty((len(measures), len(modes.names), len(data.test_sets)))
    for mode in range(len(modes.names)):
        is_in = modes.labels == mode
        for number, (_, labels) in enumerate(data.test_sets.values()):
            labels = np.asarray(labels)
            examples = slice(len(labels))
            predictions = Predictions(
                means[is_in][:, number, examples],
                labels,
                variances[is_in][:, number, examples],
                point.point.temperature,
            )
            values[:, mode, number] = [measure.function(predictions) for measure in measures]
    inputs = chains.test_inputs[0]
    shown = modes.attention[:, :, : min(SHOWN, len(inputs))]
    variables = [
        Variable("name", ("mode",), "what the heads of the mode attend to"),
        Variable("mass", ("mode",), "posterior probability of the mode", "1"),
        Variable("mass_error", ("mode",), "Monte-Carlo error of the mass", "1"),
        Variable("mass_of_chain", ("chain", "mode"), "share of the chain's draws", "1"),
        Variable("log_evidence", ("mode",), "log evidence of the mode", "nat"),
        Variable("attention", ("mode", "head", "example", "token"), "mean attention of the head"),
        *(
            Variable(measure.name, ("mode", "test_set"), f"{measure.name} of the mode alone", "1")
            for measure in measures
        ),
    ]
    count = len(modes.names)
    first = next(iter(data.realisation.test_sets))
    return label_arrays(
        {
            "name": coordinate_values(modes.names),
            "mass": modes.masses,
            "mass_error": modes.errors,
            "mass_of_chain": modes.by_chain,
            "log_evidence": log_evidence + np.log(modes.masses),
            "attention": shown,
            **dict(zip((measure.name for measure in measures), values)),
        },
        variables,
        {
            "mode": coordinate("mode", range(1, count + 1), "mode, by decreasing mass", "1"),
            "chain": coordinate("chain", range(len(modes.by_chain)), "chain", "1"),
            **head_coordinates(every_head(chains.attention.network.heads)),
            "example": coordinate("example", range(shown.shape[2]), f"example of {first}", "1"),
            "token": coordinate("token", range(inputs.shape[1]), "key token", "1"),
            "test_set": coordinate("test_set", data.test_sets, "test set"),
        },
    )


def _maxima(chains: AttentionChains, modes: AttentionModes, starts: int) -> xr.Dataset:
    """Maxima of the marginal density from many starts, with the mode that each belongs to."""
    posterior = chains.attention
    with warnings.catch_warnings():
        # a maximum that overfits still tells that a mode exists
        warnings.simplefilter("ignore", OverfittingWarning)
        warnings.filterwarnings("ignore", message="one of .* starts ended")
        ends = maximise_attention(posterior, starts=starts, seed=chains.point.point.seed)
    layers = [posterior.layers_at(end.position) for end in ends]
    labels, is_seen = modes.space.classify(_attention(chains, layers))
    variables = [
        Variable("log_density", ("maximum",), "log density of labels and parameters", "nat"),
        Variable("log_evidence", ("maximum",), "log density with the volume around it", "nat"),
        Variable("starts", ("maximum",), "number of starts that ended at the maximum", "1"),
        Variable(
            "mode_of_maximum", ("maximum",), "mode whose attention is like the maximum's", "1"
        ),
        Variable("is_seen", ("maximum",), "whether a draw attends as the maximum does", "1"),
    ]
    return label_arrays(
        {
            "log_density": np.array([end.density.log_density for end in ends]),
            "log_evidence": np.array([end.log_evidence for end in ends]),
            "starts": np.array([end.starts for end in ends]),
            "mode_of_maximum": labels + 1,
            "is_seen": is_seen,
        },
        variables,
        {"maximum": coordinate("maximum", range(1, len(ends) + 1), "maximum, by height", "1")},
    )


def likely_maxima(maxima: xr.Dataset) -> np.ndarray:
    """Whether maxima (maximum,) have a volume not far below the largest."""
    evidence = maxima["log_evidence"].values
    largest = np.max(evidence, initial=-np.inf, where=np.isfinite(evidence))
    return np.isfinite(evidence) & (evidence > largest + np.log(_RARE))


def missed_modes(maxima: xr.Dataset) -> list[str]:
    """Sentences on maxima that no draw resembles, although their volume would make them likely."""
    evidence, lines = maxima["log_evidence"].values, []
    for number in np.flatnonzero(~maxima["is_seen"].values.astype(bool) & likely_maxima(maxima)):
        lines.append(
            f"maximum {number + 1}, where {int(maxima['starts'][number])} starts ended, attends as "
            f"no draw does, and its log evidence by Laplace's method, {evidence[number]:.1f} nats, "
            "is not far below the highest: the chains may have missed a mode; raise --warm-up and "
            "--chains"
        )
    return lines
