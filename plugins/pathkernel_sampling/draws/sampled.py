"""A run of draws with the theory at its point: moments, scores and diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pathkernel_core.system.text import number
from pathkernel_datasets.results.draws import point_of
from pathkernel_datasets.results.result_files import file_of
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.selection.selection import NOT_COMPUTED
from pathkernel_datasets.variables.measures import label_kind, measures_of
from pathkernel_sampling.chains.diagnostics import (
    Diagnostics,
    diagnose,
    distinct_entries,
    predictor,
    sampled_predictor_scores,
)
from pathkernel_sampling.chains.draw_variables import settings_of
from pathkernel_sampling.chains.store import open_run
from pathkernel_sampling.corrections.correct import open_correction
from pathkernel_sampling.corrections.views import label_frame, to_next_order
from pathkernel_sampling.results import Samples
from pathkernel_views.table import frame_of


@dataclass(frozen=True)
class Run:
    """A run of draws, and the study at its point; moments of the draws are cached."""

    study: StoredStudy
    name: str

    @property
    def draws(self) -> xr.DataTree:
        """The run, opened again each time: draws of many paths would fill the memory."""
        return open_run(self.study, self.name)

    def sentences(self) -> Iterator[str]:
        """Warnings of the diagnostics, and where the draws are."""
        for line in self.diagnostics.warnings():
            yield f"Warning: {line}."
        file, group = file_of(self.study.path, self.name)
        yield f"Draws: {file}, group {group}"

    @cached_property
    def all_settings(self) -> dict[str, Any]:
        """Settings that the draws were made with."""
        return settings_of(self.draws)

    @property
    def settings(self) -> dict[str, Any]:
        """Sampler, width, temperature and seed."""
        names = ("sampler", "width", "temperature", "seed")
        return {name: self.all_settings[name] for name in names}

    @property
    def title(self) -> str:
        """Point, and sampler if it is not the default one, in one line."""
        return f"N = {number(self.settings['width'])}, {self.series}"

    @property
    def series(self) -> str:
        """The same without the width, common to runs at several widths."""
        sampler, _, temperature, seed = self.settings.values()
        named = f", sampler {sampler}" * (sampler != Samples.sampler)
        return f"T = {temperature:g}, seed {seed}{named}"

    @cached_property
    def theory(self) -> xr.Dataset:
        """The study at the run's point, NaN where it is not computed.

        ``order_parameter_next`` and ``log_evidence_next`` are those to next order.
        """
        dataset, point = self.study.dataset, point_of(self.settings)
        measures = [measure.name for measure in measures_of(dataset)]
        finite = ["order_parameter", "predictor_mean", "log_evidence"]
        finite, limits = finite + measures, [f"{name}_gp" for name in measures]
        names = [*finite, *limits, "status", "reference_done", "test_label"]
        values = dataset[names].sel(asdict(point)).load()
        values = values.assign(values[finite].where(values["status"] != NOT_COMPUTED))
        values = values.assign(values[limits].where(values["reference_done"] != 0))
        correction = open_correction(self.study, point)
        for name in ("order_parameter", "log_evidence"):
            values[f"{name}_next"] = values[name] * np.nan
            if correction is not None:
                values[f"{name}_next"] = to_next_order(correction, name).load()
        return values

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Means of U's entries with their diagnostics."""
        return diagnose(self.draws)

    @cached_property
    def scores(self) -> xr.Dataset:
        """Measures of the sampled predictor, with Monte-Carlo errors."""
        kind = label_kind(self.study.dataset)
        return sampled_predictor_scores(self.draws, self.theory["test_label"], kind)

    @cached_property
    def outputs(self) -> xr.Dataset:
        """Moments of the network's output on the test sets."""
        return predictor(self.draws)

    @cached_property
    def entries(self) -> pd.DataFrame:
        """Entries of U: theory, next order, posterior mean and diagnostics."""
        theory = self.theory
        columns = {
            "saddle": distinct_entries(theory["order_parameter"]),
            "next_order": distinct_entries(theory["order_parameter_next"]),
            **self.diagnostics.entries[["mean", "mcse", "sd", "r_hat", "ess_bulk", "ess_tail"]],
        }
        frame = frame_of(xr.Dataset(columns))
        off = (frame["saddle"] - frame["mean"]) / frame["mcse"]
        return label_frame(frame.assign(saddle_off=off.where(np.isfinite(off))), self.settings)
