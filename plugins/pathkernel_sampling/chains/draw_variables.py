"""Dimensions, units and meanings of a run of draws, whose arrays are labelled and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.contracts.analysis import Variable
from pathkernel_datasets.results.draws import ORDER_PARAMETER, SETTINGS
from pathkernel_datasets.variables.labelling import (
    coordinate,
    coordinates_along,
    label_arrays,
    path_dims,
)

Arrays = Mapping[str, np.ndarray]
"""A run, or a block of its draws, as arrays by name.

``GROUP/VARIABLE``, such as ``posterior/order_parameter``, has the shape (chain, draw, …), with one
entry in ``predictions`` for every ``thin`` draws of the others. ``state/NAME`` holds the states of
the chains after the last draw, ``seconds`` the time spent on the run so far, ``labels`` (P,) or
(P, C) those of the training examples, ``settings`` and ``attributes`` texts in JSON.
"""

STATE = "state/"
"""Beginning of the names of arrays that hold the states of the chains."""

_STORED_STATE = "state_"  # of the variables that hold them
# groups without the dimension draw
_UNDRAWN = (
    "adaptation",
    "observed_data",
    "attention",
    "random_heads",
    "tempering",
    "modes",
    "maxima",
)

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
    "attended_tokens": ("tokens that a head attends to, exp of the entropy of its attention", "1"),
    "log_ratio": ("log ratio of posterior and mixture, of the replica at each level", "nat"),
    "draws_done": ("draws of each chain", "1"),
    "seconds": ("time spent on the run so far", "s"),
    "log_evidence": ("log evidence ln p(Y), by bridge sampling or tempering", "nat"),
    "log_evidence_error": ("standard error of the log evidence", "nat"),
}
"""Meaning and unit of a variable by its name, also of the statistics of a plugin's sampler."""


def labelled_run(
    arrays: Arrays, study: xr.Dataset, evidence: tuple[float, float] = (np.nan, np.nan)
) -> xr.DataTree:
    """Label a run from its first draw on, in the groups that ArviZ expects.

    Parameters
    ----------
    arrays : mapping of str to array
    study : Dataset
        With the coordinates of paths, test sets and outputs.
    evidence : tuple of float
        Log evidence and its standard error, in nats; NaN before the run is complete.
    """
    settings, labels = json.loads(str(arrays[SETTINGS])), arrays["labels"]
    outputs = ("output",) if labels.ndim > 1 else ()
    dims = {
        "order_parameter": path_dims(2 if outputs else 1),
        "predictor_mean": ("test_set", "example", *outputs),
        "predictor_variance": ("test_set", "example", *outputs),
        "position": ("coordinate",),
        "attended_tokens": ("head",),
        "log_ratio": ("level",),
    }
    chains, end = arrays[ORDER_PARAMETER].shape[:2]
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name in filter(_is_drawn, arrays):
        group, _, variable = name.partition("/")
        groups.setdefault(group, {})[variable] = arrays[name]
    nodes = {}
    for group, values in groups.items():
        step = settings["thin"] if group == "predictions" else 1
        draws = range(step - 1, end, step)  # the predictor follows the last of a round
        variables = [_variable(name, "chain", "draw", *dims.get(name, ())) for name in values]
        coordinates = {
            "chain": coordinate("chain", range(chains), "chain", "1"),
            "draw": coordinate("draw", draws, "draw after the warm-up", "1"),
            **coordinates_along(study, {dim for variable in variables for dim in variable.dims}),
        }
        nodes[group] = label_arrays(values, variables, coordinates)
    examples = coordinate("observation", range(len(labels)), "training example", "1")
    nodes["observed_data"] = label_arrays(
        {"label": labels},
        [_variable("label", "observation", *outputs)],
        {"observation": examples, **coordinates_along(study, outputs)},
    )
    numbers = {
        "draws_done": end,
        "seconds": arrays["seconds"],
        "log_evidence": evidence[0],
        "log_evidence_error": evidence[1],
    }
    adaptation = label_arrays(numbers, map(_variable, numbers))
    for name in (name for name in arrays if name.startswith(STATE)):
        state, array = name.removeprefix(STATE), arrays[name]
        state_dims = ("chain", *(f"{state}_dim_{axis}" for axis in range(array.ndim - 1)))
        attributes = {"long_name": f"{state.replace('_', ' ')} of the chain", "units": "1"}
        adaptation[_STORED_STATE + state] = state_dims, array, attributes
    nodes["adaptation"] = adaptation
    run = xr.DataTree.from_dict(nodes)
    run.attrs = json.loads(str(arrays["attributes"])) | {SETTINGS: str(arrays[SETTINGS])}
    return run


def arrays_of(run: xr.DataTree) -> Arrays:
    """Arrays of a labelled run, in memory."""
    run = run.load()
    arrays = {
        f"{group}/{name}": variable.values
        for group, node in run.children.items()
        if group not in _UNDRAWN
        for name, variable in node.data_vars.items()
    }
    for name, variable in run["adaptation"].data_vars.items():
        if str(name).startswith(_STORED_STATE):
            arrays[STATE + str(name).removeprefix(_STORED_STATE)] = variable.values
    attributes = {name: value for name, value in run.attrs.items() if name != SETTINGS}
    return arrays | {
        "seconds": run["adaptation"]["seconds"].values,
        "labels": run["observed_data"]["label"].values,
        SETTINGS: np.array(run.attrs[SETTINGS]),
        "attributes": np.array(json.dumps(attributes)),
    }


def join_blocks(blocks: Sequence[Arrays]) -> Arrays:
    """A run of several blocks, one after another; what does not grow is that of the last."""
    drawn = {
        name: np.concatenate([block[name] for block in blocks], axis=1)
        for name in filter(_is_drawn, blocks[0])
    }
    return {**blocks[-1], **drawn, "attributes": blocks[0]["attributes"]}


def settings_of(run: xr.DataTree) -> dict[str, Any]:
    """Settings of a run: sampler, seed, temperature, width, chains, …."""
    return json.loads(run.attrs[SETTINGS])


def _is_drawn(name: str) -> bool:
    """Whether an array has an entry for every draw."""
    return "/" in name and not name.startswith(STATE)


def _variable(name: str, *dims: str) -> Variable:
    return Variable(name, dims, *_MEANINGS.get(name, (name.replace("_", " "),)))
