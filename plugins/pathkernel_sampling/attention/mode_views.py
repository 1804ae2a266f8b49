"""Modes of learned attention, maxima, and stages of tempering as tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_datasets.variables.measures import measures_of
from pathkernel_sampling.attention.mode_values import likely_maxima, missed_modes
from pathkernel_sampling.attention.stage_values import warnings
from pathkernel_sampling.chains.diagnostics import minimum_bulk_ess, sampled_log_evidence
from pathkernel_sampling.corrections.views import label_frame
from pathkernel_sampling.draws.sampled import Run
from pathkernel_views.chart import Chart
from pathkernel_views.primitives import heatmaps
from pathkernel_views.table import Table, frame_of, labelled_frame

if TYPE_CHECKING:
    import altair as alt

_LABELS = {
    "form": "form of a head",
    "test_set": "test set",
    "mode": "mode, by decreasing mass",
    "name": "what the heads of the mode attend to",
    "mass": "posterior probability of the mode",
    "mass_error": "Monte-Carlo error of the mass",
    "smallest": "smallest mass in a chain",
    "largest": "largest mass in a chain",
    "log_evidence": "log evidence, nats",
    "log_evidence_error": "error of the log evidence, nats",
    "maximum": "maximum, by height",
    "log_density": "log density, nats",
    "starts": "starts that ended there",
    "mode_of_maximum": "mode whose attention is like the maximum's",
    "is_seen": "whether a draw attends as the maximum does",
    "nearby": "whether a draw attends as a likely maximum does",
    "chain": "chain",
    "levels": "levels between mixture and posterior",
    "stages": "stages, each with a mixture of its own",
    "smallest_swap": "smallest acceptance of swaps",
    "mean_swap": "mean acceptance of swaps",
    "before": "log evidence of the stage before, nats",
    "draws": "log evidence of the draws, nats",
    "error": "error of the log evidence, nats",
    "mass_difference": "largest difference of a component's mass from the stage before",
    "mass_difference_error": "error of that difference",
    "agrees": "whether the draws agree with the stage before",
    "head": "head",
    "token": "key token, from 1",
    "example": "test example, from 1",
    "attention": "mean attention",
}


def mode_views(run: Run, title: str, name: str) -> Iterator[Table | Chart | str]:
    """Yield tables of modes, maxima and stages, warnings, and a picture of the modes.

    Parameters
    ----------
    run : Run
    title : str
        Of the run.
    name : str
        Of its picture.
    """
    tree = run.draws
    if "modes" not in tree.children:
        return  # the run is not complete
    modes = tree["modes"].to_dataset().load()
    yield _modes(run, modes, sampled_log_evidence(tree), title)
    if "maxima" in tree.children:
        maxima = tree["maxima"].to_dataset().load()
        yield _maxima(run, maxima, title)
        yield from (f"Warning: {line}." for line in missed_modes(maxima))
    if "tempering" in tree.children:
        stages = tree["tempering"].to_dataset().load()
        yield _stages(run, tree, stages, title)
        yield from (f"Warning: {line}." for line in warnings(stages))
    yield Chart(
        f"{name}_modes",
        f"Modes of learned attention, {title}",
        "Mean attention in each mode of the heads to the tokens of some test examples.",
        partial(_attention, modes),
    )


def _modes(run: Run, modes: xr.Dataset, total: tuple[float, float], title: str) -> Table:
    measures = measures_of(run.study.dataset)
    names = [measure.name for measure in measures]
    columns = modes[["name", "mass", "mass_error", "log_evidence", *names]]
    columns["smallest"] = modes["mass_of_chain"].min("chain")
    columns["largest"] = modes["mass_of_chain"].max("chain")
    frame = frame_of(columns)
    cells = {
        "mode": "{mode}",
        "heads attend to": "{name}",
        "test set": "{test_set}",
        "mass ± error": "{mass:.3f} ± {mass_error:.2g}",
        "in a chain": "{smallest:.3f} – {largest:.3f}",
        **{measure.heading: f"{{{measure.name}:{measure.form}}}" for measure in measures},
    }
    if np.isfinite(frame["log_evidence"]).all():
        cells["ln p(Y, mode)"] = "{log_evidence:.2f}"
    value, error = total
    evidence = "" if np.isnan(value) else f" ln p(Y) = {value:.2f} ± {error:.2g} nats in all."
    return Table(
        "modes",
        f"Modes of learned attention: {title}",
        _labelled(run, frame),
        cells,
        "Clusters of draws by what their heads attend to, from head 1-1 on: half of the attention "
        "to one position, otherwise more than half of the tokens (spread) or fewer (content). "
        "Mass: posterior probability, with its range over chains and the Monte-Carlo error, which "
        "knows nothing of clusters that another run would draw or name otherwise: compare modes of "
        f"two runs by their mean attention. Measures are those of the mode's draws.{evidence}",
    )


def _maxima(run: Run, maxima: xr.Dataset, title: str) -> Table:
    total = int(maxima["starts"].sum())
    frame = frame_of(maxima)
    is_likely = likely_maxima(maxima)
    frame["nearby"] = np.where(is_likely, np.where(maxima["is_seen"], "yes", "no"), "–")
    once = (
        ""
        if int(maxima["starts"].max()) > 1
        else (" No two starts ended at one maximum: there are more maxima than these.")
    )
    return Table(
        "maxima",
        f"Maxima from random starts: {title}",
        _labelled(run, frame),
        {
            "maximum": "{maximum}",
            "log density, nats": "{log_density:.1f}",
            "with volume": "{log_evidence:.1f}",
            "starts": "{starts}",
            "mode": "{mode_of_maximum}",
            "draws nearby": "{nearby}",
        },
        f"Ends of {total} ascents of the marginal density from draws of the prior, and the mode of "
        "the draws that is most like each. With volume: Laplace's estimate of ln p(Y) around it. "
        "Draws nearby: whether a draw attends as the maximum does, within twice the distance at "
        "which 99 of 100 draws have a neighbour; told of maxima that have 5 % of the largest "
        f"volume.{once}",
    )


def _stages(run: Run, tree: xr.DataTree, stages: xr.Dataset, title: str) -> Table:
    values = stages["log_evidence"]
    columns = stages.drop_vars(["log_evidence", "log_evidence_error", "stage"]).assign(
        before=values.sel(stage="before", drop=True),
        draws=values.sel(stage="draws", drop=True),
        error=stages["log_evidence_error"].sel(stage="draws", drop=True),
    )
    seconds = float(tree["adaptation"]["seconds"])
    attended = tree["posterior"]["attended_tokens"].values
    size = min(
        minimum_bulk_ess(tree["posterior"]["order_parameter"].values),
        *(minimum_bulk_ess(of_head[..., None, None]) for of_head in np.moveaxis(attended, 2, 0)),
    )
    return Table(
        "stages",
        f"Tempering: {title}",
        _labelled(run, frame_of(columns)),
        {
            "chain": "{chain}",
            "levels": "{levels}",
            "stages": "{stages}",
            "swaps, mean": "{mean_swap:.2f}",
            "smallest": "{smallest_swap:.2f}",
            "ln p(Y),\nstage before": "{before:.2f}",
            "draws ± error": "{draws:.2f} ± {error:.2g}",
            "masses differ by\n± error": "{mass_difference:.3f} ± {mass_difference_error:.2g}",
            "agree": "{agrees}",
        },
        "All chains share a mixture, fitted to the draws of all. The draws of each are compared "
        "with those of all chains in the stage before, which had another mixture: evidence, and "
        "masses of the mixture's components, the largest difference of which is given. They agree "
        "within 0.1 nats and 0.03, or three times their errors; agreement between chains alone "
        "would not do. Smallest bulk effective sample "
        f"size of U and of the tokens attended {size:.0f}, {size / seconds:.2g} a second, pilot, "
        "stages and compilation included.",
    )


def _labelled(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    settings = {"form": run.all_settings["form"], **run.settings}
    return labelled_frame(label_frame(frame, settings), _LABELS)


def _attention(modes: xr.Dataset) -> alt.TopLevelMixin:
    frame = frame_of(modes[["attention"]])
    name = modes["name"].to_series()
    frame["panel"] = [
        f"{name[mode]}: head {head}" for mode, head in zip(frame["mode"], frame["head"])
    ]
    frame[["token", "example"]] += 1  # the dataset counts from 0
    frame = frame.astype({"token": str, "example": str})
    domain = 0.0, float(frame["attention"].max())
    labelled = labelled_frame(frame, {**_LABELS, "panel": "mode and head"})
    return heatmaps(
        labelled, "token", "example", "attention", centred=False, domain=domain, panel="panel"
    )
