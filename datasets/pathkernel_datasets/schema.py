"""Dimensions of a result store: the grid's seed, temperature and width, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from pathkernel_core.heads import every_head
from pathkernel_core.network import Network
from pathkernel_core.task import Realisation
from pathkernel_datasets.labelling import coordinate, head_coordinates
from pathkernel_datasets.study import POINT

_COORDINATES = {
    "seed": "seed of the task's data and heads",
    "temperature": "Gibbs temperature T, the variance of the observation noise",
    "width": "network width N",
    "path": "attention path, one head per layer",
    "path_dual": "attention path of the order parameter's second index",
    "output": "network output",
    "output_dual": "network output of the order parameter's second index",
    "test_set": "name of the set of test examples",
    "example": "index of the test example within its test set",
    "sub_network": "part of the network that is kept",
    "skip": "layer whose heads the skip connection bypasses",
}

KNOWN_DIMENSIONS = frozenset((*_COORDINATES, "head"))
"""Dimensions that every store labels itself."""


def coordinates(
    network: Network, realisation: Realisation, grid: Mapping[str, Sequence[Any]]
) -> dict[str, xr.Variable]:
    """Coordinates of a store, by name.

    The grid has the values of seed, temperature and width. The longest test set sets the length of
    ``example``. Outputs are numbered from 0 unless the task names them.
    """
    labels: dict[str, Iterable[Any]] = {
        **{name: grid[name] for name in POINT},
        "path": network.path_labels,
        "path_dual": network.path_labels,
        "test_set": realisation.test_sets,
        "example": range(max(len(test.labels) for test in realisation.test_sets.values())),
        "sub_network": realisation.sub_networks,
    }
    if network.has_skips:
        labels["skip"] = range(1, network.n_layers + 1)
    if network.outputs > 1:
        names = realisation.output_names
        outputs = range(network.outputs) if names is None else names
        labels |= {"output": outputs, "output_dual": outputs}
    units = {"temperature": "1", "width": "1"}
    variables = {
        name: coordinate(name, values, _COORDINATES[name], units.get(name, ""))
        for name, values in labels.items()
    }
    variables |= head_coordinates(every_head(network.heads))
    for layer, heads in enumerate(zip(*network.paths), start=1):
        meaning = f"head of layer {layer} on the path"
        meaning += ", 0 for its skip connection" if 0 in heads else ""
        for dim in ("path", "path_dual"):
            variables[f"{dim}_layer_{layer}"] = coordinate(dim, heads, meaning)
    return variables
