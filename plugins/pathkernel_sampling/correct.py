"""The next order in 1/N at a point of a study, kept in the study's store."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xarray as xr

from pathkernel_core.hooks import Plugins, load_plugins
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import minimise_action
from pathkernel_datasets.groups import add_group, publish, sole_writer
from pathkernel_datasets.store import check_store, open_store
from pathkernel_sampling.corrections import Correction, next_order
from pathkernel_sampling.point import GridPoint, Point

ROOT = "corrections"


def correct_study(
    store: str | os.PathLike,
    *,
    width: float,
    temperature: float | None = None,
    seed: int | None = None,
    plugins: Plugins | None = None,
) -> GridPoint:
    """Compute the next order in 1/N at a point of a study, unless the store holds it.

    Parameters
    ----------
    store : path
        Result store of the study.
    width : float
        Width N, one of the study's.
    temperature : float, optional
        Temperature T, one of the study's; by default that of largest log evidence at this width.
    seed : int, optional
        Seed of data and heads, one of the study's; by default its first.
    plugins : Plugins, optional
        Where the study's task is looked up; by default those installed.

    Returns
    -------
    GridPoint
        The point, for :func:`open_correction`.

    Raises
    ------
    StoreError
        If the store is damaged, lacks the point, was made from other data, or another process
        writes into it.
    ValueError
        If there is no expansion: a width is smaller than its order parameter, or the action has
        no minimum.
    """
    store = Path(store)
    at = GridPoint.find(open_store(store), width, temperature, seed)
    group = f"{ROOT}/{at}"
    with sole_writer(store):
        if (store / group / "zarr.json").exists():
            publish(store, group)  # a kill may have come before
            return at
        point = Point.rebuild(store, at, load_plugins() if plugins is None else plugins)
        problem = PathKernels(point.data.xi, point.data.labels)
        correction = next_order(minimise_action(problem, point.network, at.temperature))
        add_group(store, group, _labelled(correction, point, open_store(store)))
    return at


def open_correction(store: str | os.PathLike, at: GridPoint) -> xr.Dataset | None:
    """The next order at a point of a study; None if it is not computed.

    Returns
    -------
    xarray.Dataset
        ``order_parameter`` at the saddle point and ``order_parameter_correction``, dims (path,
        [output,] path_dual, [output_dual]); ``log_evidence``, ``log_evidence_correction`` and its
        part ``log_evidence_two_loops``, in nats.
    """
    group = f"{ROOT}/{at}"
    check_store(Path(store))
    if not (Path(store) / group / "zarr.json").exists():
        return None
    return xr.open_zarr(store, group=group, chunks=None, consolidated=False)


def _labelled(correction: Correction, point: Point, study: xr.Dataset) -> xr.Dataset:
    network = point.network
    dims: tuple[str, ...] = ("path", "path_dual")
    shape: tuple[int, ...] = (network.n_paths,) * 2
    if network.outputs > 1:
        dims = ("path", "output", "path_dual", "output_dual")
        shape = (network.n_paths, network.outputs) * 2
    next_ = "next order in 1/N, to be added"

    def matrix(values: np.ndarray, long_name: str) -> xr.Variable:
        return xr.Variable(dims, values.reshape(shape), {"long_name": long_name, "units": "1"})

    def nats(value: float, long_name: str) -> xr.Variable:
        return xr.Variable((), value, {"long_name": long_name, "units": "nat"})

    entries = {
        "order_parameter": matrix(
            correction.order_parameter, "order parameter U at the saddle point"
        ),
        "order_parameter_correction": matrix(
            correction.order_parameter_correction, f"order parameter U, {next_}"
        ),
        "log_evidence": nats(correction.log_evidence, "log evidence ln p(Y) at leading order"),
        "log_evidence_correction": nats(
            correction.log_evidence_correction, f"log evidence ln p(Y), {next_}"
        ),
        "log_evidence_two_loops": nats(
            correction.log_evidence_two_loops,
            "part of the correction of the log evidence from cubic and quartic terms",
        ),
    }
    coords = {
        name: study[name].variable
        for name in study.coords
        if study[name].dims and set(study[name].dims) <= set(dims)
    }
    return xr.Dataset(entries, coords)
