"""Diagnostics and moments of a run: U and the predictor with Monte-Carlo errors, and warnings.

R-hat, effective sample sizes, Monte-Carlo errors and BFMI are ArviZ's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats

from pathkernel_datasets.variables.labelling import output_names
from pathkernel_datasets.variables.measures import MEASURES, Predictions
from pathkernel_sampling.chains.draw_variables import settings_of

R_HAT = 1.01
ESS = 400.0
BFMI = 0.3
"""Thresholds beyond which a run is not to be trusted: Vehtari et al. 2021, Betancourt 2016."""

_SMALLEST = 4  # draws of a chain that ArviZ needs
_DRAWS = ("chain", "draw")


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a run.

    Read :meth:`warnings` before any mean. Judge the theory by ``mcse``, the error of the mean, and
    not by ``sd``, the spread of single networks. If R-hat stays above 1.01 with more draws, chains
    may sit in different minima of the action, and their common mean then means little.

    Attributes
    ----------
    entries : xarray.Dataset, dims (entry,)
        Diagnostics of every entry of U on and below the diagonal: ``mean``, ``sd``, ``mcse`` of
        the mean, ``r_hat`` (rank-normalised, split), ``ess_bulk`` and ``ess_tail``.
    bfmi : array, shape (chain,)
        Estimated Bayesian fraction of missing information of each chain; NaN of replicas.
    chains, draws : int
        Number of chains, and of draws of each.
    divergences, saturated : int
        Trajectories, in all chains, that diverged or were cut off at the largest tree depth.
    """

    entries: xr.Dataset
    bfmi: np.ndarray
    chains: int
    draws: int
    divergences: int
    saturated: int

    def warnings(self) -> list[str]:
        """Return a sentence for every diagnostic beyond its threshold, with a remedy."""
        total, lines = self.chains * self.draws, []
        if self.draws < _SMALLEST:
            return [f"{self.draws} draws are too few for any diagnostic; raise --draws"]
        if self.chains == 1:
            lines.append("a single chain cannot show that it found everything; use --chains 4")
        elif (r_hat := self.entries["r_hat"]).max() > R_HAT:
            lines.append(
                f"R-hat is {r_hat.max():.4f} for U [{r_hat.idxmax().item()}] (at most {R_HAT} is "
                "good): the chains do not agree yet; raise --draws, and if that does not help "
                "--warm-up"
            )
        for name, moments in (("bulk", "means"), ("tail", "intervals")):
            if (ess := self.entries[f"ess_{name}"]).min() < ESS:
                lines.append(
                    f"the {name} effective sample size is {ess.min():.0f} for U "
                    f"[{ess.idxmin().item()}] (at least {ESS:.0f} is good): {moments} and their "
                    "errors are rough; raise --draws"
                )
        if self.divergences:
            lines.append(
                f"{self.divergences} of {total} trajectories diverged: some region of the posterior"
                " is not reached, and means may be off; try a longer --warm-up, or another sampler"
            )
        if self.saturated:
            lines.append(
                f"{self.saturated} of {total} trajectories were cut off at the largest tree depth: "
                "the draws are right but costly; try a longer --warm-up, or another sampler"
            )
        if low := int((self.bfmi < BFMI).sum()):
            lines.append(
                f"BFMI is {self.bfmi.min():.2f} at worst, below {BFMI} in {low} of "
                f"{self.chains} chains: the energy is explored slowly, tails may be missed; raise "
                "--draws, or try another sampler"
            )
        return lines


def diagnose(run: xr.DataTree) -> Diagnostics:
    """Compute the diagnostics of a run.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_sampling.chains.store.open_run`, finished or not.
    """
    values = distinct_entries(run["posterior"]["order_parameter"])
    statistics = run["sample_stats"]
    chains, draws = (values.sizes[dim] for dim in _DRAWS)
    entries = {
        **moments_of_draws(values),
        "r_hat": diagnose_quietly(arviz_stats.rhat, values),
        "ess_bulk": diagnose_quietly(arviz_stats.ess, values, method="bulk"),
        "ess_tail": diagnose_quietly(arviz_stats.ess, values, method="tail"),
    }
    bfmi = np.full(chains, np.nan)
    if draws >= _SMALLEST and "energy" in statistics:  # replicas swap theirs
        bfmi = arviz_stats.bfmi(statistics["energy"].load()).values
    names = ("diverging", "reached_max_tree_depth")
    counts = (int(statistics[name].sum()) if name in statistics else 0 for name in names)
    return Diagnostics(xr.Dataset(entries), bfmi, chains, draws, *counts)


def moments_of_draws(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Compute ``mean`` and ``sd`` over draws, and ``mcse``, the Monte-Carlo error of the mean.

    Parameters
    ----------
    values : DataArray, dims (chain, draw, …)
    """
    return {
        "mean": values.mean(_DRAWS),
        "sd": values.std(_DRAWS),
        "mcse": diagnose_quietly(arviz_stats.mcse, values, method="mean"),
    }


def sampled_log_evidence(run: xr.DataTree) -> tuple[float, float]:
    """Return the log evidence ln p(Y) from bridge sampling, in nats, and its standard error.

    Both are NaN until a run is complete, and where its draws give no estimate.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_sampling.chains.store.open_run`.
    """
    adaptation = run["adaptation"].load()
    return float(adaptation["log_evidence"]), float(adaptation["log_evidence_error"])


def distinct_entries(order_parameter: xr.DataArray) -> xr.DataArray:
    """Select the entries of U on and below the diagonal, (…, path, path_dual, …) → (…, entry).

    The coordinate ``entry`` names them: ``"1-1, 1-2"`` for two paths. Of several outputs a row is
    a path with an output.
    """
    rows = [dim for dim in ("path", "output") if dim in order_parameter.dims]
    columns = [f"{dim}_dual" for dim in rows]
    outer = [dim for dim in order_parameter.dims if dim not in (*rows, *columns)]
    ordered = order_parameter.transpose(*outer, *rows, *columns)
    labels = {dim: [str(value) for value in ordered[dim].values] for dim in rows}
    if "output" in labels:
        labels["output"] = output_names(ordered["output"].values)
    names = [
        " ".join(labels[dim][number] for dim, number in zip(rows, index))
        for index in np.ndindex(*(ordered.sizes[dim] for dim in rows))
    ]
    size = len(names)
    lower = np.tril_indices(size)
    values = ordered.values.reshape(*(ordered.sizes[dim] for dim in outer), size, size)
    coords: dict[Any, Any] = {dim: ordered[dim].values for dim in outer if dim in ordered.coords}
    coords["entry"] = [f"{names[row]}, {names[column]}" for row, column in zip(*lower)]
    return xr.DataArray(values[(..., *lower)], coords, (*outer, "entry"), name="order_parameter")


def minimum_bulk_ess(order_parameter: np.ndarray) -> float:
    """Return the smallest bulk effective sample size of U's entries; NaN from too few draws.

    Parameters
    ----------
    order_parameter : array, shape (chain, draw, …)
    """
    chains, draws = order_parameter.shape[:2]
    if draws < _SMALLEST:
        return float("nan")
    size = int(np.sqrt(np.prod(order_parameter.shape[2:])))
    lower = np.tril_indices(size)
    entries = order_parameter.reshape(chains, draws, size, size)[(..., *lower)]
    ess = array_stats.ess(entries, chain_axis=0, draw_axis=1, method="bulk")
    return float(np.min(ess))


def predictor(run: xr.DataTree) -> xr.Dataset:
    """Compute the posterior mean and variance of the network's output on the test sets.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_sampling.chains.store.open_run`.

    Returns
    -------
    xarray.Dataset, dims (test_set, example) and output where there are several
        ``mean``; ``variance``, by the law of total variance the sum of ``variance_within`` draws
        and ``variance_between`` them; ``mcse``, the Monte-Carlo error of the mean.
    """
    predictions = run["predictions"]
    moments = moments_of_draws(predictions["predictor_mean"].load())
    within = predictions["predictor_variance"].load().mean(_DRAWS)
    between = moments["sd"] ** 2
    return xr.Dataset(
        {
            "mean": moments["mean"],
            "variance": within + between,
            "variance_within": within,
            "variance_between": between,
            "mcse": moments["mcse"],
        }
    )


def sampled_predictor_scores(run: xr.DataTree, labels: xr.DataArray, kind: str) -> xr.Dataset:
    """Score the sampled predictor on each test set.

    The mean predictor is that over the draws. The log predictive density of targets is that of
    their mixture, with the temperature T as noise: ln of the mean over draws of N(y | f, v + T).

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_sampling.chains.store.open_run`.
    labels : DataArray, dims (test_set, example) and output where there are several
        NaN beyond the end of a test set.
    kind : "classes" or "targets"
        Kind of the labels.

    Returns
    -------
    xarray.Dataset, dims (test_set,)
        Every measure of that kind under its name, and with ``_mcse`` its Monte-Carlo error from a
        jackknife that leaves out half a chain at a time; that the test set is finite does not
        enter. ``mean_mcse`` is the error of the average of the kind's first measure over the test
        sets, which are evaluated on the same draws.
    """
    predictions = run["predictions"].to_dataset()
    predictions = predictions.transpose(*_DRAWS, "test_set", "example", ...).load()
    targets = labels.transpose("test_set", "example", ...).values
    measures, moments, temperature = MEASURES[kind], ["predictor_mean"], np.nan
    if kind == "targets":
        moments.append("predictor_variance")
        temperature = settings_of(run)["temperature"]

    def scores(subset: np.ndarray) -> np.ndarray:
        """Measures (test_set, measure) by the draws of a mask (chain, draw)."""
        if not subset.any():
            return np.full((len(targets), len(measures)), np.nan)
        values = []
        for number, y in enumerate(targets):
            is_label = ~np.isnan(y.reshape(len(y), -1)).any(axis=1)
            mean, *variance = (
                predictions[name].values[subset][:, number, is_label] for name in moments
            )
            predicted = Predictions(
                mean,
                y[is_label],
                variance[0] if variance else None,
                temperature,
            )
            values.append([measure.function(predicted) for measure in measures])
        return np.array(values)

    # by half chains, longer than draws are correlated: an accuracy is no mean over draws, so that
    # no effective sample size gives its error
    chains, rounds = (predictions.sizes[dim] for dim in _DRAWS)
    blocks = 2 * np.arange(chains)[:, None] + (np.arange(rounds) >= rounds // 2)
    values = scores(blocks >= 0)
    left_out = np.array([scores(blocks != number) for number in range(2 * chains)])
    errors = _jackknife(left_out)
    dataset = xr.Dataset({"mean_mcse": _jackknife(left_out.mean(1))[0]})
    for number, name in enumerate(measure.name for measure in measures):
        dataset[name] = "test_set", values[:, number]
        dataset[f"{name}_mcse"] = "test_set", errors[:, number]
    return dataset.assign_coords(test_set=predictions["test_set"].values)


def _jackknife(values: np.ndarray) -> np.ndarray:
    """Standard error from the values without each of the blocks."""
    return np.sqrt((len(values) - 1) * ((values - values.mean(0)) ** 2).mean(0))


def diagnose_quietly(function: Callable, values: xr.DataArray, **options: Any) -> xr.DataArray:
    """ArviZ's result, NaN without a warning where it is undefined (an entry without spread)."""
    if values.sizes["draw"] < _SMALLEST:
        return values.mean(_DRAWS) * np.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(values, **options)
