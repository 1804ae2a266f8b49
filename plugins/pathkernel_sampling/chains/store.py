"""A run of draws in the folder of a study: its published draws, and the blocks that follow them.

A published run is a part of the result, with the groups that ArviZ expects:

    samples.zarr/<sampler>/seed-<s>_T-<T>_N-<N>/
        posterior          order parameter of every draw
        predictions        predictor on the test sets, of every thin-th draw
        sample_stats       statistics of the sampler, of every draw
        unconstrained_posterior    sampled coordinates of every draw, if they are few
        observed_data      training labels
        adaptation         states of the chains, to resume from, and the evidence

A block of draws, with the states of the chains after it, is a file of plain arrays among the pieces
of the study: a kill costs one block. They are labelled when the run is read or published.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.folder.piece_files import write_arrays
from pathkernel_datasets.results.draws import (
    ORDER_PARAMETER,
    SETTINGS,
    block_file,
    read_blocks,
    remove_blocks,
    runs,
)
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.study.identity import versions
from pathkernel_sampling.chains.draw_variables import (
    STATE,
    Arrays,
    arrays_of,
    join_blocks,
    labelled_run,
)
from pathkernel_sampling.chains.evidence import Evidence
from pathkernel_sampling.results import Draws

_RECORDED_VERSIONS = ("pathkernel", "numpy", "jax", "jaxlib", "blackjax")


def open_run(study: StoredStudy, run: str) -> xr.DataTree:
    """Open one run as ArviZ takes it: lazily, or in memory if it is in progress.

    Raises
    ------
    StudyError
        If the study has no such run.
    """
    result = run.partition("/")[0]
    names = runs(study, result)
    if run not in names:
        raise StudyError(
            f"{study.path} has no draws in {run!r}; it has {', '.join(names) or 'none'}. "
            f"Draw some with: pathkernel {study.plugins.results[result].command}"
        )
    published = study.result(run) if study.holds(run) else None
    draws = 0 if published is None else published["posterior"].sizes["draw"]
    blocks: list[Arrays] = [*read_blocks(study, run, draws)]
    if not blocks:
        return study.result(run) if published is None else published  # published just now
    if published is not None:
        blocks.insert(0, arrays_of(published))
    return labelled_run(join_blocks(blocks), study.dataset)


class SampleRun:
    """Draws at a point of a study, to which blocks are added.

    Attributes
    ----------
    is_published : bool
        Whether all draws were published, with their evidence, when the run was opened.

    Raises
    ------
    StudyError
        If the study has draws of other settings there, naming the differences.
    """

    def __init__(self, study: StoredStudy, point: Point, settings: Draws):
        self._study, self._name = study, settings.run_name(point)
        self._settings = {**settings.run_settings(), **dataclasses.asdict(point)}
        self._settings |= {name: getattr(settings, name) for name in ("chains", "warm_up", "thin")}
        self._blocks: list[Arrays] = []
        if study.holds(self._name):
            self._blocks.append(arrays_of(study.result(self._name)))
        # blocks beyond the published draws extend a finished run, which its evidence lacks
        blocks = read_blocks(study, self._name, self.draws)
        self.is_published = bool(self._blocks) and not blocks
        self._blocks += blocks
        if self._blocks:
            self._check_settings(json.loads(str(self._blocks[0][SETTINGS])))

    def _check_settings(self, stored: Mapping[str, object]) -> None:
        differences = "; ".join(
            f"{name.replace('_', '-')}: they have {stored.get(name)}, this run "
            f"{self._settings.get(name)}"
            for name in sorted({**stored, **self._settings})
            if stored.get(name) != self._settings.get(name)
        )
        if differences:
            raise StudyError(
                f"{self._study.path} holds other draws in {self._name}, which are left as they "
                f"are ({differences}). Resume with their settings, or run the study with --out in "
                "a folder of its own, and draw there"
            )

    @property
    def draws(self) -> int:
        """Draws of each chain so far."""
        return sum(block[ORDER_PARAMETER].shape[1] for block in self._blocks)

    @property
    def seconds(self) -> float:
        """Time spent on the run so far, warm-up included."""
        return float(self._blocks[-1]["seconds"]) if self._blocks else 0.0

    def states(self) -> list[dict[str, np.ndarray]]:
        """Return the state of every chain after the last draw."""
        arrays = {
            name.removeprefix(STATE): array
            for name, array in self._blocks[-1].items()
            if name.startswith(STATE)
        }
        chains = range(self._settings["chains"])
        return [{name: array[chain] for name, array in arrays.items()} for chain in chains]

    def read(self, name: str) -> np.ndarray:
        """Return an array such as ``posterior/order_parameter`` at all draws, (chain, draw, …)."""
        return np.concatenate([block[name] for block in self._blocks], axis=1)

    def append(
        self,
        values: Mapping[str, Mapping[str, np.ndarray]],
        states: Sequence[Mapping[str, np.ndarray]],
        seconds: float,
        labels: np.ndarray,
    ) -> None:
        """Write a block of draws.

        Parameters
        ----------
        values : mapping of str to mapping of str to array
            Group → variable → values, shape (chain, draw, …).
        states : sequence of mapping of str to array
            State of every chain after the block.
        seconds : float
            Time spent on the run so far.
        labels : array, shape (P,) or (P, C)
            Training labels.
        """
        block = {
            f"{group}/{name}": array
            for group, arrays in values.items()
            for name, array in arrays.items()
        }
        block |= {
            f"{STATE}{name}": np.stack([state[name] for state in states]) for name in states[0]
        }
        block |= {
            "seconds": np.array(seconds),
            "labels": labels,
            SETTINGS: np.array(json.dumps(self._settings, sort_keys=True)),
            "attributes": np.array(json.dumps(self._attributes())),
        }
        write_arrays(block_file(self._study, self._name, self.draws), block, self._study.core)
        self._blocks.append(block)

    def _attributes(self) -> dict[str, object]:
        """Attributes of a run that it begins with, besides its settings."""
        import arviz_base  # not with this module: readers of a run need neither
        import blackjax

        from pathkernel_sampling.chains.chain import MAX_TREE_DEPTH

        task = self._study.dataset.attrs["task"]
        return {
            "title": f"Posterior of {task}, sampler {self._settings['sampler']}",
            "inference_library": "blackjax",
            "inference_library_version": blackjax.__version__,
            "creation_library": "pathkernel",
            "arviz_base_version": arviz_base.__version__,
            "max_tree_depth": MAX_TREE_DEPTH,
            "package_versions": json.dumps(versions(_RECORDED_VERSIONS)),
        }

    def finish(self, evidence: Evidence, groups: Mapping[str, xr.Dataset]) -> None:
        """Write all draws as a part to be published, with the log evidence and further groups."""
        run = labelled_run(join_blocks(self._blocks), self._study.dataset, evidence)
        for name, group in groups.items():
            run[name] = xr.DataTree(group)
        self._study.write(self._name, run)

    def remove_blocks(self) -> None:
        """Remove the blocks of a published run, which a killed process left."""
        remove_blocks(self._study, self._name)
