"""A run of draws in the store of a study: its published draws, and the blocks that follow them.

A run is a group with the groups that ArviZ expects:

    samples/<sampler>/seed-<s>_T-<T>_N-<N>/
        posterior          order parameter of every draw
        predictions        predictor on the test sets, of every thin-th draw
        sample_stats       statistics of the sampler, of every draw
        unconstrained_posterior    sampled coordinates of every draw, if they are few
        observed_data      training labels
        adaptation         states of the chains, to resume from, and the evidence

A block of draws, with the states of the chains after it, is a piece: a kill costs one block.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import arviz_base
import blackjax
import numpy as np

from pathkernel_datasets.draws import SAMPLES, joined, settings_of, unpublished_blocks
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.identity import versions
from pathkernel_datasets.pieces import PieceFiles
from pathkernel_datasets.point import Point
from pathkernel_datasets.stored_study import StoredStudy
from pathkernel_sampling.chains import MAX_TREE_DEPTH
from pathkernel_sampling.evidence import Evidence
from pathkernel_sampling.results import Samples
from pathkernel_sampling.sample_layout import STATE, labelled_block

_RECORDED_VERSIONS = ("pathkernel", "numpy", "jax", "jaxlib", "blackjax")


class SampleRun:
    """Draws at a point of a study, to which blocks are added.

    Attributes
    ----------
    is_published : bool
        Whether the store had all draws, with their evidence, when the run was opened.

    Raises
    ------
    StoreError
        If the store has draws of other settings there, naming the differences.
    """

    def __init__(self, study: StoredStudy, point: Point, samples: Samples):
        self._study, self._group = study, f"{SAMPLES}/{samples.sampler}/{point}"
        self._pieces = PieceFiles(study.path, "draws")
        self._settings = {"sampler": samples.sampler, **dataclasses.asdict(point)}
        self._settings |= {name: getattr(samples, name) for name in ("chains", "warm_up", "thin")}
        published = study.result(self._group).load() if study.holds(self._group) else None
        # blocks beyond the published draws extend a finished run, which its evidence lacks
        self._blocks = unpublished_blocks(study, self._group, published)
        self.is_published = published is not None and not self._blocks
        if published is not None:
            self._blocks.insert(0, published)
        if self._blocks:
            self._check_settings(settings_of(self._blocks[0]))

    def _check_settings(self, stored: Mapping[str, object]) -> None:
        differences = "; ".join(
            f"{name.replace('_', '-')}: the store has {stored.get(name)}, this run "
            f"{self._settings.get(name)}"
            for name in sorted({**stored, **self._settings})
            if stored.get(name) != self._settings.get(name)
        )
        if differences:
            raise StoreError(
                f"{self._study.path} holds other draws in {self._group}, which are left as they "
                f"are ({differences}). Resume with their settings, or choose another store"
            )

    @property
    def draws(self) -> int:
        """Draws of each chain so far."""
        return sum(block["posterior"].sizes["draw"] for block in self._blocks)

    @property
    def seconds(self) -> float:
        """Time spent on the run so far, warm-up included."""
        return float(self._blocks[-1]["adaptation"]["seconds"]) if self._blocks else 0.0

    def states(self) -> list[dict[str, np.ndarray]]:
        """Return the state of every chain after the last draw."""
        adaptation = self._blocks[-1]["adaptation"].to_dataset()
        arrays = {
            str(name).removeprefix(STATE): array.values
            for name, array in adaptation.items()
            if str(name).startswith(STATE)
        }
        chains = range(self._settings["chains"])
        return [{name: array[chain] for name, array in arrays.items()} for chain in chains]

    def read(self, group: str, name: str) -> np.ndarray:
        """Return a variable at all draws, shape (chain, draw, …)."""
        return np.concatenate([block[group][name].values for block in self._blocks], axis=1)

    def append(
        self,
        values: Mapping[str, Mapping[str, np.ndarray]],
        states: Sequence[Mapping[str, np.ndarray]],
        seconds: float,
        labels: np.ndarray,
    ) -> None:
        """Write a block of draws; parameters as for ``sample_layout.labelled_block``."""
        first, dataset = self.draws, self._study.dataset
        thin = self._settings["thin"]
        block = labelled_block(values, states, first, seconds, thin, labels, dataset)
        block.attrs = {
            "title": f"Posterior of {dataset.attrs['task']}, sampler {self._settings['sampler']}",
            "inference_library": "blackjax",
            "inference_library_version": blackjax.__version__,
            "creation_library": "pathkernel",
            "arviz_base_version": arviz_base.__version__,
            "max_tree_depth": MAX_TREE_DEPTH,
            "package_versions": json.dumps(versions(_RECORDED_VERSIONS)),
            "settings": json.dumps(self._settings, sort_keys=True),
        }
        # named by its first draw: readers look for the one that follows their last draw, and
        # never take a block that is published already
        self._pieces.write(f"{self._study.prefix}{self._group}/{first}", block, self._study.core)
        self._blocks.append(block)

    def finish(self, evidence: Evidence) -> None:
        """Write all draws as a result to be published, with an estimate of the log evidence."""
        run = joined(self._blocks)
        run["adaptation"]["log_evidence"][...] = evidence.log_evidence
        run["adaptation"]["log_evidence_error"][...] = evidence.error
        self._study.write(self._group, run)

    def remove_blocks(self) -> None:
        """Remove the blocks of a published run, which a killed process left."""
        prefix = f"{self._study.prefix}{self._group}/"
        self._pieces.remove([name for name in self._pieces.names() if name.startswith(prefix)])
