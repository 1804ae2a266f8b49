"""The next order in 1/N at a point of a study, kept in the study's store."""

from __future__ import annotations

import os
from pathlib import Path

import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_core.hooks import Plugins
from pathkernel_core.kernels import PathKernels
from pathkernel_core.minimise import minimise_action
from pathkernel_datasets.labelling import coordinates_along, labelled, path_dims
from pathkernel_datasets.point import Point
from pathkernel_datasets.store import check_store
from pathkernel_datasets.stored import StoredStudy, compute_result
from pathkernel_sampling.corrections import next_order
from pathkernel_sampling.results import NextOrder

_NEXT = "next order in 1/N, to be added"


def correct_study(
    store: str | os.PathLike,
    *,
    width: float,
    temperature: float | None = None,
    seed: int | None = None,
    plugins: Plugins | None = None,
) -> Point:
    """Compute the next order in 1/N at a point of a study, unless the store holds it.

    Parameters
    ----------
    store : path
        Result store of the study.
    width : float
        Width N, one of the study's.
    temperature : float, optional
        Temperature T, one of the study's; by default as for :class:`Selection`.
    seed : int, optional
        Seed of data and heads, one of the study's; by default its first.
    plugins : Plugins, optional
        Where the study's task is looked up; by default those installed.

    Returns
    -------
    Point
        For :func:`open_correction`.

    Raises
    ------
    StoreError
        If the store is damaged, lacks the point, was made from other data, or another process
        writes into it.
    ValueError
        If there is no expansion: a width is smaller than its order parameter, or the action has
        no minimum.
    """
    wanted = NextOrder(widths=(width,), temperature=temperature, seed=seed)
    (at,) = wanted.wanted(compute_result(wanted, store, plugins=plugins))
    return at


def open_correction(store: str | os.PathLike, at: Point) -> xr.Dataset | None:
    """The next order at a point of a study; None if it is not computed.

    Returns
    -------
    xarray.Dataset
        ``order_parameter`` at the saddle point and ``order_parameter_correction``, dims (path,
        [output,] path_dual, [output_dual]); ``log_evidence``, ``log_evidence_correction`` and its
        part ``log_evidence_two_loops``, in nats.
    """
    group = f"{NextOrder.name}/{at}"
    check_store(Path(store))
    if not (Path(store) / group / "zarr.json").exists():
        return None
    return xr.open_zarr(store, group=group, chunks=None, consolidated=False)


def corrected(study: StoredStudy, at: Point) -> xr.Dataset:
    """Compute the next order at a point, see :func:`open_correction`."""
    point = study.rebuild(at)
    network = point.network
    problem = PathKernels(point.data.xi, point.data.labels)
    correction = next_order(minimise_action(problem, network, at.temperature))
    dims = path_dims(network.outputs)
    shape = (
        (network.n_paths, network.outputs) * 2 if network.outputs > 1 else (network.n_paths,) * 2
    )
    variables = (
        Variable("order_parameter", dims, "order parameter U at the saddle point"),
        Variable("order_parameter_correction", dims, f"order parameter U, {_NEXT}"),
        Variable("log_evidence", (), "log evidence ln p(Y) at leading order", "nat"),
        Variable("log_evidence_correction", (), f"log evidence ln p(Y), {_NEXT}", "nat"),
        Variable(
            "log_evidence_two_loops",
            (),
            "part of the correction of the log evidence from cubic and quartic terms",
            "nat",
        ),
    )
    values = {
        variable.name: getattr(correction, variable.name).reshape(shape)
        if variable.dims
        else getattr(correction, variable.name)
        for variable in variables
    }
    return labelled(values, variables, coordinates_along(study.dataset, dims))
