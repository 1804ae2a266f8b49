"""The groups of a run of draws: arrays, dimensions, units and meanings, before the first draw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.checksums import CHECKED, write_dataset
from pathkernel_datasets.labelling import coordinates_along, labelled, variable_attributes

STATE = "state_"
"""Prefix of the arrays that hold the chains' states."""

_CHUNK_BYTES = 2**23
_CHUNK_DRAWS = 500

_MEANINGS = {
    "order_parameter": ("order parameter U", "1"),
    "predictor_mean": ("mean of the network's output given the draw", "1"),
    "predictor_variance": ("variance of the network's output given the draw", "1"),
    "lp": ("log of prior times likelihood, of the sampled coordinates", "nat"),
    "energy": ("Hamiltonian of the accepted point of the trajectory", "nat"),
    "diverging": ("whether the trajectory diverged", "1"),
    "tree_depth": ("depth of the trajectory's tree", "1"),
    "reached_max_tree_depth": ("whether the trajectory was cut off at the largest depth", "1"),
    "n_steps": ("leapfrog steps of the trajectory", "1"),
    "acceptance_rate": ("mean acceptance probability along the trajectory", "1"),
    "step_size": ("step size of the integrator", "1"),
    "label": ("label of the training example", "1"),
    "position": ("sampled coordinates", "1"),
    "chain": ("chain", "1"),
    "draw": ("draw after the warm-up", "1"),
    "observation": ("training example", "1"),
}
"""Name → meaning and unit, also of what a plugin's sampler calls by one of these names."""


def create_groups(
    folder: Path,
    settings: Mapping[str, Any],
    attributes: Mapping[str, Any],
    coordinates: xr.Dataset,
    dims: Mapping[str, tuple[str, ...]],
    example: Mapping[str, Mapping[str, np.ndarray]],
    labels: np.ndarray,
) -> None:
    """Make all groups but the adaptation's, with the parameters of ``SampleStore.create``."""
    root = zarr.open_group(folder, mode="w", zarr_format=3)
    root.attrs.update({**attributes, "settings": json.dumps(settings, sort_keys=True)})
    chain = xr.Variable("chain", np.arange(settings["chains"]), _attributes("chain"))
    for group, variables in example.items():
        names = {dim for name in variables for dim in dims.get(name, ())}
        fixed = coordinates_along(coordinates, names)
        write_dataset(xr.Dataset(coords={"chain": chain, **fixed}), folder / group)
        target = root[group]
        for name, values in variables.items():
            _create_growing(target, name, np.asarray(values), dims.get(name, ()))
        target.create_array(
            name="draw",
            shape=(0,),
            chunks=(100 * _CHUNK_DRAWS,),
            dtype="int64",
            fill_value=0,
            dimension_names=("draw",),
            attributes=_attributes("draw"),
            compressors=CHECKED,
        )
    observed_dims = ("observation", "output")[: labels.ndim]
    observed = xr.Dataset(
        {"label": (observed_dims, labels, _attributes("label"))},
        coords={
            "observation": ("observation", np.arange(len(labels)), _attributes("observation")),
            **coordinates_along(coordinates, observed_dims[1:]),
        },
    )
    write_dataset(observed, folder / "observed_data")


def _create_growing(
    group: zarr.Group, name: str, values: np.ndarray, dims: tuple[str, ...]
) -> None:
    """Array without draws, in chunks of all chains and as many draws as a few MiB hold."""
    chains, _, *tail = values.shape
    draw_bytes = chains * int(np.prod(tail, dtype=int)) * values.itemsize
    chunk = min(_CHUNK_DRAWS, max(1, _CHUNK_BYTES // draw_bytes))
    group.create_array(
        name=name,
        shape=(chains, 0, *tail),
        chunks=(chains, chunk, *tail),
        dtype=values.dtype,
        fill_value=np.nan if values.dtype.kind == "f" else values.dtype.type(0),
        dimension_names=("chain", "draw", *dims),
        attributes=_attributes(name),
        compressors=CHECKED,
    )


def create_adaptation(
    folder: Path, states: Sequence[Mapping[str, np.ndarray]], seconds: float
) -> None:
    """Make the group with the states to go on from, the marker and the evidence."""
    bridge = "of the estimate by bridge sampling"
    evidence = "log evidence ln p(Y), by bridge sampling"
    values: dict[str, Any] = {
        "draws_done": np.int64(0),
        "slot_draws": np.array([0, -1]),
        "seconds": np.array([seconds, 0.0]),
        "log_evidence": np.nan,
        "log_evidence_error": np.nan,
        "evidence_draws": np.int64(-1),
    }
    slot = "draw after which the states of this slot were taken"
    variables = [
        Variable("draws_done", (), "draws of each chain that are written"),
        Variable("slot_draws", ("slot",), slot),
        Variable("seconds", ("slot",), "time spent on the run so far", "s"),
        Variable("log_evidence", (), evidence, "nat"),
        Variable("log_evidence_error", (), f"standard error {bridge}", "nat"),
        Variable("evidence_draws", (), f"draws of each chain {bridge}"),
    ]
    for name in states[0]:
        first = np.stack([np.asarray(state[name]) for state in states])
        values[STATE + name] = np.stack([first, np.zeros_like(first)])
        dims = ("slot", "chain", *(f"{name}_dim_{axis}" for axis in range(first.ndim - 1)))
        variables.append(Variable(STATE + name, dims, f"{name.replace('_', ' ')} of the chain"))
    write_dataset(labelled(values, variables), folder / "adaptation")


def _attributes(name: str) -> dict[str, str]:
    return variable_attributes(
        Variable(name, (), *_MEANINGS.get(name, (name.replace("_", " "), "1")))
    )
