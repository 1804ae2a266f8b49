"""Tables of draws from the exact posterior against the theory, with evidence and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr

from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.variables.measures import measures_of
from pathkernel_datasets.variables.quantities import STATUS_CODES
from pathkernel_sampling.chains.diagnostics import sampled_log_evidence
from pathkernel_sampling.corrections.views import ROWS, label_frame, root_mean
from pathkernel_sampling.draws.charts import sample_charts
from pathkernel_sampling.draws.sampled import Run
from pathkernel_views.chart import Chart
from pathkernel_views.table import Table, frame_of


def sample_views(study: StoredStudy, names: Sequence[str]) -> Iterator[Table | Chart | str]:
    """Yield tables, evidence and warnings of every run, then charts of all."""
    runs = [Run(study, name) for name in names]
    for run in runs:
        yield order_parameter_table(run)
        yield predictor_table(run)
        yield evidence(run)
        yield from run.sentences()
    if runs:
        yield from sample_charts(runs)


def order_parameter_table(run: Run) -> Table:
    """Table of the posterior mean of U's largest entries, with their diagnostics.

    The entries of worst R-hat and effective sample size are always among them.
    """
    frame, left_out = run.entries, ""
    if len(frame) > ROWS:  # a table of large entries alone would hide a chain that does not mix
        worst = [frame["r_hat"].fillna(0).idxmax()]
        worst += [frame[name].fillna(np.inf).idxmin() for name in ("ess_bulk", "ess_tail")]
        largest = frame["mean"].abs().sort_values(ascending=False).index
        frame = frame.loc[sorted([*dict.fromkeys([*worst, *largest])][:ROWS])]
        left_out = f" The {ROWS} largest and worst of {len(run.entries)} entries are shown."
    cells = {
        "entry": "{entry}",
        "saddle": "{saddle:#.3g}",
        "next order": "{next_order:#.3g}",
        "posterior\nmean ± error": "{mean:#.4g} ± {mcse:.2g}",
        "sd": "{sd:#.2g}",
        "R-hat": "{r_hat:.3f}",
        "bulk ESS": "{ess_bulk:.0f}",
        "tail ESS": "{ess_tail:.0f}",
        "off": "{saddle_off:+.1f}",
    }
    if frame["next_order"].isna().all():
        del cells["next order"]
    diagnostics, bfmi = run.diagnostics, np.min(run.diagnostics.bfmi)
    chains, draws = diagnostics.chains, diagnostics.draws
    converged = int(run.theory["status"]) == STATUS_CODES["converged"]
    return Table(
        "order_parameter",
        f"Order parameter U at {run.title}",
        frame,
        cells,
        f"Sampler {run.settings['sampler']}, {chains} chain{'s' * (chains > 1)} of {draws} draws; "
        f"{float(run.draws['adaptation']['seconds']):.0f} s, warm-up and compilation included. "
        f"{diagnostics.divergences} divergences, {diagnostics.saturated} trajectories cut off, "
        f"smallest BFMI {'-' if np.isnan(bfmi) else format(bfmi, '.2f')}. ± is the Monte-Carlo "
        "error of the mean, sd the spread of the posterior. off: distance of the saddle from the "
        f"mean, in errors ±.{left_out}"
        + " The theory's minimisation did not converge here."
        * (not converged),
    )


def predictor_table(run: Run) -> Table:
    """Table of the sampled predictor's scores, with those of theory and Gaussian process limit."""
    theory, outputs = run.theory, run.outputs
    measures = measures_of(run.study.dataset)
    columns = {
        **run.scores.data_vars,
        **{f"{measure.name}_theory": theory[measure.name] for measure in measures},
        **{f"{measure.name}_gp": theory[f"{measure.name}_gp"] for measure in measures},
        "sd": root_mean(outputs["variance"]),
        "difference": root_mean((theory["predictor_mean"] - outputs["mean"]) ** 2),
        "difference_mcse": root_mean(outputs["mcse"] ** 2),
    }
    cells = {"test set": "{test_set}"}
    for measure in measures:
        name, heading, form = measure.name, measure.heading, measure.form
        cells |= {
            f"{heading},\nsampled ± error": f"{{{name}:{form}}} ± {{{name}_mcse:.2g}}",
            f"{heading},\ntheory": f"{{{name}_theory:{form}}}",
            f"{heading},\nGP limit": f"{{{name}_gp:{form}}}",
        }
    cells |= {
        "sd,\nsampled": "{sd:.3g}",
        "f theory −\nf sampled": "{difference:.2g} ± {difference_mcse:.2g}",
    }
    return Table(
        "predictor",
        f"Predictor on the test sets at {run.title}",
        label_frame(frame_of(xr.Dataset(columns).reset_coords(drop=True)), run.settings),
        cells,
        "Of the mean predictor, ln p(y) of the mixture of draws; ± Monte-Carlo error; GP: Gaussian "
        "process. sd: root mean square over the examples of the output's standard deviation, "
        "without observation noise. "
        "f theory − f sampled: root mean square difference of the mean outputs.",
    )


def evidence(run: Run) -> str:
    """Return the log evidence in one line."""
    theory, following = (float(run.theory[f"log_evidence{end}"]) for end in ("", "_next"))
    value, error = sampled_log_evidence(run.draws)
    line = "Log evidence ln p(Y): theory "
    line += "not defined at this width" if np.isnan(theory) else f"{theory:.2f} nats"
    if not np.isnan(following):
        line += f", to next order {following:.2f} nats"
    if np.isnan(value):
        return f"{line}; not estimated from these draws"
    return f"{line}, sampled {value:.2f} ± {error:.2g} nats (bridge sampling)"
