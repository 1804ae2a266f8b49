"""Prior variance of the outputs that the log evidence chooses, of studies of classes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.selection.selection import Selections
from pathkernel_datasets.variables.measures import has_temperature, measures_of
from pathkernel_views.table import Table


def chosen_variances(study: Selections) -> xr.DataArray:
    """Return the prior variance of largest log evidence, summed over the seeds, by network.

    Networks without an evidence at every seed and variance are left out: those that are too narrow
    for one, or not computed yet.

    Returns
    -------
    xarray.DataArray, dims (network,)
        Variances, with the coordinate ``log_evidence``, the sum in nats.
    """
    of_variances = []
    for single in study.singles.values():
        widths = [f"N = {number(width)}" for width in single["width"].values]
        finite = single["log_evidence"].sum("seed", skipna=False).isel(temperature=0).values
        limit = single["log_evidence_gp"].sum("seed", skipna=False).isel(temperature=0).values
        of_variances.append(xr.DataArray([*finite, limit], {"network": [*widths, "GP limit"]}))
    evidence = xr.concat(of_variances, pd.Index([*study.singles], name="variance"))
    evidence = evidence.dropna("network")
    return evidence.idxmax("variance").assign_coords(log_evidence=evidence.max("variance"))


def variance_choice_table(study: Selections, frame: pd.DataFrame) -> Table | None:
    """Return the scores of each network at its chosen variance; None if there is no choice.

    ``frame`` has the rows of the study's table, those of every variance.
    """
    if has_temperature(study.dataset) or study.option != "variance":
        return None
    chosen = chosen_variances(study)
    if not chosen.size:
        return None
    of_network = frame["network"].map(chosen.to_series())
    frame = frame[frame["variance"] == of_network].reset_index(drop=True)
    frame["log_evidence"] = frame["network"].map(chosen["log_evidence"].to_series())
    frame = frame.sort_values("width", kind="stable", ignore_index=True)
    cells = {"network": "{network}", "σ²": "{variance}", "log evidence": "{log_evidence:.1f}"}
    cells |= {"test set": "{test_set}"} if frame["test_set"].nunique() > 1 else {}
    for measure in measures_of(study.dataset):
        cells[measure.heading] = f"{{{measure.name}_median:{measure.form}}}"
    ends = [min(study.singles), max(study.singles)]
    at_end = [str(name) for name in chosen["network"].values[np.isin(chosen, ends)]]
    wider = f" {', '.join(at_end)}: at an end of the values; a wider range may be better."
    caption = (
        "Scores at the prior variance σ² of largest log evidence, in nats, summed over the seeds. "
        f"The variable log_evidence has the whole curve.{wider * bool(at_end)}"
    )
    title = "Prior variance chosen by the evidence"
    return Table("variance_choice", title, frame, cells, caption)
