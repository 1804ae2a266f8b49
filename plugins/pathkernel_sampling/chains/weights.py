"""Weights of the chains of a run, the same in all means over its draws."""

from __future__ import annotations

import numpy as np
import xarray as xr

_SMALLEST = 1e-200  # share of a chain


def chain_weights(run: xr.DataTree) -> xr.DataArray:
    """Return the weights (chain,) of the chains of a run, which add up to 1.

    They are the shares of the evidences of chains of tempering, and equal of all others, which have
    no evidence of their own, and while a run is not complete.

    Parameters
    ----------
    run : xarray.DataTree
        From :func:`pathkernel_sampling.chains.store.open_run`.

    Raises
    ------
    ValueError
        If the run has no chains.
    """
    if "tempering" in run.children:
        return evidence_shares(run["tempering"].to_dataset())
    groups = run.children.values()
    counts = [group.sizes["chain"] for group in groups if "chain" in group.sizes]
    if not counts:
        raise ValueError(f"the run {run.name!r} has no chains, so that they have no weights")
    count = counts[0]
    return xr.DataArray(np.full(count, 1 / count), dims="chain")


def evidence_shares(tempering: xr.Dataset) -> xr.DataArray:
    """Return the share (chain,) of each chain in the sum of their evidences.

    A chain weighs the modes that it sees, and its evidence is that of these; where all see the
    same, the shares are equal within the errors.

    Parameters
    ----------
    tempering : xarray.Dataset
        Its ``log_evidence``, dims (chain, stage).
    """
    values = tempering["log_evidence"].sel(stage="draws", drop=True).load()
    # never 0, so that a mode which only one chain sees has a mean
    shares = np.maximum(np.exp(values - values.max()), _SMALLEST)
    return (shares / shares.sum()).drop_vars("chain", errors="ignore")


def error_factor(weights: xr.DataArray) -> float:
    """Factor of the error of a mean by weights (chain,) over that by equal ones, at least 1.

    Of weights that differ fewer chains count, 1 / Σ w² of them (Kish).
    """
    return float(np.sqrt(weights.size * np.sum(weights.values**2)))
