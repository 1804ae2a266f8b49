"""The groups of a run of draws: arrays, dimensions, units and meanings, before the first draw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

STATE = "state_"
"""Prefix of the arrays that hold the chains' states."""

_CHUNK_BYTES = 2**23
_CHUNK_DRAWS = 500

_ATTRIBUTES = {
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


def create_groups(
    folder: Path,
    settings: Mapping[str, Any],
    attributes: Mapping[str, Any],
    coordinates: Mapping[str, xr.Variable],
    dims: Mapping[str, tuple[str, ...]],
    example: Mapping[str, Mapping[str, np.ndarray]],
    labels: np.ndarray,
) -> None:
    """Make all groups but the adaptation's, with the parameters of ``SampleStore.create``."""
    root = zarr.open_group(folder, mode="w", zarr_format=3)
    root.attrs.update({**attributes, "settings": json.dumps(settings, sort_keys=True)})
    chain = xr.Variable("chain", np.arange(settings["chains"]), _described("chain"))
    for group, variables in example.items():
        names = {dim for name in variables for dim in dims.get(name, ())}
        fixed = {
            name: variable
            for name, variable in coordinates.items()
            if variable.dims and set(variable.dims) <= names
        }
        _write_dataset(folder, group, xr.Dataset(coords={"chain": chain, **fixed}))
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
            attributes=_described("draw"),
        )
    observed_dims = ("observation", "output")[: labels.ndim]
    observed = xr.Dataset(
        {"label": (observed_dims, labels, _described("label"))},
        coords={
            "observation": ("observation", np.arange(len(labels)), _described("observation")),
            **{name: coordinates[name] for name in observed_dims[1:]},
        },
    )
    _write_dataset(folder, "observed_data", observed)


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
        attributes=_described(name),
    )


def create_adaptation(
    folder: Path, states: Sequence[Mapping[str, np.ndarray]], seconds: float
) -> None:
    """Make the group with the states to go on from, the marker and the evidence."""
    variables: dict[str, Any] = {
        "draws_done": ((), np.int64(0), {"long_name": "draws of each chain that are written"}),
        "slot_draws": (
            ("slot",),
            np.array([0, -1]),
            {"long_name": "draw after which the states of this slot were taken"},
        ),
        "seconds": (
            ("slot",),
            np.array([seconds, 0.0]),
            {"long_name": "time spent on the run so far", "units": "s"},
        ),
    }
    about = "of the estimate by bridge sampling"
    for name, value, long_name, units in (
        ("log_evidence", np.nan, "log evidence ln p(Y), by bridge sampling", "nat"),
        ("log_evidence_error", np.nan, f"standard error {about}", "nat"),
        ("evidence_draws", np.int64(-1), f"draws of each chain {about}", "1"),
    ):
        variables[name] = ((), value, {"long_name": long_name, "units": units})
    for name in states[0]:
        values = np.stack([np.asarray(state[name]) for state in states])
        dims = (f"{name}_dim_{axis}" for axis in range(values.ndim - 1))
        variables[STATE + name] = (
            ("slot", "chain", *dims),
            np.stack([values, np.zeros_like(values)]),
            {"long_name": f"{name.replace('_', ' ')} of the chain"},
        )
    _write_dataset(folder, "adaptation", xr.Dataset(variables))


def _write_dataset(folder: Path, group: str, dataset: xr.Dataset) -> None:
    dataset.to_zarr(folder, group=group, mode="w", zarr_format=3, consolidated=False)


def _described(name: str) -> dict[str, str]:
    long_name, units = _ATTRIBUTES.get(name, (name.replace("_", " "), "1"))
    return {"long_name": long_name, "units": units}
