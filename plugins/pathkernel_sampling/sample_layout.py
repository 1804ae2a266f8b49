"""Dimensions, units and meanings of the variables of a block of draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from pathkernel_core.analysis import Variable
from pathkernel_datasets.labelling import coordinate, coordinates_along, labelled, path_dims

STATE = "state_"
"""Prefix of the variables that hold the states of the chains."""

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
    "draws_done": ("draws of each chain", "1"),
    "seconds": ("time spent on the run so far", "s"),
    "log_evidence": ("log evidence ln p(Y), by bridge sampling", "nat"),
    "log_evidence_error": ("standard error of the estimate by bridge sampling", "nat"),
}
"""Meaning and unit of a variable by its name, also of the statistics of a plugin's sampler."""


def labelled_block(
    values: Mapping[str, Mapping[str, np.ndarray]],
    states: Sequence[Mapping[str, np.ndarray]],
    first: int,
    seconds: float,
    thin: int,
    labels: np.ndarray,
    study: xr.Dataset,
) -> xr.DataTree:
    """Label a block of draws, in the groups of a complete run.

    Parameters
    ----------
    values : mapping of str to mapping of str to array
        Group → variable → values, shape (chain, draw, …). ``predictions`` has one entry for every
        ``thin`` draws of the others.
    states : sequence of mapping of str to array
        State of every chain after the block.
    first : int
        Number of the first draw.
    seconds : float
        Time spent on the run so far.
    labels : array, shape (P,) or (P, C)
        Training labels.
    study : Dataset
        With the coordinates of paths, test sets and outputs.
    """
    outputs = ("output",) if labels.ndim > 1 else ()
    dims = {
        "order_parameter": path_dims(2 if outputs else 1),
        "predictor_mean": ("test_set", "example", *outputs),
        "predictor_variance": ("test_set", "example", *outputs),
        "position": ("coordinate",),
    }
    end = first + values["posterior"]["order_parameter"].shape[1]
    nodes = {}
    for group, arrays in values.items():
        step = thin if group == "predictions" else 1
        draws = range(first + step - 1, end, step)  # the predictor follows the last of a round
        variables = [_variable(name, "chain", "draw", *dims.get(name, ())) for name in arrays]
        coordinates = {
            "chain": coordinate("chain", range(len(states)), "chain", "1"),
            "draw": coordinate("draw", draws, "draw after the warm-up", "1"),
            **coordinates_along(study, {dim for variable in variables for dim in variable.dims}),
        }
        nodes[group] = labelled(arrays, variables, coordinates)
    examples = coordinate("observation", range(len(labels)), "training example", "1")
    nodes["observed_data"] = labelled(
        {"label": labels},
        [_variable("label", "observation", *outputs)],
        {"observation": examples, **coordinates_along(study, outputs)},
    )
    numbers = {
        "draws_done": end,
        "seconds": seconds,
        "log_evidence": np.nan,
        "log_evidence_error": np.nan,
    }
    adaptation = labelled(numbers, map(_variable, numbers))
    for name in states[0]:
        array = np.stack([state[name] for state in states])
        dims = ("chain", *(f"{name}_dim_{axis}" for axis in range(array.ndim - 1)))
        attributes = {"long_name": f"{name.replace('_', ' ')} of the chain", "units": "1"}
        adaptation[STATE + name] = dims, array, attributes
    nodes["adaptation"] = adaptation
    return xr.DataTree.from_dict(nodes)


def _variable(name: str, *dims: str) -> Variable:
    return Variable(name, dims, *_MEANINGS.get(name, (name.replace("_", " "),)))
