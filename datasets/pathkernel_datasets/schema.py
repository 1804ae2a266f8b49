"""Dimensions of a result store: the grid's seed, temperature and width, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from pathkernel_core.network import Network
from pathkernel_core.solution import Status
from pathkernel_datasets.labelling import coordinate

POINT = ("seed", "temperature", "width")
REFERENCE = ("seed", "temperature")

STATUS_CODES = {
    "not computed": 0,
    Status.CONVERGED.name.lower(): 1,
    Status.MAX_EVALUATIONS.name.lower(): 2,
    Status.STALLED.name.lower(): 3,
    "not_positive_definite": 4,
}

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
    "layer": "attention layer, from the input",
    "head": "head within its layer",
}

_UNITS = {"temperature": "1", "width": "1"}

KNOWN_DIMENSIONS = frozenset(_COORDINATES)
"""Dimensions that every store labels itself."""


def coordinates(
    network: Network,
    grid: Mapping[str, Sequence[Any]],
    test_sets: Mapping[str, int],
    sub_networks: Iterable[str],
    extra: Mapping[str, Sequence[Any]],
    meanings: Mapping[str, str],
    output_names: Sequence[str] | None = None,
) -> dict[str, xr.Variable]:
    """Coordinates of a store, by name.

    Parameters
    ----------
    network : Network
        Heads and outputs.
    grid : mapping
        Values of seed, temperature and width.
    test_sets : mapping of str to int
        Number of examples of each test set; the longest sets the length of ``example``.
    sub_networks : iterable of str
        Names of sub-networks.
    extra : mapping
        Coordinates of the analyses' own dimensions.
    meanings : mapping
        What those count, in words.
    output_names : sequence of str, optional
        What several outputs stand for; by default they are numbered from 0.
    """
    values: dict[str, Sequence[Any]] = {
        **{name: grid[name] for name in POINT},
        "path": network.path_labels,
        "path_dual": network.path_labels,
        "test_set": tuple(test_sets),
        "example": range(max(test_sets.values())),
        "sub_network": tuple(sub_networks),
        "layer": range(1, network.n_layers + 1),
        "head": range(1, max(network.heads) + 1),
    }
    if network.outputs > 1:
        names = range(network.outputs) if output_names is None else output_names
        values |= dict.fromkeys(("output", "output_dual"), names)
    result = {
        name: coordinate(name, entries, _COORDINATES[name], _UNITS.get(name, ""))
        for name, entries in values.items()
    }
    for layer in range(network.n_layers):
        for dim in ("path", "path_dual"):
            heads = [path[layer] for path in network.paths]
            words = f"head of layer {layer + 1} on the path"
            words += ", 0 for its skip connection" if 0 in heads else ""
            result[f"{dim}_layer_{layer + 1}"] = coordinate(dim, heads, words)
    for name, entries in extra.items():
        if name not in result:
            result[name] = coordinate(name, entries, meanings.get(name, name.replace("_", " ")))
    return result
