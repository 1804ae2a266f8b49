"""Names, dimensions, units and meaning of everything in a result store.

A store's grid has the dimensions seed, temperature and width; all other dimensions follow. Nothing
else in the project spells out a variable's dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from pathkernel_core.analysis import Analysis, Variable
from pathkernel_core.network import Network
from pathkernel_core.solution import Status
from pathkernel_datasets.labelling import coordinate
from pathkernel_datasets.measures import MEASURES

POINT = ("seed", "temperature", "width")
REFERENCE = ("seed", "temperature")

STATUS_CODES = {
    "not computed": 0,
    Status.CONVERGED.name.lower(): 1,
    Status.MAX_EVALUATIONS.name.lower(): 2,
    Status.STALLED.name.lower(): 3,
    "not_positive_definite": 4,
}

_TEST = ("test_set", "example")


def _leave_one_out(suffix: str, dims: tuple[str, ...], words: str) -> tuple[Variable, ...]:
    """What each training example says when it is predicted from the others."""
    return (
        Variable(
            f"leave_one_out_log_density{suffix}",
            dims,
            f"mean log density of a training label given all others, {words}",
            units="nat",
        ),
        Variable(
            f"leave_one_out_squared_error{suffix}",
            dims,
            f"mean squared error of a training label predicted from all others, {words}",
        ),
    )


_SKIP_SCORES = tuple(
    Variable(
        f"skip_score{suffix}",
        (*dims, "layer"),
        f"score of a layer's skip connection{words}; the largest of a head is 1",
    )
    for suffix, dims, words in (
        ("", POINT, ""),
        ("_gp", REFERENCE, " in the Gaussian process limit"),
    )
)


def core_variables(outputs: int, kind: str, skips: bool = False) -> tuple[Variable, ...]:
    """Variables that every store has, for that many outputs and that kind of examples.

    Of a network with skip connections, their scores are among them.
    """
    output = ("output",) if outputs > 1 else ()
    dual = ("output_dual",) if outputs > 1 else ()
    per_path = ("path", *output, "path_dual", *dual)
    return (
        Variable("order_parameter", (*POINT, *per_path), "order parameter U", equation="Eq. 11"),
        Variable("action", POINT, "action per width S/N at its minimum", equation="Eq. 11, 32"),
        Variable("entropy", POINT, "entropy term of the action per width", equation="Eq. 33"),
        Variable("energy", POINT, "energy term of the action per width", equation="Eq. 12, 34"),
        Variable(
            "log_evidence",
            POINT,
            "leading-order log evidence ln p(Y); NaN at widths below the sizes of U",
            units="nat",
        ),
        *_leave_one_out("", POINT, "at fixed U"),
        Variable("gradient_norm", POINT, "largest entry of the gradients of S/N at the minimum"),
        Variable("evaluations", POINT, "evaluations of the energy during the minimisation"),
        Variable("minima", POINT, "number of minima of the action that the search found"),
        Variable("action_gap", POINT, "action per width of the next higher minimum, less S/N"),
        *(_SKIP_SCORES if skips else ()),
        *_measured("", POINT, "", kind),
        Variable(
            "predictor_mean",
            (*POINT, *_TEST, *output),
            "posterior mean of the network's output",
            equation="Eq. 9, 29",
        ),
        Variable(
            "predictor_variance",
            (*POINT, *_TEST, *output),
            "posterior variance of the network's output given U, without observation noise",
            equation="Eq. 30",
        ),
        *_measured("_gp", REFERENCE, ", in the Gaussian process limit", kind),
        Variable(
            "predictor_mean_gp",
            (*REFERENCE, *_TEST, *output),
            "posterior mean in the Gaussian process limit",
            equation="Eq. 9, 29",
        ),
        Variable(
            "log_evidence_gp",
            REFERENCE,
            "log evidence ln p(Y) in the Gaussian process limit",
            units="nat",
        ),
        Variable(
            "explained_share_gp",
            REFERENCE,
            "explained share of the squared labels that the limit's features span",
        ),
        *_leave_one_out("_gp", REFERENCE, "in the Gaussian process limit"),
        *_leave_one_out(
            "_sub_network",
            (*REFERENCE, "sub_network"),
            "of a sub-network in the Gaussian process limit",
        ),
        Variable(
            "log_evidence_sub_network",
            (*REFERENCE, "sub_network"),
            "log evidence ln p(Y) of a sub-network in the Gaussian process limit",
            units="nat",
        ),
        *_measured(
            "_sub_network",
            (*REFERENCE, "sub_network"),
            ", of a sub-network in the Gaussian process limit",
            kind,
        ),
        Variable("test_label", ("seed", *_TEST, *output), "label of the test example"),
    )


def _measured(suffix: str, dims: tuple[str, ...], words: str, kind: str) -> tuple[Variable, ...]:
    """How well the test examples are predicted."""
    return tuple(
        Variable(
            measure.name + suffix, (*dims, "test_set"), measure.long_name + words, measure.units
        )
        for measure in MEASURES[kind]
    )


def validation_variables(kind: str) -> tuple[Variable, ...]:
    """Variables of a task that has validation examples."""
    name, what = {
        "classes": ("accuracy", "fraction of validation examples classified correctly"),
        "targets": ("mean_squared_error", "mean squared error on validation examples"),
    }[kind]
    return tuple(
        Variable(f"{name}_validation{suffix}", dims, what + words)
        for suffix, dims, words in (
            ("", POINT, ""),
            ("_gp", REFERENCE, ", in the Gaussian process limit"),
            ("_sub_network", (*REFERENCE, "sub_network"), ", by a sub-network"),
        )
    )


def analysis_variables(analysis: Analysis) -> tuple[Variable, ...]:
    """Variables of an analysis as they are stored: with the grid's dimensions in front."""
    if analysis.of == "data":
        return tuple(_with_grid(variable, ("seed",)) for variable in analysis.variables)
    return tuple(
        stored
        for variable in analysis.variables
        for stored in (
            _with_grid(variable, POINT),
            _with_grid(variable, REFERENCE, "_gp", " in the Gaussian process limit"),
        )
    )


def _with_grid(
    variable: Variable, grid: tuple[str, ...], suffix: str = "", addition: str = ""
) -> Variable:
    return Variable(
        variable.name + suffix,
        (*grid, *variable.dims),
        variable.long_name + addition,
        variable.units,
        variable.equation,
    )


MARKERS = (
    Variable("status", POINT, "how the minimisation of this grid point ended"),
    Variable("reference_done", REFERENCE, "1 where the Gaussian process references are computed"),
    Variable("data_done", ("seed",), "1 where the quantities of the data alone are computed"),
)
"""Written after everything they vouch for, so that a killed run leaves no half-written point."""

MARKER_NAMES = frozenset(marker.name for marker in MARKERS)

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
