"""The groups of a run of draws, labelled: dimensions, units and meanings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.labelling import coordinates_along, path_dims, variable_attributes

STATE = "state_"
"""Prefix of the variables that hold the chains' states."""

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
    "draws_done": ("draws of each chain", "1"),
    "seconds": ("time spent on the run so far", "s"),
    "log_evidence": ("log evidence ln p(Y), by bridge sampling", "nat"),
    "log_evidence_error": ("standard error of the estimate by bridge sampling", "nat"),
}
"""Name → meaning and unit, also of what a plugin's sampler calls by one of these names."""


def labelled_block(
    values: Mapping[str, Mapping[str, np.ndarray]],
    states: Sequence[Mapping[str, np.ndarray]],
    *,
    first: int,
    seconds: float,
    settings: Mapping[str, Any],
    attributes: Mapping[str, Any],
    study: xr.Dataset,
    labels: np.ndarray,
) -> xr.DataTree:
    """A block of draws, as a run of its own.

    Parameters
    ----------
    values : mapping of str to mapping of str to array
        Group → variable → values (chain, draw, …). ``predictions`` has one entry for every
        ``thin`` draws of the others.
    states : sequence of mapping of str to array
        Of every chain after the block.
    first : int
        Number of the first draw.
    seconds : float
        Time spent on the run so far.
    settings, attributes : mapping
        All that determines the draws, with ``thin``; and further attributes.
    study : Dataset
        Whose coordinates the variables take.
    labels : array, shape (P,) or (P, C)
        Training labels.
    """
    outputs = ("output",) if labels.ndim > 1 else ()
    dims = {
        "order_parameter": path_dims(2 if outputs else 1),
        "predictor_mean": ("test_set", "example", *outputs),
        "predictor_variance": ("test_set", "example", *outputs),
        "position": ("coordinate",),
    }
    count = next(iter(values["posterior"].values())).shape[1]
    nodes = {}
    for group, of_group in values.items():
        step = settings["thin"] if group == "predictions" else 1
        variables = {
            name: _variable(name, ("chain", "draw", *dims.get(name, ())), entry)
            for name, entry in of_group.items()
        }
        names = {dim for name in of_group for dim in dims.get(name, ())}
        draws = np.arange(first + step - 1, first + count, step)
        coords = {
            "chain": _variable("chain", ("chain",), np.arange(len(states))),
            "draw": _variable("draw", ("draw",), draws),
            **coordinates_along(study, names),
        }
        nodes[group] = xr.Dataset(variables, coords)
    numbers = {"observation": _variable("observation", ("observation",), np.arange(len(labels)))}
    nodes["observed_data"] = xr.Dataset(
        {"label": _variable("label", ("observation", *outputs), labels)},
        numbers | coordinates_along(study, outputs),
    )
    adaptation = {
        "draws_done": _variable("draws_done", (), np.int64(first + count)),
        "seconds": _variable("seconds", (), seconds),
        "log_evidence": _variable("log_evidence", (), np.nan),
        "log_evidence_error": _variable("log_evidence_error", (), np.nan),
    }
    for name in states[0]:
        stacked = np.stack([np.asarray(state[name]) for state in states])
        rest = (f"{name}_dim_{axis}" for axis in range(stacked.ndim - 1))
        words = Variable(STATE + name, (), f"{name.replace('_', ' ')} of the chain")
        adaptation[STATE + name] = xr.Variable(
            ("chain", *rest), stacked, variable_attributes(words)
        )
    nodes["adaptation"] = xr.Dataset(adaptation)
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = {**attributes, "settings": json.dumps(settings, sort_keys=True)}
    return tree


def _variable(name: str, dims: tuple[str, ...], values: Any) -> xr.Variable:
    meaning, units = _MEANINGS.get(name, (name.replace("_", " "), "1"))
    return xr.Variable(dims, values, variable_attributes(Variable(name, (), meaning, units)))
