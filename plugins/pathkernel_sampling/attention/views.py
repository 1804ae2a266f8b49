"""Learned attention as tables and charts: what it is worth, and what it sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import arviz_stats
import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_datasets.results.draws import point_of
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.measures import measures_of
from pathkernel_sampling.attention.mode_views import mode_views
from pathkernel_sampling.chains.diagnostics import R_HAT, diagnose_quietly, moments_of_draws
from pathkernel_sampling.corrections.views import label_frame
from pathkernel_sampling.draws.sampled import Run
from pathkernel_views.chart import Chart, NothingToPlot
from pathkernel_views.primitives import heatmaps
from pathkernel_views.table import Table, frame_of, labelled_frame

if TYPE_CHECKING:
    import altair as alt

_LABELS = {
    "form": "form of a head",
    "test_set": "test set",
    "head": "head: layer, and its place by score in the layer",
    "attended": "tokens that the head attends to, posterior mean",
    "attended_mcse": "Monte-Carlo error of the mean",
    "sd": "standard deviation of the posterior",
    "r_hat": "R-hat, rank-normalised and split",
    "ess_bulk": "bulk effective sample size",
    "token": "key token, from 1",
    "example": "test example, from 1",
    "attention": "mean attention",
}


def attention_views(study: StoredStudy, names: Sequence[str]) -> Iterator[Table | Chart | str]:
    """Yield tables and warnings of every run, then charts of all."""
    runs, pictures = [Run(study, name) for name in names], []
    for run in runs:
        yield worth(run)
        yield heads(run)
        attended = run.draws["posterior"]["attended_tokens"].load()
        yield from (f"Warning: {line}." for line in attention_warnings(attended))
        of_modes = [*mode_views(run, _title(run), _chart_name(run))]
        yield from (view for view in of_modes if not isinstance(view, Chart))
        pictures += [view for view in of_modes if isinstance(view, Chart)]
        yield from run.sentences()
    yield from pictures
    for run in runs:
        yield Chart(
            _chart_name(run),
            f"Learned attention, {_title(run)}",
            "Mean over draws of the attention of each head to the tokens of some test examples, "
            "heads of a layer by decreasing score. Of the last layer it is that of the token read "
            "out.",
            partial(_attention, run),
        )


def _chart_name(run: Run) -> str:
    name = run.name.partition("/")[2]
    return name.replace("/", "_").replace("-", "_").replace(".", "_").lower()


def worth(run: Run) -> Table:
    """Table of measures of learned heads, beside random and given ones."""
    theory, measures, tree = run.theory, measures_of(run.study.dataset), run.draws
    columns = dict(run.scores.data_vars)
    cells = {"test set": "{test_set}"}
    for measure in measures:
        name, form = measure.name, measure.form
        columns[f"{name}_given"] = theory[name]
        columns[f"{name}_given_gp"] = theory[f"{name}_gp"]
        if "random_heads" in tree.children:
            random = tree["random_heads"][name].load()
            columns[f"{name}_random"] = random.mean("random")
            columns[f"{name}_random_sd"] = random.std("random")
        else:
            missing = theory[name] * np.nan
            columns[f"{name}_random"] = columns[f"{name}_random_sd"] = missing
        cells |= {
            f"{measure.heading},\nlearned ± error": f"{{{name}:{form}}} ± {{{name}_mcse:.2g}}",
            f"{measure.heading},\nrandom heads ± sd": f"{{{name}_random:{form}}} ± "
            f"{{{name}_random_sd:.2g}}",
            f"{measure.heading},\ngiven heads": f"{{{name}_given:{form}}}",
            f"{measure.heading},\ngiven, GP limit": f"{{{name}_given_gp:{form}}}",
        }
    return Table(
        "worth",
        f"Learned attention on the test sets: {_title(run)}",
        _frame(run, xr.Dataset(columns).reset_coords(drop=True)),
        cells,
        "Learned: the mean predictor over draws of attention and weights, ± its Monte-Carlo "
        "error. Random heads: draws from the prior of attention, each with the theory's predictor; "
        "sd between them. Given heads: those of the study, by its theory. GP: Gaussian process.",
    )


def attention_warnings(attended: xr.DataArray) -> list[str]:
    """Sentence on chains that differ in the tokens attended, dims (chain, draw, head)."""
    r_hat = diagnose_quietly(arviz_stats.rhat, attended)
    if not float(r_hat.max()) > R_HAT:  # also of a single chain, which has none
        return []
    head = r_hat["head"].values[r_hat.values.argmax()]
    return [
        f"R-hat is {float(r_hat.max()):.4f} for the tokens that head {head} "
        f"attends to (at most {R_HAT} is good): the chains do not agree yet; raise --draws"
    ]


def heads(run: Run) -> Table:
    """Table of the tokens that heads attend to, with diagnostics."""
    tree = run.draws
    attended = tree["posterior"]["attended_tokens"].load()
    moments = moments_of_draws(attended)
    columns = {
        "attended": moments["mean"],
        "attended_mcse": moments["mcse"],
        "sd": moments["sd"],
        "r_hat": diagnose_quietly(arviz_stats.rhat, attended),
        "ess_bulk": diagnose_quietly(arviz_stats.ess, attended, method="bulk"),
    }
    diagnostics = run.diagnostics
    chains, draws = diagnostics.chains, diagnostics.draws
    worst = float(diagnostics.entries["r_hat"].max())
    return Table(
        "heads",
        f"What learned heads attend to: {_title(run)}",
        _frame(run, xr.Dataset(columns)),
        {
            "head": "{head}",
            "tokens attended ± error": "{attended:.2f} ± {attended_mcse:.2g}",
            "sd": "{sd:.2g}",
            "R-hat": "{r_hat:.3f}",
            "bulk ESS": "{ess_bulk:.0f}",
        },
        "Exponential of the entropy of a head's attention: 1 where it attends to one token; sd "
        "over draws, with R-hat and effective sample size (ESS) of this number. In "
        "each draw the heads of a layer are ordered by their scores, so that exchanges of heads do "
        f"not show. {chains} chain{'s' * (chains > 1)} of {draws} draws, "
        f"{float(tree['adaptation']['seconds']):.0f} s, warm-up and compilation included; "
        f"{diagnostics.divergences} divergences; R-hat of U at most {worst:.3f}.",
    )


def _frame(run: Run, columns: xr.Dataset) -> pd.DataFrame:
    settings = {"form": run.all_settings["form"], **run.settings}
    return labelled_frame(label_frame(frame_of(columns), settings), _LABELS)


def _title(run: Run) -> str:
    settings = run.all_settings
    form, sampler = settings["form"].replace("-", " "), settings["sampler"]
    is_single = sampler == "order-parameter" and settings.get("method") != "tempering"
    by = ", single chains" * is_single
    return f"{form}, sampler {sampler}{by}, {point_of(run.settings).description}"


def _attention(run: Run) -> alt.TopLevelMixin:
    tree = run.draws
    if "attention" not in tree.children:
        raise NothingToPlot("the run is not complete; run the same command again")
    frame = labelled_frame(frame_of(tree["attention"]["attention"].load()), _LABELS)
    frame[["token", "example"]] += 1  # the dataset counts from 0
    frame = frame.astype({"token": str, "example": str})
    frame["head"] = "head " + frame["head"].astype(str)
    domain = 0.0, float(frame["attention"].max())
    return heatmaps(
        frame, "token", "example", "attention", centred=False, domain=domain, panel="head"
    )
