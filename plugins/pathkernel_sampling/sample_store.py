"""Draws in a study's Zarr store, beside the theory: written in blocks, each with its marker last.

A run is a group of its own, with the groups that ArviZ knows:

    samples/<sampler>/seed-<s>_T-<T>_N-<N>/
        posterior          order parameter of every draw
        predictions        predictor on the test sets, of every thin-th draw
        sample_stats       what the sampler reports of every draw
        unconstrained_posterior    sampled coordinates of every draw, where they are few
        observed_data      training labels
        adaptation         states of the chains, to go on from, the marker, and the evidence

The study's own root group is left as it is, but for the index of metadata that Zarr keeps there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pathkernel_datasets.atomic import sync
from pathkernel_datasets.checksums import read_array, write_region, writing_every_chunk
from pathkernel_datasets.draws import SAMPLES, runs, settings_of
from pathkernel_datasets.errors import StoreError
from pathkernel_datasets.groups import folder_beside, move_into, publish
from pathkernel_datasets.point import Point
from pathkernel_datasets.store import check_store
from pathkernel_sampling.sample_layout import STATE, create_adaptation, create_groups

GROWING = ("posterior", "predictions", "sample_stats", "unconstrained_posterior")
"""Groups whose arrays grow along ``draw`` from block to block; the last may be missing."""


def group_name(sampler: str, at: Point) -> str:
    """Path of a run's group inside the store."""
    return f"{SAMPLES}/{sampler}/{at}"


def open_samples(path: str | os.PathLike, group: str) -> xr.DataTree:
    """Open one run lazily, as ArviZ takes it; also while it goes on.

    Parameters
    ----------
    path : path
        Result store.
    group : str
        Group of the run, from :func:`group_name` or :func:`pathkernel_datasets.draws.runs`.

    Returns
    -------
    xarray.DataTree
        Groups posterior, predictions, sample_stats, observed_data and adaptation. Growing arrays
        have the dimensions (chain, draw, …).

    Raises
    ------
    StoreError
        If the store holds no such run.
    """
    check_store(Path(path))
    found = runs(path)
    if group not in found:
        raise StoreError(
            f"{path} holds no draws in {group!r}; it has {', '.join(found) or 'none'}. "
            "Draw some with: pathkernel sample"
        )
    return xr.open_datatree(path, group=group, engine="zarr", chunks=None)


class SampleStore:
    """One run inside a study's store, open for adding draws by its sole writer.

    The arrays of a block come first, then the states of the chains after it, then the marker
    (``draws_done``), then the index of metadata by which readers see the block. States are kept in
    two slots in turn, so that the one that belongs to the marker is never overwritten. Whatever
    is killed, the run goes on from the marker.

    Parameters
    ----------
    path : path
        Result store.
    group : str
        Group of the run.
    """

    def __init__(self, path: Path, group: str):
        self.path, self.group = Path(path), group
        with writing_every_chunk():
            self._zarr = zarr.open_group(path, path=group, mode="r+", use_consolidated=False)
            self._arrays = {
                name: dict(self._zarr[name].arrays())
                for name in (*GROWING, "adaptation")
                if name in self._zarr
            }
        self.settings = _settings(self.path, group)
        for name in GROWING:  # a block that was not finished
            if name in self._arrays:
                self._resize(name, self.draws_done // self._step(name))

    @classmethod
    def create(
        cls,
        path: Path,
        group: str,
        settings: Mapping[str, Any],
        attributes: Mapping[str, Any],
        coordinates: xr.Dataset,
        dims: Mapping[str, tuple[str, ...]],
        example: Mapping[str, Mapping[str, np.ndarray]],
        labels: np.ndarray,
        states: Sequence[Mapping[str, np.ndarray]],
        seconds: float,
    ) -> SampleStore:
        """Make a run without draws beside the store and move it in, whole or not at all.

        Parameters
        ----------
        path, group
            As for the class.
        settings : mapping
            What fixes the draws, with ``chains`` and ``thin``; a run goes on only with the same.
        attributes : mapping
            Further attributes of the group.
        coordinates : Dataset
            The study; each group takes the coordinates of its dimensions.
        dims : mapping of str to tuple of str
            Dimensions of growing arrays after (chain, draw), where they have any.
        example : mapping of str to mapping of str to array
            A block, as for :meth:`append`, for the shapes and types of the growing arrays.
        labels : array, shape (P,) or (P, C)
            Training labels.
        states : sequence of mapping
            States of the chains after the warm-up.
        seconds : float
            Time that the warm-up took.

        Raises
        ------
        StoreError
            If the folder cannot be written.
        """
        path = Path(path)
        partial = folder_beside(path)
        try:
            create_groups(partial, settings, attributes, coordinates, dims, example, labels)
            create_adaptation(partial, states, seconds)
            move_into(partial, path, group)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        store = cls(path, group)
        store.publish()
        return store

    @classmethod
    def resume(cls, path: Path, group: str, settings: Mapping[str, Any]) -> SampleStore | None:
        """Open a run to add draws; None if the store does not hold it yet.

        Raises
        ------
        StoreError
            If its settings are others, naming the differences.
        """
        path = Path(path)
        if not (path / group / "zarr.json").exists():
            return None
        held = _settings(path, group)
        different = [key for key in {**held, **settings} if held.get(key) != settings.get(key)]
        if different:
            lines = "; ".join(
                f"{key.replace('_', '-')}: the store has {held.get(key)}, this run "
                f"{settings.get(key)}"
                for key in sorted(different)
            )
            raise StoreError(
                f"{path} holds other draws in {group}, which are left as they are ({lines}). Go on "
                f"with their settings, or delete the folder {path / group} to draw anew"
            )
        store = cls(path, group)
        store.publish()
        return store

    @property
    def draws_done(self) -> int:
        """Draws of each chain that are written."""
        return int(self.read("adaptation", "draws_done"))

    @property
    def seconds(self) -> float:
        """Time spent on the run so far, warm-up included."""
        return float(self.read("adaptation", "seconds")[self._slot()])

    def states(self) -> list[dict[str, np.ndarray]]:
        """States of the chains after the last draw, one mapping of arrays per chain."""
        slot = self._slot()
        values = {
            name.removeprefix(STATE): self.read("adaptation", name)[slot]
            for name in self._arrays["adaptation"]
            if name.startswith(STATE)
        }
        return [
            {name: np.asarray(value[chain]) for name, value in values.items()}
            for chain in range(self.settings["chains"])
        ]

    def read(self, group: str, name: str) -> np.ndarray:
        """Values of an array; of a growing one (chain, draw, …)."""
        return read_array(self._arrays[group][name])

    def append(
        self,
        block: Mapping[str, Mapping[str, np.ndarray]],
        states: Sequence[Mapping[str, np.ndarray]],
        seconds: float,
    ) -> None:
        """Write a block of draws, and the states of the chains after it.

        Parameters
        ----------
        block : mapping of str to mapping of str to array
            Group → variable → values (chain, draw, …). ``predictions`` has one entry for every
            ``thin`` draws of the others.
        states : sequence of mapping of str to array
            Per chain.
        seconds : float
            Time spent on the run so far.
        """
        done = self.draws_done
        count = next(iter(block["posterior"].values())).shape[1]
        for group, variables in block.items():
            step = self._step(group)
            region = slice(done // step, (done + count) // step)
            self._resize(group, region.stop)
            for name, values in variables.items():
                self._put(self._arrays[group][name], (slice(None), region), values)
            numbers = np.arange(region.start, region.stop) * step + step - 1
            self._put(self._arrays[group]["draw"], region, numbers)
        adaptation = self._arrays["adaptation"]
        slot = 1 - self._slot()
        for name in states[0]:
            values = np.stack([state[name] for state in states])
            self._put(adaptation[STATE + name], slot, values)
        self._put(adaptation["seconds"], slot, seconds)
        self._put(adaptation["slot_draws"], slot, done + count)
        sync()  # the marker must not outlast a power failure that the draws do not
        self._put(adaptation["draws_done"], (), done + count)
        self.publish()

    @property
    def has_evidence(self) -> bool:
        """Whether the evidence that is written takes all draws into account."""
        return int(self.read("adaptation", "evidence_draws")) == self.draws_done

    def write_evidence(self, value: float, error: float) -> None:
        """Write an estimate of the log evidence, and its error, from all draws so far."""
        adaptation = self._arrays["adaptation"]
        self._put(adaptation["evidence_draws"], (), -1)  # what is written next belongs to no draws
        self._put(adaptation["log_evidence"], (), value)
        self._put(adaptation["log_evidence_error"], (), error)
        self._put(adaptation["evidence_draws"], (), self.draws_done)

    def publish(self) -> None:
        """Show all that is written to readers."""
        publish(self.path, self.group)

    def _slot(self) -> int:
        draws = self.read("adaptation", "slot_draws")
        return int(np.flatnonzero(draws == self.draws_done)[0])

    def _step(self, group: str) -> int:
        return self.settings["thin"] if group == "predictions" else 1

    def _resize(self, group: str, length: int) -> None:
        for array in self._arrays[group].values():
            if "draw" not in array.metadata.dimension_names:
                continue
            axis = array.metadata.dimension_names.index("draw")
            if array.shape[axis] != length:
                array.resize((*array.shape[:axis], length, *array.shape[axis + 1 :]))

    def _put(self, array: zarr.Array, region: Any, values: Any) -> None:
        write_region(array, region, values)


def _settings(path: Path, group: str) -> dict[str, Any]:
    """What fixes the draws of a run."""
    return settings_of(zarr.open_group(path, path=group, mode="r"))
