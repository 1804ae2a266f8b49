"""Calibration of a study's probabilities: the largest against the fraction correct, in bins."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.variables.measures import reliability

IDEAL = "calibrated"
"""Name of the diagonal, on which the largest probability is the fraction correct."""

LIMIT = "N = ∞"
"""Name of the Gaussian process limit, which has points here and not a line across the panel."""


def reliability_frame(dataset: xr.Dataset, widths: list[int]) -> pd.DataFrame:
    """Return a row for each bin of probabilities that holds test examples, of all seeds together.

    Parameters
    ----------
    dataset : xarray.Dataset
        A study of one value of every option, with probabilities.
    widths : list of int
        Indices of the widths to take, beside the limit.

    Returns
    -------
    pandas.DataFrame
        Columns ``network``, ``test_set``, ``confidence`` (mean largest probability), ``correct``
        (fraction whose most probable class is their own) and ``examples`` (number in the bin).
        Rows without examples are points of the diagonal, for every test set. Networks of which
        nothing is computed are left out.
    """
    at_widths, limit = (
        dataset[name].isel(temperature=0).load() for name in ("probability", "probability_gp")
    )
    labels = dataset["test_label"].load()
    chosen = at_widths.isel(width=widths).transpose("width", ...)
    networks = {f"N = {number(one['width'].item())}": one for one in chosen}
    # more points than an axis labels one by one: it gets round ticks
    diagonal = np.linspace(1 / dataset.sizes["class"], 1, 15)
    frames = []
    for test_set in dataset["test_set"].values:
        frames.append(
            pd.DataFrame({"network": IDEAL, "confidence": diagonal, "correct": diagonal}).assign(
                test_set=test_set, examples=np.nan
            )
        )
        for name, of_network in (networks | {LIMIT: limit}).items():
            values = of_network.sel(test_set=test_set).transpose("seed", "example", "class").values
            truth = labels.sel(test_set=test_set).transpose("seed", "example", ...).values
            present = np.isfinite(values).all(axis=2)
            if present.any():
                bins = reliability(values[present], truth[present])
                frame = pd.DataFrame(
                    {
                        "confidence": bins.confidence,
                        "correct": bins.correct,
                        "examples": bins.counts,
                    }
                )
                frames.append(frame.dropna().assign(network=name, test_set=test_set))
    return pd.concat(frames, ignore_index=True)
