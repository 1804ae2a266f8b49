"""What a run tells: U and the predictor with Monte-Carlo errors, and whether to trust them.

R-hat, effective sample sizes, Monte-Carlo errors and BFMI are ArviZ's.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from scipy.special import logsumexp

from pathkernel_core.predictor import Regression, accuracy, regression
from pathkernel_datasets.draws import settings_of
from pathkernel_datasets.measures import MEASURES

R_HAT = 1.01
ESS = 400.0
BFMI = 0.3
"""Thresholds beyond which a run is not to be trusted: Vehtari et al. 2021, Betancourt 2016."""

_SMALLEST = 4  # draws of a chain that ArviZ needs


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a run.

    Attributes
    ----------
    entries : xarray.Dataset, dims (entry,)
        Of every entry of U on and below the diagonal: ``mean``, ``sd``, ``mcse`` of the mean,
        ``r_hat`` (rank-normalised, split), ``ess_bulk`` and ``ess_tail``.
    bfmi : array, shape (chain,)
        Estimated Bayesian fraction of missing information of each chain.
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
        """What is wrong, in plain words; empty if nothing is."""
        entries, total = self.entries, self.chains * self.draws
        if self.draws < _SMALLEST:
            return [f"{self.draws} draws are too few for any diagnostic; raise --draws"]
        lines = []
        if self.chains == 1:
            lines.append("a single chain cannot show that it found everything; use --chains 4")
        else:
            worst, name = _worst(entries, "r_hat", np.nanargmax)
            if worst > R_HAT:
                lines.append(
                    f"R-hat is {worst:.3f} for U {name} (at most {R_HAT} is good): the chains do "
                    "not agree yet; raise --draws, and if that does not help --warm-up"
                )
        for column, what in (
            ("ess_bulk", "means"),
            ("ess_tail", "intervals"),
        ):
            worst, name = _worst(entries, column, np.nanargmin)
            if worst < ESS:
                lines.append(
                    f"the {column.removeprefix('ess_')} effective sample size is {worst:.0f} for U "
                    f"{name} (at least {ESS:.0f} is good): {what} and their errors are rough; "
                    "raise --draws"
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
        low = np.flatnonzero(self.bfmi < BFMI)
        if low.size:
            lines.append(
                f"BFMI is {self.bfmi.min():.2f} at worst, below {BFMI} in {low.size} of "
                f"{self.chains} chains: the energy is explored slowly, tails may be missed; raise "
                "--draws, or try another sampler"
            )
        return lines


def diagnose(run: xr.DataTree) -> Diagnostics:
    """Diagnostics of a run.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_datasets.draws.open_run`, finished or not.
    """
    values = distinct_entries(run["posterior"]["order_parameter"])
    statistics = run["sample_stats"]
    chains, draws = values.sizes["chain"], values.sizes["draw"]
    columns: dict[str, xr.DataArray] = {
        "mean": values.mean(("chain", "draw")),
        "sd": values.std(("chain", "draw")),
        "mcse": _quietly(arviz_stats.mcse, values, method="mean"),
        "r_hat": _quietly(arviz_stats.rhat, values),
        "ess_bulk": _quietly(arviz_stats.ess, values, method="bulk"),
        "ess_tail": _quietly(arviz_stats.ess, values, method="tail"),
    }
    energy = statistics["energy"].load()
    bfmi = np.full(chains, np.nan)
    if draws >= _SMALLEST:
        bfmi = arviz_stats.bfmi(energy).values
    return Diagnostics(
        xr.Dataset(columns),
        bfmi,
        chains,
        draws,
        int(statistics["diverging"].sum()),
        int(statistics["reached_max_tree_depth"].sum()),
    )


def sampled_log_evidence(run: xr.DataTree) -> tuple[float, float]:
    """Log evidence ln p(Y) from bridge sampling, in nats, and its standard error; NaN if unknown.

    It is known when a run is complete.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_datasets.draws.open_run`.
    """
    adaptation = run["adaptation"].load()
    return float(adaptation["log_evidence"]), float(adaptation["log_evidence_error"])


def distinct_entries(order_parameter: xr.DataArray) -> xr.DataArray:
    """Entries of U on and below the diagonal, (…, path, [output,] path_dual, …) → (…, entry).

    The coordinate ``entry`` names them: ``"1-1, 1-2"`` for two paths.
    """
    rows = [dim for dim in ("path", "output") if dim in order_parameter.dims]
    columns = [f"{dim}_dual" for dim in rows]
    rest = [dim for dim in order_parameter.dims if dim not in (*rows, *columns)]
    ordered = order_parameter.transpose(*rest, *rows, *columns)
    names = [
        " ".join(str(ordered[dim].values[place]) for dim, place in zip(rows, index))
        for index in np.ndindex(*(ordered.sizes[dim] for dim in rows))
    ]
    size = len(names)
    lower = np.tril_indices(size)
    values = ordered.values.reshape(*(ordered.sizes[dim] for dim in rest), size, size)
    entry = [f"{names[row]}, {names[column]}" for row, column in zip(*lower)]
    coords = {dim: ordered[dim].values for dim in rest if dim in ordered.coords}
    return xr.DataArray(
        values[(..., *lower)],
        dims=(*rest, "entry"),
        coords={**coords, "entry": entry},
        name="order_parameter",
    )


def minimum_bulk_ess(order_parameter: np.ndarray) -> float:
    """Smallest bulk effective sample size of U's entries; NaN if there are too few draws.

    Parameters
    ----------
    order_parameter : array, shape (chain, draw, …)
    """
    chains, draws = order_parameter.shape[:2]
    size = int(np.sqrt(np.prod(order_parameter.shape[2:])))
    if draws < _SMALLEST:
        return float("nan")
    lower = np.tril_indices(size)
    entries = order_parameter.reshape(chains, draws, size, size)[(..., *lower)]
    ess = array_stats.ess(entries, chain_axis=0, draw_axis=1, method="bulk")
    return float(np.min(ess))


def predictor(run: xr.DataTree) -> xr.Dataset:
    """Posterior mean and variance of the network's output on the test sets.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_datasets.draws.open_run`.

    Returns
    -------
    xarray.Dataset, dims (test_set, example) and output where there are several
        ``mean``; ``variance``, by the law of total variance the sum of ``variance_within`` draws
        and ``variance_between`` them; ``mcse``, the Monte-Carlo error of the mean.
    """
    predictions = run["predictions"]
    means = predictions["predictor_mean"].load()
    within = predictions["predictor_variance"].mean(("chain", "draw"))
    between = means.var(("chain", "draw"))
    return xr.Dataset(
        {
            "mean": means.mean(("chain", "draw")),
            "variance": within + between,
            "variance_within": within,
            "variance_between": between,
            "mcse": _quietly(arviz_stats.mcse, means, method="mean"),
        }
    )


def sampled_scores(run: xr.DataTree, labels: xr.DataArray, kind: str) -> xr.Dataset:
    """How well the sampled predictor does on each test set.

    The mean predictor is that over the draws. The log predictive density of targets is that of
    their mixture, with the temperature T as noise: ln of the mean over draws of N(y | f, v + T).

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_datasets.draws.open_run`.
    labels : DataArray, dims (test_set, example) and output where there are several
        NaN beyond the end of a test set.
    kind : "classes" or "targets"
        What the labels are.

    Returns
    -------
    xarray.Dataset, dims (test_set,)
        Every measure of that kind under its name, and with ``_mcse`` its Monte-Carlo error from a
        jackknife that leaves out half a chain at a time; that the test set is finite does not
        enter. ``mean_mcse`` is the error of the average of the kind's first measure over the test
        sets, which are evaluated on the same draws.
    """
    predictions = run["predictions"].to_dataset()
    predictions = predictions.transpose("chain", "draw", "test_set", "example", ...).load()
    wanted = labels.transpose("test_set", "example", ...).values
    score = _accuracies
    if kind == "targets":
        score = partial(_regressions, settings_of(run)["temperature"])
    chains, rounds = predictions.sizes["chain"], predictions.sizes["draw"]
    every = np.ones((chains, rounds), dtype=bool)
    whole, left_out = score(predictions, wanted, every), []
    for chain in range(chains):
        for part in (slice(None, rounds // 2), slice(rounds // 2, None)):
            kept = every.copy()
            kept[chain, part] = False
            unknown = {name: [np.nan] * len(values) for name, values in whole.items()}
            left_out.append(score(predictions, wanted, kept) if kept.any() else unknown)
    found: dict[str, Any] = {}
    for name, values in whole.items():
        others = np.array([each[name] for each in left_out])
        if name == MEASURES[kind][0].name:
            found["mean_mcse"] = ((), _jackknife(others.mean(1)))
        found[name], found[f"{name}_mcse"] = ("test_set", values), ("test_set", _jackknife(others))
    return xr.Dataset(found, coords={"test_set": predictions["test_set"].values})


def _jackknife(values: np.ndarray) -> np.ndarray:
    """Standard error from what is found with each of the batches left out."""
    return np.sqrt((len(values) - 1) * ((values - values.mean(0)) ** 2).mean(0))


def _known(labels: np.ndarray) -> np.ndarray:
    return ~np.isnan(labels.reshape(len(labels), -1)).any(axis=1)


def _accuracies(
    predictions: xr.Dataset, labels: np.ndarray, kept: np.ndarray
) -> dict[str, list[float]]:
    """Accuracy of the mean over some draws, on each test set."""
    sums = predictions["predictor_mean"].values[kept].sum(0)
    return {"accuracy": [accuracy(mean[_known(y)], y[_known(y)]) for mean, y in zip(sums, labels)]}


def _regressions(
    temperature: float, predictions: xr.Dataset, labels: np.ndarray, kept: np.ndarray
) -> dict[str, list[float]]:
    """Measures of targets by some draws, on each test set."""
    names = [field.name for field in dataclasses.fields(Regression)]
    found: dict[str, list[float]] = {name: [] for name in names}
    draws = (predictions[name].values[kept] for name in ("predictor_mean", "predictor_variance"))
    for mean, variance, y in zip(*(np.moveaxis(values, 1, 0) for values in draws), labels):
        known = _known(y)
        mean, variance, y = mean[:, known], variance[:, known], y[known]
        noisy = variance + temperature
        density = logsumexp(-0.5 * ((y - mean) ** 2 / noisy + np.log(2 * np.pi * noisy)), axis=0)
        scores = regression(mean.mean(0), variance.mean(0), y, temperature)
        mixed = float((density - np.log(len(mean))).mean())
        scores = dataclasses.replace(scores, log_predictive_density=mixed)
        for name in names:
            found[name].append(getattr(scores, name))
    return found


def _worst(
    entries: xr.Dataset, column: str, choose: Callable[[np.ndarray], Any]
) -> tuple[float, str]:
    values = entries[column].values
    if np.isnan(values).all():
        return float("nan"), ""
    place = choose(values)
    return float(values[place]), f"[{entries['entry'].values[place]}]"


def _quietly(function: Callable, values: xr.DataArray, **options: Any) -> xr.DataArray:
    """ArviZ's result, NaN without a warning where it is undefined (an entry without spread)."""
    if values.sizes["draw"] < _SMALLEST:
        return values.mean(("chain", "draw")) * np.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(values, **options)
