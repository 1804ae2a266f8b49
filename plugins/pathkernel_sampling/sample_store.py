"""A run of draws in a study's store: its blocks, until they are published, and where they end.

A run is a group of its own, with the groups that ArviZ knows:

    samples/<sampler>/seed-<s>_T-<T>_N-<N>/
        posterior          order parameter of every draw
        predictions        predictor on the test sets, of every thin-th draw
        sample_stats       what the sampler reports of every draw
        unconstrained_posterior    sampled coordinates of every draw, where they are few
        observed_data      training labels
        adaptation         states of the chains, to resume from, and the evidence

A block of draws, with the states of the chains after it, is a piece: a kill costs one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_datasets.draws import SAMPLES, draw_files, joined, settings_of, unpublished_blocks
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.point import Point
from pathkernel_datasets.stored import StoredStudy
from pathkernel_sampling.sample_layout import STATE


def group_name(sampler: str, at: Point) -> str:
    """Path of a run's group inside the store."""
    return f"{SAMPLES}/{sampler}/{at}"


class SampleRun:
    """One run of draws, to which blocks are added.

    Parameters
    ----------
    study : StoredStudy
    group : str
        Group of the run.
    settings : mapping
        All that determines the draws, with ``chains`` and ``thin``.

    Raises
    ------
    StoreError
        If the store holds draws with other settings there, naming the differences.
    """

    def __init__(self, study: StoredStudy, group: str, settings: Mapping[str, Any]):
        self.group, self.settings, self._study = group, settings, study
        published = study.result(group).load() if study.holds(group) else None
        self._parts = [] if published is None else [published]
        self._published = len(self._parts)
        self._parts += unpublished_blocks(study.path, group, published, study.core)
        held = settings_of(self._parts[0]) if self._parts else settings
        different = [key for key in {**held, **settings} if held.get(key) != settings.get(key)]
        if different:
            lines = "; ".join(
                f"{key.replace('_', '-')}: the store has {held.get(key)}, this run "
                f"{settings.get(key)}"
                for key in sorted(different)
            )
            raise StoreError(
                f"{study.path} holds other draws in {group}, which are left as they are ({lines}). "
                "Resume with their settings, or choose another store"
            )

    @property
    def draws_done(self) -> int:
        """Draws of each chain that are there."""
        return sum(part["posterior"].sizes["draw"] for part in self._parts)

    @property
    def is_published(self) -> bool:
        """Whether all draws are in the store, with the evidence that belongs to them."""
        return self._published == len(self._parts) == 1

    @property
    def seconds(self) -> float:
        """Time spent on the run so far, warm-up included."""
        return float(self._parts[-1]["adaptation"]["seconds"])

    def states(self) -> list[dict[str, np.ndarray]]:
        """States of the chains after the last draw, one mapping of arrays per chain."""
        last = self._parts[-1]["adaptation"]
        names = [name for name in map(str, last.data_vars) if name.startswith(STATE)]
        values = {name.removeprefix(STATE): last[name].values for name in names}
        return [
            {name: np.asarray(value[chain]) for name, value in values.items()}
            for chain in range(last.sizes["chain"])
        ]

    def read(self, group: str, name: str) -> np.ndarray:
        """Values of a variable at all draws, (chain, draw, …)."""
        return np.concatenate([part[group][name].values for part in self._parts], axis=1)

    def append(self, block: xr.DataTree) -> None:
        """Write a block of draws, from :func:`pathkernel_sampling.sample_layout.labelled_block`."""
        name = f"{self.group}/{self.draws_done}"
        draw_files(self._study.path).write(name, block, self._study.core)
        self._parts.append(block)

    def finish(self, log_evidence: float, error: float) -> None:
        """Hand all draws over to be published, with an estimate of the log evidence, in nats."""
        run = joined(self._parts).copy()
        adaptation = run["adaptation"].to_dataset().copy()
        adaptation["log_evidence"] = adaptation["log_evidence"].copy(data=log_evidence)
        adaptation["log_evidence_error"] = adaptation["log_evidence_error"].copy(data=error)
        run["adaptation"] = xr.DataTree(adaptation)
        self._study.write(self.group, run)

    def remove_blocks(self) -> None:
        """Remove the blocks of the run, which are published."""
        files = draw_files(self._study.path)
        files.remove([name for name in files.names() if name.startswith(f"{self.group}/")])
